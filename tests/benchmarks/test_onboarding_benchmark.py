"""`python -m benchmarks.onboarding`: the keys that scripts read, its page, and how its figures are made.

Records of the runs are real: a few workloads of three ISA profiles, cut from a store of this project.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks import onboarding_parts
from benchmarks.onboarding import main
from benchmarks.onboarding_baselines import baselines
from benchmarks.onboarding_cases import CasePlan, FewShot, FewShotSet, Situation
from benchmarks.onboarding_curve import RANDOM, Adapting, Contender, Experiment, Point
from benchmarks.onboarding_parts import CurveTable, DeviceSet
from tests.model_fixtures import CONFIG, make_dataset
from tests.record_fixtures import make_workload
from tests.strategy_fixtures import BriefMaml, LikeNearest
from transfer.adapt.base import Regime
from transfer.adapt.sample_selection import Paired
from transfer.data.dataset import Dataset

PROFILES = Path(__file__).parents[1] / "onboardings" / "profiles"
FEW = [
    *("--quick", "--json", "--epochs", "1", "--seeds", "1", "--part-seeds", "1", "--workers", "1"),
    *("--most", "12", "--pool", "12", "--judge", "12"),
]
DATASET = make_dataset(workloads=9, candidates=12)
DEVICES = tuple(map(str, DATASET.device_ids))
WORKLOADS = {one: msgspec.structs.replace(make_workload(0), workload_id=one) for one in DATASET.workload_ids}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy: opening a store may write into it. A start of meta-learning takes most of a minute."""
    monkeypatch.setattr("transfer.adapt.guard.Maml", BriefMaml)
    return Path(shutil.copytree(PROFILES, tmp_path / "store"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*FEW, *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_the_curve_gives_its_keys_and_a_page(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xgboost")
    path = tmp_path / "page.md"
    found = run(
        capsys,
        *("--store", str(store), "--table", str(path)),
        *("--target", "x86-64-v3", "--samples", "0", "16", "--parts", "--regime", "device-new"),
    )
    assert found["used"] == ["ISA profiles of one host"]
    [table] = found["tables"]
    at = table["regimes"]["device-new"]
    assert set(at) == {"0", "16", "all"}
    expected = {"auto", "scratch", "mean-rank", "nearest-device", "xgboost-siblings", "mlp-fine-tuned"}
    assert expected <= set(at["16"]["contenders"])
    assert found["worst_warm_minus_scratch_at"].startswith("device-new, x86-64-v3, k = ")
    # Nothing at the k that these are told at.
    assert found["device_new_gain_k64"] is found["adapt_seconds_k256"] is found["interval_coverage"] is None
    text = path.read_text()
    assert "| mean-rank |" in text
    assert "`python -m benchmarks.onboarding --quick" in text
    assert str(store.parent) not in text + json.dumps(found)


def test_what_stands_beside_the_curve(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        capsys,
        *("--store", str(store), "--baselines", "--strategies", "nearest"),
        *("--target", "x86-64-v3", "--samples", "0", "--regime", "device-new", "--covered", "32"),
    )
    [selectors] = found["parts"]["selectors"]
    assert set(selectors["selectors"]) == {"random", "paired", "search"}
    assert found["best_selector"] == selectors["best"]
    [coverage] = found["parts"]["coverage"]
    assert 0 <= found["interval_coverage"] <= 1
    assert coverage["by_k"]["all of these"]["top1_width"] > 0


def test_without_any_store_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onboarding_parts, "DEMO_STORE", tmp_path / "none")
    monkeypatch.setattr(onboarding_parts, "LOGS", tmp_path / "none")
    found = run(capsys)
    assert (found["used"], found["k64_of_full"]) == ([], None)
    assert "make run" in found["skipped"]


# ---- the curve ----


def curve(folder: Path, *contenders: Contender, target: int, samples: tuple[int, ...]) -> list[Point]:
    """The points of all regimes, one seed."""
    experiment = Experiment(
        devices=DeviceSet(name="made up", is_own=True, dataset=DATASET, workloads=WORKLOADS, ceilings={}),
        plan=CasePlan(regimes=tuple(Regime), targets=(DEVICES[target],), seeds=(0,)),
        config=replace(CONFIG, epochs=2),
        folder=folder,
    )
    return experiment.points(experiment.plan, contenders, samples)


def test_a_strategy_sees_its_samples_and_nothing_else_of_the_target(tmp_path: Path) -> None:
    seen: list[tuple[Dataset, np.ndarray, np.ndarray]] = []
    spy = LikeNearest("spy", sees=lambda *what: seen.append(what))
    curve(tmp_path, Adapting(spy, Paired(), "spy"), target=0, samples=(0, 16))
    assert {len(rows) for _, rows, _ in seen} == {0, 16}
    for view, rows, _ in seen:
        column = view.column(DEVICES[0])
        told = np.isfinite(view.latency_secs[:, column]) | view.failed[:, column]
        assert set(np.flatnonzero(told)) == set(rows.tolist())


def test_all_baselines_answer_where_they_can(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    points = curve(tmp_path, *baselines(), target=2, samples=(0, 16))
    replays = {"nearest-device", "mean-rank", "xgboost-siblings", "xgboost-change"}
    for k in (0, 16):
        everywhere = {"xgboost-pooled", "xgboost-residual", "mlp-fine-tuned"} | ({"xgboost"} if k else set())
        for regime in Regime:
            names = {one.contender for one in points if one.regime is regime and one.k == k} - {RANDOM}
            assert names == everywhere | (replays if regime is Regime.DEVICE_NEW else set())


def test_a_stopped_curve_goes_on_and_damaged_cases_are_made_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def scores(situation: Situation, few_shot: FewShotSet) -> np.ndarray | None:
        asked.append(len(few_shot.rows))
        return None if len(few_shot.rows) == 0 else situation.test.astype(np.float64)

    def again(*samples: int) -> set[int]:
        asked.clear()
        points.append(curve(tmp_path, FewShot("one", scores), target=0, samples=samples))
        return set(asked)

    points: list[list[Point]] = []
    assert again(0) == {0}
    assert again(0, 8) == {0, 8}
    assert again(0, 8) == set()
    for path in tmp_path.iterdir():
        path.write_text(path.read_text()[:-9])
    assert again(0, 8) == {0, 8}
    assert points[1] == points[2]
    whole = [[one.values for one in found] for found in points[1:]]
    assert whole[0] == whole[1] == whole[2]


#: Contender, samples, seconds, and top-1 of each workload.
POINTS = """
    random  0   2 | 0.3 0.4 0.5 0.4
    base    64  2 | 0.5 0.6 0.7 0.6
    worse   64  2 | 0.5 0.5 0.5 0.5
    auto    64  2 | 0.6 0.7 0.8 0.7
    auto    256 2 | 0.8 0.8 0.8 0.8
    auto    all 2 | 0.8 0.9 0.8 0.9
    scratch 64  1 | 0.6 0.6 0.8 0.8
    scratch all 2 | 1.0 0.9 0.9 0.9
"""


def point(line: str) -> Point:
    case, _, shares = line.partition("|")
    contender, count, seconds = case.split()
    top1 = [float(share) for share in shares.split()]
    k = None if count == "all" else int(count)
    figures = {"values": {"top1": top1, "top5": top1, "tau": top1}, "groups": list(range(len(top1)))}
    where = {"regime": Regime.DEVICE_NEW, "target": "t", "split": "s", "seed": 0}
    return Point(contender=contender, k=k, measured=k or 100, seconds=float(seconds), **where, **figures)


def test_the_figures_of_a_table() -> None:
    points = [point(line) for line in POINTS.strip().splitlines()]
    table, new = CurveTable(points=points, strategies=("auto", "scratch"), default="auto"), Regime.DEVICE_NEW
    # Over the best baseline at the same k; the same .1 everywhere, so paired nothing is left to chance.
    assert table.best_baseline(new, 64) == "base"
    gain = table.gain(new, 64)
    assert gain is not None
    assert (gain.value, gain.low) == pytest.approx((0.1, 0.1))
    # Full data as whoever makes more of it.
    assert table.share_of_full(new, 256) == pytest.approx(0.8 / 0.925)
    assert table.worst_less_scratch() == (pytest.approx(0.85 - 0.925), "device-new, t, k = all")
    assert table.mean("seconds", 64, table.regimes, "scratch") == 1.0
    assert table.estimate(Regime.BOTH_NEW, "auto", 64) is None
    assert table.estimate(new, "auto", 256, less="base") is None
    assert (table.best_baseline(new, 8), table.gain(new, 8)) == (RANDOM, None)
    # Samples for a figure lie between the points.
    assert table.samples_for(new, "auto", 0.65) == pytest.approx(64)
    between = table.samples_for(new, "auto", 0.75)
    assert between is not None
    assert 64 < between < 256
    assert table.samples_for(new, "auto", 0.99) is None
