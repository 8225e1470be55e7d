"""The onboarding curve: nobody sees what is held out, every figure is a mean of paired values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.records import Workload, WorkloadId
from benchmarks import onboarding_graphs
from benchmarks.onboarding_baselines import FewShot, baselines, nearest_sources
from benchmarks.onboarding_curve import CurvePlan, run_curve
from benchmarks.onboarding_table import RANDOM, CurveTable
from tests.model_fixtures import CONFIG, make_dataset
from tests.record_fixtures import make_workload
from tests.strategy_fixtures import LikeNearest
from transfer.adapt.sample_selection import FewOfEach
from transfer.data.dataset import Dataset
from transfer.data.ranking import random_top_k
from transfer.errors import DatasetError
from transfer.evaluate.onboarding_cases import (
    Case,
    CasePlan,
    FewShotSet,
    Regime,
    Situation,
    make_cases,
    shown,
)
from transfer.evaluate.onboarding_contenders import Adapting, Point

DATASET = make_dataset(workloads=9, candidates=12)
DEVICES = tuple(map(str, DATASET.device_ids))
SHORT = replace(CONFIG, epochs=2)


def plan(contenders: Sequence[Adapting | FewShot], **changes: object) -> CurvePlan:
    cases = case_plan(*Regime)
    values: dict[str, object] = {
        "cases": replace(cases, **{k: v for k, v in changes.items() if k in CasePlan.__slots__}),
        "contenders": tuple(contenders),
        "selector": FewOfEach(),
        "config": SHORT,
        "samples": changes.get("samples", (0, 16)),
        "with_all": changes.get("with_all", False),
    }
    return CurvePlan(**values)  # type: ignore[arg-type]


def case_plan(*regimes: Regime, **changes: Any) -> CasePlan:
    """Every device as a target, one seed."""
    return CasePlan(**{"regimes": regimes, "targets": DEVICES, "seeds": (0,)} | changes)


def oracle(dataset: Dataset) -> FewShot:
    """Knows the truth; for the tests of what is done with scores."""
    return FewShot("oracle", lambda s, _: -dataset.latency_secs[s.test, dataset.column(s.target)])


@pytest.mark.parametrize("regime", list(Regime))
def test_a_case_keeps_apart_what_must_be(regime: Regime) -> None:
    cases = make_cases(DATASET, None, case_plan(regime, seeds=(0, 1)))
    assert {case.target for case in cases} == set(DEVICES)
    for case in cases:
        assert not set(case.pool) & set(case.test)
        shared = np.intersect1d(DATASET.group[case.test], DATASET.group[case.pool])
        learnt = np.intersect1d(DATASET.group[case.test], DATASET.group[case.source_rows])
        assert bool(len(shared)) is bool(len(learnt)) is (regime is not Regime.BOTH_NEW)
        assert bool(set(case.test) & set(case.source_rows)) is (regime is Regime.DEVICE_NEW)
        assert np.isfinite(DATASET.latency_secs[case.test, DATASET.column(case.target)]).all()
        assert np.bincount(DATASET.group[case.test])[DATASET.group[case.test]].min() >= 2


@pytest.mark.parametrize("regime", list(Regime))
def test_what_is_shown_holds_nothing_of_the_target(regime: Regime) -> None:
    for case in make_cases(DATASET, None, case_plan(regime)):
        view = shown(DATASET, case)
        assert not np.isfinite(view.latency_secs[:, DATASET.column(case.target)]).any()
        assert not view.failed[:, DATASET.column(case.target)].any()
        sources = np.isfinite(view.latency_secs[case.test]).any()
        assert bool(sources) is (regime is Regime.DEVICE_NEW)


def two_networks() -> dict[WorkloadId, Workload]:
    """The workloads, every other one of another network."""
    return {
        one: msgspec.structs.replace(
            make_workload(place), workload_id=one, networks=((f"net{'ab'[place % 2]}", 1),)
        )
        for place, one in enumerate(DATASET.workload_ids)
    }


BOTH_NEW = case_plan(Regime.BOTH_NEW, targets=DEVICES[:1])


def test_networks_are_held_out_where_there_are_some() -> None:
    workloads = two_networks()
    cases = make_cases(DATASET, workloads, BOTH_NEW)
    assert {case.split for case in cases} == {"neta", "netb"}
    for case in cases:
        names = {workloads[DATASET.workload_ids[group]].networks[0][0] for group in DATASET.group[case.test]}
        assert names == {case.split}
    [one] = make_cases(DATASET, workloads, replace(BOTH_NEW, held=("netb",)))
    assert one.split == "netb"


def test_a_network_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DatasetError, match="no network nosuch to hold out; there are neta, netb"):
        make_cases(DATASET, two_networks(), replace(BOTH_NEW, held=("neta", "nosuch")))
    # Where no network is known, random workloads are held out whatever is asked.
    assert make_cases(DATASET, None, replace(BOTH_NEW, held=("nosuch",)))


def test_fewer_workloads_are_learnt_from_when_asked() -> None:
    [one, *_] = make_cases(DATASET, None, replace(BOTH_NEW, most_workloads=2))
    assert len(np.unique(DATASET.group[one.source_rows])) == 2


def test_a_device_alone_has_nothing_to_be_judged_by() -> None:
    alone = replace(
        DATASET,
        device_ids=DATASET.device_ids[:1],
        latency_secs=DATASET.latency_secs[:, :1],
        failed=DATASET.failed[:, :1],
        hardware=DATASET.hardware[:1],
    )
    with pytest.raises(DatasetError, match="nothing to judge"):
        make_cases(alone, None, case_plan(*Regime, targets=DEVICES[:1]))


def test_a_strategy_sees_its_samples_and_nothing_else_of_the_target() -> None:
    seen: list[tuple[Dataset, np.ndarray, np.ndarray]] = []
    spy = LikeNearest("spy", sees=lambda *what: seen.append(what))
    run_curve(DATASET, None, plan([Adapting(spy, FewOfEach(), "spy")], targets=DEVICES[:1]))
    assert {len(rows) for _, rows, _ in seen} == {0, 16}
    for view, rows, _ in seen:
        column = view.column(DEVICES[0])
        told = np.isfinite(view.latency_secs[:, column]) | view.failed[:, column]
        assert set(np.flatnonzero(told)) == set(rows.tolist())


def test_all_baselines_answer_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xgboost")
    for name in ("_EPOCHS", "_TUNING_EPOCHS", "_TASKS"):
        monkeypatch.setattr(onboarding_graphs, name, 2)
    points = run_curve(DATASET, None, plan(baselines(), targets=DEVICES[2:], with_all=True))
    by_regime = {regime: {(p.contender, p.k) for p in points if p.regime is regime} for regime in Regime}
    replays = {"nearest-device", "mean-rank", "xgboost-siblings", "xgboost-change"}
    everywhere = {"xgboost-pooled", "xgboost-residual", "mlp-fine-tuned", "tgraph", "metatune"}
    for k in (0, 16, None):
        device_new = {name for name, samples in by_regime[Regime.DEVICE_NEW] if samples == k}
        alone = set() if k == 0 else {"xgboost"}
        assert device_new - {RANDOM} == replays | everywhere | alone
        for regime in (Regime.CANDIDATE_NEW, Regime.BOTH_NEW):
            nobody_knows = {name for name, samples in by_regime[regime] if samples == k}
            assert nobody_knows - {RANDOM} == everywhere | alone


def test_replay_finds_the_better_order_than_chance() -> None:
    points = run_curve(DATASET, None, plan(baselines()[:2], regimes=(Regime.DEVICE_NEW,)))
    table = CurveTable(points=points, strategies=(), default="none")
    chance = table.estimate(Regime.DEVICE_NEW, RANDOM, 0)
    for name in ("nearest-device", "mean-rank"):
        found = table.estimate(Regime.DEVICE_NEW, name, 16)
        assert found is not None
        assert chance is not None
        assert found.low > chance.value
    assert table.best_baseline(Regime.DEVICE_NEW, 16) in {"nearest-device", "mean-rank"}


def test_the_nearest_source_is_told_by_the_samples_then_by_hardware() -> None:
    latency = DATASET.latency_secs.copy()
    latency[:, 2] = latency[:, 1]
    [case, *_] = make_cases(DATASET, None, case_plan(Regime.DEVICE_NEW, targets=(DEVICES[2],)))
    situation = Situation(
        dataset=shown(DATASET, case),
        target=DEVICES[2],
        sources=DEVICES[:2],
        source_rows=case.source_rows,
        test=case.test,
        seed=0,
    )
    rows = case.pool[:40]
    assert nearest_sources(situation, FewShotSet(rows, latency[rows, 2]))[0] == 1
    nothing = FewShotSet(rows[:0], np.zeros(0))
    hardware = DATASET.hardware / DATASET.hardware.std(axis=0)
    by_hardware = np.argsort(np.linalg.norm(hardware[:2] - hardware[2], axis=1))
    assert nearest_sources(situation, nothing) == by_hardware.tolist()


def test_a_random_choice_is_its_exact_expectation() -> None:
    points = run_curve(DATASET, None, plan([oracle(DATASET)], targets=DEVICES[:1]))
    for point in points:
        if point.contender == RANDOM:
            [case] = [c for c in cases_of(point) if c.split == point.split]
            latency = DATASET.latency_secs[case.test, 0]
            for group, top1, top5 in zip(point.groups, point.top1, point.top5, strict=True):
                mine = latency[DATASET.group[case.test] == group]
                assert (top1, top5) == (random_top_k(mine, 1), random_top_k(mine, 5))
        else:
            np.testing.assert_allclose(point.top1, 1)
            np.testing.assert_allclose(point.tau, 1)


def cases_of(point: Point) -> list[Case]:
    return make_cases(DATASET, None, case_plan(point.regime, targets=(point.target,), seeds=(point.seed,)))


def test_a_run_out_of_time_keeps_whole_seeds_only() -> None:
    told: list[int] = []
    points = run_curve(
        DATASET,
        None,
        plan([oracle(DATASET)], seeds=(0, 1, 2)),
        until=0.0,
        on_case=lambda done, *_: told.append(done),
    )
    assert {point.seed for point in points} == {0}
    assert len(told) == len({(p.regime, p.split, p.target) for p in points})


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


TABLE = CurveTable(
    points=[
        point(RANDOM, 0, [0.3, 0.4, 0.5, 0.4]),
        point("base", 64, [0.5, 0.6, 0.7, 0.6]),
        point("worse", 64, [0.5, 0.5, 0.5, 0.5]),
        point("auto", 64, [0.6, 0.7, 0.8, 0.7]),
        point("auto", 256, [0.8, 0.8, 0.8, 0.8]),
        point("auto", None, [0.8, 0.9, 0.8, 0.9]),
        point("scratch", 64, [0.6, 0.6, 0.8, 0.8], seconds=1.0),
        point("scratch", None, [1.0, 0.9, 0.9, 0.9]),
    ],
    strategies=("auto", "scratch"),
    default="auto",
)
NEW = Regime.DEVICE_NEW


def test_gains_are_over_the_best_baseline_at_the_same_k() -> None:
    assert TABLE.best_baseline(NEW, 64) == "base"
    gain = TABLE.gain(NEW, 64)
    assert gain is not None
    assert gain.value == pytest.approx(0.1)
    # The same .1 everywhere: paired, nothing is left to chance.
    assert gain.low == pytest.approx(0.1)
    assert gain.is_above_zero


def test_a_share_of_full_data_is_over_the_better_use_of_it() -> None:
    assert TABLE.share_of_full(NEW, 256) == pytest.approx(0.8 / 0.925)


def test_the_worst_difference_to_scratch_says_where_it_was() -> None:
    worst = TABLE.worst_less_scratch()
    assert worst is not None
    assert worst[0] == pytest.approx(0.85 - 0.925)
    assert worst[1] == "device-new, t, k = all"


def test_what_is_missing_is_none() -> None:
    assert TABLE.estimate(NEW, "auto", 8) is None
    assert TABLE.estimate(Regime.BOTH_NEW, "auto", 64) is None
    assert TABLE.difference(NEW, "auto", "base", 256) is None
    assert TABLE.best_baseline(NEW, 8) == RANDOM
    assert TABLE.gain(NEW, 8) is None
    with pytest.raises(DatasetError, match="no measure"):
        TABLE.estimate(NEW, "auto", 64, "top3")


def test_samples_for_a_figure_lie_between_the_points() -> None:
    found = TABLE.samples_for(NEW, "auto", 0.75)
    assert found is not None
    assert 64 < found < 256
    assert TABLE.samples_for(NEW, "auto", 0.65) == 64
    assert TABLE.samples_for(NEW, "auto", 0.99) is None


def test_points_of_one_device_can_be_asked_for() -> None:
    table = replace(TABLE, points=[*TABLE.points, point("auto", 64, [0.1, 0.1], target="other")])
    assert table.estimate(NEW, "auto", 64, "top1", ("other",)).value == pytest.approx(0.1)  # type: ignore[union-attr]
    assert table.targets == ("other", "t")
    assert table.seconds("scratch", 64) == 1.0
