"""Which candidates a new device measures: every way gives new ones only, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.records import DeviceId
from tests.model_fixtures import CONFIG, make_dataset
from transfer.adapt.base import without_device
from transfer.adapt.sample_selection import (
    SELECTORS,
    Choice,
    Paired,
    choose_in_rounds,
    selector_named,
)
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.training import train

TARGET = "cpu-new"
WHOLE = make_dataset(workloads=10, candidates=12)
DATASET = without_device(WHOLE, TARGET)
POOL = np.flatnonzero(np.isfinite(DATASET.latency_secs[:, :2]).any(axis=1))


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    config = replace(CONFIG, epochs=3)
    return train(DATASET, np.arange(len(DATASET)), config=config, seed=0, devices=("cpu.a", "cpu.b")).model


def choice_of(source: FleetTLP) -> Choice:
    return Choice(dataset=DATASET, target=TARGET, pool=POOL, source_model=lambda: source, seed=0)


@pytest.mark.parametrize("name", list(SELECTORS))
@pytest.mark.parametrize("count", [0, 1, 7, 40])
def test_as_many_as_asked_for_and_none_twice(name: str, count: int, source: FleetTLP) -> None:
    rows = selector_named(name).choose(choice_of(source), count)
    assert len(set(rows.tolist())) == len(rows) == count
    assert np.isin(rows, POOL).all()


@pytest.mark.parametrize("name", list(SELECTORS))
def test_goes_on_with_what_is_left(name: str, source: FleetTLP) -> None:
    selector = selector_named(name)
    first = selector.choose(choice_of(source), 24)
    more = selector.choose(replace(choice_of(source), measured=first), len(POOL) - 24)
    assert set(first.tolist()) | set(more.tolist()) == set(POOL.tolist())
    assert not set(first.tolist()) & set(more.tolist())


def test_search_gives_every_workload_its_turn(source: FleetTLP) -> None:
    taken = np.zeros(0, dtype=np.int64)
    for _ in range(4):
        choice = replace(choice_of(source), measured=taken, measured_secs=np.full(len(taken), 1e-3))
        taken = np.concatenate([taken, selector_named("search").choose(choice, 8)])
    assert np.unique(DATASET.group[taken], return_counts=True)[1].tolist() == [8] * 4


def test_more_samples_begin_with_the_fewer(source: FleetTLP) -> None:
    few, many = (Paired().choose(choice_of(source), count) for count in (16, 48))
    np.testing.assert_array_equal(few, many[:16])


@pytest.mark.parametrize("name", list(SELECTORS))
def test_latencies_of_the_target_change_nothing(name: str, source: FleetTLP) -> None:
    selector, choice = selector_named(name), replace(choice_of(source), seed=4)
    np.testing.assert_array_equal(
        selector.choose(replace(choice, dataset=WHOLE), 20), selector.choose(choice, 20)
    )
    with pytest.raises(TransferError, match=f"{len(POOL)} of {len(POOL)} known ones were not measured"):
        selector.choose(choice, len(POOL) + 1)


def test_an_unknown_way_names_the_known_ones() -> None:
    with pytest.raises(TransferError, match="paired, search"):
        selector_named("best")


def test_eight_of_a_workload_are_taken_before_the_next(source: FleetTLP) -> None:
    """Expectations and the check need samples that can be compared with each other."""
    rows = Paired().choose(choice_of(source), 24)
    assert np.unique(DATASET.group[rows], return_counts=True)[1].tolist() == [8, 8, 8]


def test_paired_takes_what_all_source_devices_measured_first(source: FleetTLP) -> None:
    rows = Paired(per_workload=3).choose(choice_of(source), 30)
    measured = np.isfinite(DATASET.latency_secs[:, :2]).sum(axis=1)
    for group in np.unique(DATASET.group[rows]):
        both = ((DATASET.group == group) & (measured == 2)).sum()
        assert (measured[rows[DATASET.group[rows] == group]] == 2).sum() == min(3, both)


def test_a_way_that_looks_at_results_is_shown_them_a_few_at_a_time() -> None:
    truth = WHOLE.latency_secs[:, WHOLE.column(DeviceId(TARGET))]
    asked: list[int] = []

    class Watching:
        name = "search"

        def choose(self, choice: Choice, count: int) -> np.ndarray:
            asked.append(count)
            np.testing.assert_array_equal(choice.measured_secs, truth[choice.measured])
            return np.setdiff1d(choice.pool, choice.measured)[:count]

    choice = Choice(dataset=DATASET, target=TARGET, pool=POOL, source_model=pytest.fail, seed=0)
    rows = choose_in_rounds(Watching(), choice, truth, 20)
    assert asked == [8, 8, 4]
    assert rows.tolist() == np.sort(POOL)[:20].tolist()
