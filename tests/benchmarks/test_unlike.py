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
from benchmarks.unlike import write_pictures
from benchmarks.unlike_ways import SIMPLE, SUFFIX, WAYS, FindData, View, read_databases
from transfer.adapt.base import Regime
from transfer.features.flat import flat_inputs

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
    assert set(figures["table"]) == {"device-new", "both-new"}
    for by_way in figures["table"].values():
        assert set(by_way) == set(WAYS)
        for row in by_way.values():
            assert all(
                0 < value <= 1 for value in (*row["kept"].values(), *row["by_device"]["gfx803_36"].values())
            )
    assert figures["likeness"]["gfx906_60"]["gfx906_64"]["kept"] == 1
    assert figures["likeness"]["gfx803_36"]["gfx900_56"]["kept"] < 0.9


def test_the_nearest_gpu_knows_its_twin(figures: dict[str, Any]) -> None:
    nearest = figures["table"]["device-new"]["nearest GPU"]["by_device"]
    assert nearest["gfx906_60"] == nearest["gfx906_64"] == {"0": 1.0, "16": 1.0}
    low, high = figures["device_new_k0_gain"][1:]
    assert low <= figures["device_new_k0_gain"][0] <= high


def view_of(data: FindData, regime: Regime) -> View:
    flat = flat_inputs(data.dataset.features, data.dataset.spec.category_sizes)
    is_held = (data.convolution // 65536 % 4 == 0)[data.dataset.group]
    options = unlike.Options(**OPTIONS)
    taught = unlike._source_trees(data, flat, 0, ~is_held, options)
    pool, free = unlike._pool(data, flat, 0, regime, is_held, taught, options)
    samples = unlike._samples(data, free, 16, 0)
    assert 8 < len(samples) <= 16
    assert not np.isin(data.dataset.group[samples], data.dataset.group[pool.judged]).any()
    return View(pool, samples, 0)


@pytest.mark.parametrize("regime", [Regime.DEVICE_NEW, Regime.BOTH_NEW])
def test_what_is_judged_is_not_seen(folder: Path, regime: Regime) -> None:
    data = read_databases(folder, 1)
    view = view_of(data, regime)
    latency = data.dataset.latency_secs.copy()
    hidden = [0] if regime is Regime.DEVICE_NEW else [0, 1, 2, 3]
    latency[np.ix_(view.pool.judged, hidden)] *= np.random.default_rng(0).uniform(
        1, 9, (len(view.pool.judged), 1)
    )
    other = view_of(replace(data, dataset=replace(data.dataset, latency_secs=latency)), regime)
    for name, way in WAYS.items():
        assert np.array_equal(way(view), way(other)), name


def test_pictures_are_whole(figures: dict[str, Any], tmp_path: Path) -> None:
    write_pictures(tmp_path, figures, tuple(WAYS))
    curve, heat = ((tmp_path / f"unlike-{name}.svg").read_text() for name in ("curve", "devices"))
    assert curve.count("<polyline") == 2 * len(WAYS)
    assert all(name in heat for name in GPUS)
    assert all(name in curve for name in SIMPLE)
