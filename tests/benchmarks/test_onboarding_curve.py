"""The onboarding curve: a strategy sees its samples alone, every figure is a mean of paired values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.onboarding_baselines import FewShot, baselines
from benchmarks.onboarding_cases import (
    CasePlan,
    FewShotSet,
    Situation,
)
from benchmarks.onboarding_contenders import Adapting, Point
from benchmarks.onboarding_curve import CurvePlan, run_curve
from benchmarks.onboarding_table import RANDOM, CurveTable
from tests.model_fixtures import CONFIG, make_dataset
from tests.strategy_fixtures import LikeNearest
from transfer.adapt.base import Regime
from transfer.adapt.sample_selection import Paired
from transfer.data.dataset import Dataset

DATASET = make_dataset(workloads=9, candidates=12)
DEVICES = tuple(map(str, DATASET.device_ids))
SHORT = replace(CONFIG, epochs=2)


def plan(contenders: Sequence[Adapting | FewShot], **changes: object) -> CurvePlan:
    cases = case_plan(*Regime)
    values: dict[str, object] = {
        "cases": replace(cases, **{k: v for k, v in changes.items() if k in CasePlan.__slots__}),
        "contenders": tuple(contenders),
        "selector": Paired(),
        "config": SHORT,
        "samples": changes.get("samples", (0, 16)),
        "with_all": changes.get("with_all", False),
    }
    return CurvePlan(**values)  # type: ignore[arg-type]


def case_plan(*regimes: Regime, **changes: Any) -> CasePlan:
    """Every device as a target, one seed."""
    return CasePlan(**{"regimes": regimes, "targets": DEVICES, "seeds": (0,)} | changes)


def test_a_strategy_sees_its_samples_and_nothing_else_of_the_target() -> None:
    seen: list[tuple[Dataset, np.ndarray, np.ndarray]] = []
    spy = LikeNearest("spy", sees=lambda *what: seen.append(what))
    run_curve(DATASET, None, plan([Adapting(spy, Paired(), "spy")], targets=DEVICES[:1]))
    assert {len(rows) for _, rows, _ in seen} == {0, 16}
    for view, rows, _ in seen:
        column = view.column(DEVICES[0])
        told = np.isfinite(view.latency_secs[:, column]) | view.failed[:, column]
        assert set(np.flatnonzero(told)) == set(rows.tolist())


def test_all_baselines_answer_where_they_can() -> None:
    pytest.importorskip("xgboost")
    points = run_curve(DATASET, None, plan(baselines(), targets=DEVICES[2:], with_all=True))
    by_regime = {regime: {(p.contender, p.k) for p in points if p.regime is regime} for regime in Regime}
    replays = {"nearest-device", "mean-rank", "xgboost-siblings", "xgboost-change"}
    everywhere = {"xgboost-pooled", "xgboost-residual", "mlp-fine-tuned"}
    for k in (0, 16, None):
        device_new = {name for name, samples in by_regime[Regime.DEVICE_NEW] if samples == k}
        alone = set() if k == 0 else {"xgboost"}
        assert device_new - {RANDOM} == replays | everywhere | alone
        for regime in (Regime.CANDIDATE_NEW, Regime.BOTH_NEW):
            nobody_knows = {name for name, samples in by_regime[regime] if samples == k}
            assert nobody_knows - {RANDOM} == everywhere | alone


def point(contender: str, k: int | None, top1: list[float], **changes: object) -> Point:
    values: dict[str, object] = {
        "contender": contender,
        "regime": Regime.DEVICE_NEW,
        "target": "t",
        "split": "s",
        "seed": 0,
        "k": k,
        "measured": k or 100,
        "groups": np.arange(len(top1), dtype=np.int32),
        "top1": np.array(top1),
        "top5": np.array(top1),
        "tau": np.array(top1),
        "seconds": 2.0,
    }
    return Point(**values | changes)  # type: ignore[arg-type]


def test_the_figures_of_a_table() -> None:
    points = [
        point(RANDOM, 0, [0.3, 0.4, 0.5, 0.4]),
        point("base", 64, [0.5, 0.6, 0.7, 0.6]),
        point("worse", 64, [0.5, 0.5, 0.5, 0.5]),
        point("auto", 64, [0.6, 0.7, 0.8, 0.7]),
        point("auto", 256, [0.8, 0.8, 0.8, 0.8]),
        point("auto", None, [0.8, 0.9, 0.8, 0.9]),
        point("scratch", 64, [0.6, 0.6, 0.8, 0.8], seconds=1.0),
        point("scratch", None, [1.0, 0.9, 0.9, 0.9]),
    ]
    table, new = CurveTable(points=points, strategies=("auto", "scratch"), default="auto"), Regime.DEVICE_NEW
    # Over the best baseline at the same k; the same .1 everywhere, so paired nothing is left to chance.
    assert table.best_baseline(new, 64) == "base"
    gain = table.gain(new, 64)
    assert gain is not None
    assert (gain.value, gain.low) == pytest.approx((0.1, 0.1))
    # Full data as whoever makes more of it.
    assert table.share_of_full(new, 256) == pytest.approx(0.8 / 0.925)
    worst = table.worst_less_scratch()
    assert worst is not None
    assert worst == (pytest.approx(0.85 - 0.925), "device-new, t, k = all")
    assert table.seconds("scratch", 64) == 1.0
    assert table.estimate(Regime.BOTH_NEW, "auto", 64) is table.difference(new, "auto", "base", 256) is None
    assert (table.best_baseline(new, 8), table.gain(new, 8)) == (RANDOM, None)
    # Samples for a figure lie between the points.
    assert table.samples_for(new, "auto", 0.65) == 64
    between = table.samples_for(new, "auto", 0.75)
    assert between is not None
    assert 64 < between < 256
    assert table.samples_for(new, "auto", 0.99) is None


def test_a_stopped_curve_goes_on_and_damaged_points_are_made_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def scores(situation: Situation, few_shot: FewShotSet) -> np.ndarray | None:
        asked.append(len(few_shot.rows))
        return None if len(few_shot.rows) == 0 else situation.test.astype(np.float64)

    def run(*samples: int) -> list[tuple[Any, ...]]:
        asked.clear()
        curve = plan([FewShot("one", scores)], targets=DEVICES[:1], samples=samples)
        points = run_curve(DATASET, None, curve, kept=tmp_path)
        return [(one.contender, one.k, one.split, one.top1.tolist()) for one in points]

    run(0)
    first = run(0, 8)
    assert set(asked) == {8}, "0 was there, though it said nothing"
    assert run(0, 8) == first
    assert asked == []
    for path in tmp_path.iterdir():
        path.write_text(path.read_text()[:-9])
    assert run(0, 8) == first
    assert set(asked) == {0, 8}
