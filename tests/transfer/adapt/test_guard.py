"""`auto`: its first strategy, checked on samples that are held back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, make_dataset, trained
from tests.strategy_fixtures import backwards, task_of
from transfer.adapt.base import Adapted, FewShotTask, Regime, without_device
from transfer.adapt.guard import (
    Auto,
    MultiTask,
    Scratch,
    checking_view,
    folds,
    held_back_scores,
    judge,
)
from transfer.adapt.maml import Maml
from transfer.adapt.nearest import Nearest
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP

TARGET = "cpu-new"
DATASET = make_dataset(workloads=9, candidates=12)
ROWS = np.arange(len(DATASET))
SHORT = replace(CONFIG, epochs=4)
LATENCY = DATASET.latency_secs[:, DATASET.column(TARGET)]


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    return trained(without_device(DATASET, TARGET), epochs=12)


def run(guarded: Auto, source: FleetTLP | None, few_shot: np.ndarray) -> Adapted:
    return guarded.adapt(task_of(source, DATASET, TARGET, few_shot, ROWS, SHORT))


def measured(count: int) -> np.ndarray:
    """Rows with a latency on the target, workload after workload."""
    return np.flatnonzero(np.isfinite(LATENCY))[:count]


def test_a_harmful_first_choice_is_replaced(source: FleetTLP) -> None:
    adapted = run(Auto(strategies=(backwards(), Nearest(), Scratch())), source, measured(90))
    check = adapted.notes["check"]
    assert check["chosen"] == "backwards"
    assert adapted.notes["strategy"] == check["taken"] in {"nearest", "scratch"}
    assert "does not beat" in check["says"]
    assert check["agreement"]["backwards"] < check["agreement"][check["taken"]]
    assert "of_strategy" in adapted.notes


def test_it_takes_what_can_work_with_what_there_is(source: FleetTLP) -> None:
    adapted = run(Auto(strategies=(MultiTask(), Nearest(), Scratch())), source, measured(0))
    assert adapted.notes["strategy"] == "nearest"
    assert "too few" in adapted.notes["check"]
    assert TARGET in adapted.model.device_ids
    without_source = run(Auto(strategies=(MultiTask(), Nearest(), Scratch())), None, measured(40))
    assert without_source.notes["strategy"] == "scratch"
    with pytest.raises(TransferError, match="measure at least two candidates of one workload"):
        run(Auto(strategies=(MultiTask(), Scratch())), None, measured(0))


@pytest.mark.parametrize(
    ("rival", "says"),
    [
        # Better on each of eight workloads, by unlike amounts; as much in the mean, but by one workload; on
        # fewer workloads than can tell; worse.
        (0.7 + 0.03 * np.arange(1, 9), "is taken"),
        (np.array([0.7] * 7 + [1.78]), "too few to be sure"),
        (np.array([0.8, 0.9, 1.0]), "too few to be sure"),
        (np.full(8, 0.6), "is not beaten"),
    ],
)
def test_the_first_stays_unless_another_is_better_beyond_luck(rival: np.ndarray, says: str) -> None:
    verdict = judge({"rival": rival, "first": np.full(len(rival), 0.7)}, "first")
    assert says in verdict["says"]
    assert verdict["taken"] == ("rival" if says == "is taken" else "first")
    assert verdict["beaten_by"] == ([] if says == "is not beaten" else ["rival"])
    assert (verdict["workloads"], verdict["chosen"]) == (len(rival), "first")


def test_the_luckiest_of_several_rivals_has_to_be_clearer_than_one_alone() -> None:
    first = np.full(8, 0.7)
    ahead = first + np.array([0.1, -0.02, 0.1, 0.05, 0.02, 0.1, -0.02, 0.1])
    assert judge({"first": first, "b": ahead}, "first")["taken"] == "b"
    others = dict.fromkeys("cdefghi", first)
    assert judge({"first": first, "b": ahead, **others}, "first")["taken"] == "first"
    # Of two that are clear the better one.
    clear = {"b": first + 0.1, "c": first + 0.2}
    assert judge({"first": first, **clear}, "first")["taken"] == "c"


@pytest.mark.parametrize("regime", list(Regime))
def test_samples_held_back_are_asked_as_the_head_will_be(source: FleetTLP, regime: Regime) -> None:
    rows = measured(90)
    group = DATASET.group[rows]
    parts = folds(group, regime, seed=0)
    assert (np.sum(parts, axis=0) == 1).all(), "each sample is held back once"
    held = parts[0]
    shared = np.intersect1d(group[~held], group[held])
    view = checking_view(DATASET, rows[held], regime)
    shows = bool(np.isfinite(view.latency_secs[rows[held]]).any())
    expected = {
        Regime.DEVICE_NEW: (True, True),
        Regime.CANDIDATE_NEW: (True, False),
        Regime.BOTH_NEW: (False, False),
    }
    assert (len(shared) > 0, shows) == expected[regime]
    # Of known workloads what source devices measured of other candidates stays.
    assert np.isfinite(view.latency_secs[rows[~held]]).any()
    seen: list[FewShotTask] = []

    class Watched(Nearest):
        def adapt(self, task: FewShotTask) -> Adapted:
            seen.append(task)
            return Nearest.adapt(self, task)

    task = task_of(source, DATASET, TARGET, rows, ROWS, SHORT)
    scores = held_back_scores(Watched(), task, held, regime)
    assert scores.shape == rows[held].shape
    [others] = seen
    assert not set(others.few_shot) & set(rows[held])
    hidden = set(task.source_rows) - set(others.source_rows)
    assert hidden == (set(rows[held]) if regime is Regime.CANDIDATE_NEW else set())


def test_a_check_does_not_wait_for_a_start_of_meta_learning(source: FleetTLP, tmp_path: Path) -> None:
    maml = Maml(outer_steps=2, steps=(2,), starts=tmp_path)
    guarded = Auto(strategies=(Nearest(), maml, Scratch()))
    assert set(run(guarded, source, measured(90)).notes["check"]["agreement"]) == {"nearest", "scratch"}
    maml.start(source, DATASET, SHORT, 0)
    assert set(run(guarded, source, measured(90)).notes["check"]["agreement"]) == {
        "nearest",
        "maml",
        "scratch",
    }


@pytest.mark.parametrize("regime", list(Regime))
def test_heads_that_know_the_check_are_no_rivals(source: FleetTLP, regime: Regime) -> None:
    guarded = Auto(strategies=(Nearest(), MultiTask(), Scratch()), regime=regime)
    check = run(guarded, source, measured(90)).notes["check"]
    rivals = {"scratch"} if regime is Regime.CANDIDATE_NEW else {"scratch", "multitask"}
    assert set(check["agreement"]) == {"nearest", *rivals}
