"""A curve that was stopped goes on: finished cases are not run again, nor are others taken for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.onboarding_baselines import FewShot
from benchmarks.onboarding_curve import CurvePlan, run_curve
from tests.model_fixtures import CONFIG, make_dataset
from transfer.adapt.sample_selection import FewOfEach
from transfer.data.dataset import Dataset
from transfer.evaluate.onboarding_cases import CasePlan, FewShotSet, Regime, Situation
from transfer.evaluate.onboarding_contenders import Point
from transfer.evaluate.rankers import Scores

DATASET = make_dataset(workloads=9, candidates=12)
DEVICES = tuple(map(str, DATASET.device_ids))


class Counting:
    """Scores by row number, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, situation: Situation, few_shot: FewShotSet) -> Scores:
        self.asked += 1
        return situation.test.astype(np.float64)


def run(
    counting: Counting,
    kept: Path | None,
    *,
    name: str = "counting",
    beside: tuple[FewShot, ...] = (),
    seeds: int = 2,
    samples: tuple[int, ...] = (0, 8),
    workers: int = 1,
    dataset: Dataset = DATASET,
) -> list[Point]:
    plan = CurvePlan(
        cases=CasePlan(regimes=tuple(Regime), targets=DEVICES[:2], seeds=tuple(range(seeds))),
        contenders=(FewShot(name, counting), *beside),
        selector=FewOfEach(),
        config=CONFIG,
        samples=samples,
    )
    return run_curve(dataset, None, plan, workers=workers, kept=kept)


def test_finished_cases_are_read_back_as_they_were(tmp_path: Path) -> None:
    counting = Counting()
    first = run(counting, tmp_path)
    asked = counting.asked
    assert asked > 0
    again = run(counting, tmp_path, workers=2)
    assert counting.asked == asked
    assert len(first) == len(again)
    for one, other in zip(first, again, strict=True):
        for name in ("contender", "regime", "target", "k"):
            assert getattr(one, name) == getattr(other, name)
        for name in ("groups", "top1", "top5", "tau"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype


def test_a_further_seed_runs_alone(tmp_path: Path) -> None:
    one, two = Counting(), Counting()
    run(one, tmp_path, seeds=1)
    points = run(two, tmp_path, seeds=2)
    assert two.asked == one.asked
    assert {point.seed for point in points} == {0, 1}


def test_further_samples_and_contenders_run_alone(tmp_path: Path) -> None:
    counting, other = Counting(), Counting()
    run(counting, tmp_path, samples=(0,))
    asked = counting.asked
    run(counting, tmp_path)
    assert counting.asked == asked * 3 // 2, "0 and all were there, 8 was not"
    points = run(counting, tmp_path, beside=(FewShot("other", other),))
    assert counting.asked == other.asked == asked * 3 // 2
    found = [(one.k, one.contender) for one in points if one.contender != "random"]
    assert found == [
        (k, name) for _ in range(asked // 2) for k in (0, 8, None) for name in ("counting", "other")
    ]


def test_who_says_nothing_is_not_asked_again(tmp_path: Path) -> None:
    asked = []

    def silent(situation: Situation, few_shot: FewShotSet) -> Scores | None:
        asked.append(few_shot)
        return None

    first = run(Counting(), tmp_path, beside=(FewShot("silent", silent),))
    count = len(asked)
    assert count
    again = run(Counting(), tmp_path, beside=(FewShot("silent", silent),))
    assert len(asked) == count
    assert {one.contender for one in [*first, *again]} == {"counting", "random"}


def test_others_and_damaged_ones_run_again(tmp_path: Path) -> None:
    counting = Counting()
    run(counting, tmp_path)
    asked = counting.asked
    run(counting, tmp_path, name="another")
    assert counting.asked == 2 * asked
    for path in tmp_path.iterdir():
        path.write_text(path.read_text()[:-9])
    run(counting, tmp_path)
    assert counting.asked == 3 * asked


def test_other_records_are_other_cases(tmp_path: Path) -> None:
    counting = Counting()
    run(counting, tmp_path, seeds=1)
    asked = counting.asked
    changed = {"latency_secs": DATASET.latency_secs * 2, "hardware": DATASET.hardware * 2}
    for times, (name, values) in enumerate(changed.items(), start=2):
        run(counting, tmp_path, seeds=1, dataset=replace(DATASET, **{name: values}))
        assert counting.asked == times * asked, name
