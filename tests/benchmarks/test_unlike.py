"""The benchmark of unlike GPUs, on made-up find databases."""

from __future__ import annotations

import bz2
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import unlike
from benchmarks.onboarding_cases import FewShotSet, situation_of, visible_dataset
from benchmarks.unlike_ways import LEARNING, SUFFIX, WAYS, FindData, View, read_databases
from transfer.adapt.base import Regime

GPUS = ("gfx803_36", "gfx900_56", "gfx906_60", "gfx906_64")
SOLVERS = ("ConvAsm1x1U", "ConvBinWinograd3x3U", "GemmFwdRest", "ConvOclDirectFwd")
OPTIONS = {"one_in": 1, "trees": 5, "learnt": 4000, "judged": 40, "seeds": 2, "samples": (0, 16)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four GPUs of which the last two time alike; another solver is the fastest on each of the others."""
    made = tmp_path_factory.mktemp("databases")
    for place, name in enumerate(GPUS):
        lines = []
        for channels in range(1, 81):
            sizes = f"{channels}-8-8-1x1-16-8-8-4-0x0-1x1-1x1-0-NCHW"
            for word, direction in (("FP32", "F"), ("FP16", "F"), ("FP32", "W")):
                draw = random.Random(f"{sizes}{direction}{min(place, 2)}")
                secs = {solver: draw.uniform(2, 4) for solver in SOLVERS}
                secs[SOLVERS[min(place, 2)]] = draw.uniform(1, 2)
                timed = ";".join(f"{solver}:{ms:.4f},0,x" for solver, ms in secs.items())
                lines.append(f"{sizes}-{word}-{direction}={timed}\n")
        (made / f"{name}{SUFFIX}").write_bytes(bz2.compress("".join(lines).encode()))
    return made


@pytest.fixture(scope="module")
def figures(folder: Path) -> dict[str, Any]:
    return unlike.measure(unlike.Options(data=folder, **OPTIONS))


def test_every_way_is_judged_in_both_regimes(figures: dict[str, Any]) -> None:
    assert set(figures["regimes"]) == {"device-new", "both-new"}
    for by_count in figures["regimes"].values():
        assert set(by_count) == {"0", "16"}
        for row in (row for at in by_count.values() for row in at["contenders"].values()):
            assert all(0 < low <= value <= high <= 1 for value, low, high in row["by_device"].values())
        assert all(set(at["contenders"]) == set(WAYS) for at in by_count.values())
    assert figures["likeness"]["gfx906_60"]["gfx906_64"]["kept"] == 1
    assert figures["likeness"]["gfx803_36"]["gfx900_56"]["kept"] < 0.9


def test_the_nearest_gpu_knows_its_twin(figures: dict[str, Any]) -> None:
    for at in figures["regimes"]["device-new"].values():
        nearest = at["contenders"]["nearest GPU"]["by_device"]
        assert nearest["gfx906_60"] == nearest["gfx906_64"] == [1, 1, 1]
        assert at["best_baseline"] not in LEARNING
    value, low, high = figures["device_new_gain_k0"]
    assert low <= value <= high


def view_of(data: FindData, regime: Regime) -> View:
    case = unlike.case_of(data, GPUS[0], regime, 40)
    situation = situation_of(visible_dataset(data.dataset, case), case)
    rows = unlike.samples_of(data, case.pool, 16, 0)
    assert 8 < len(rows) <= 16
    assert not np.isin(data.dataset.group[rows], data.dataset.group[case.test]).any()
    few_shot = FewShotSet(rows, data.dataset.latency_secs[rows, 0])
    return View(data, situation, few_shot, 0, unlike.Options(**OPTIONS))


@pytest.mark.parametrize("regime", [Regime.DEVICE_NEW, Regime.BOTH_NEW])
def test_what_is_judged_is_not_seen(folder: Path, regime: Regime) -> None:
    data = read_databases(folder, 1)
    view = view_of(data, regime)
    latency = data.dataset.latency_secs.copy()
    hidden = [0] if regime is Regime.DEVICE_NEW else [0, 1, 2, 3]
    factors = np.random.default_rng(0).uniform(1, 9, (len(view.test), 1))
    latency[np.ix_(view.test, hidden)] *= factors
    other = view_of(data._replace(dataset=replace(data.dataset, latency_secs=latency)), regime)
    for name, way in WAYS.items():
        assert np.array_equal(way(view), way(other)), name
