"""Which candidates a new device measures: every way gives new ones only, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.records import DeviceId
from tests.model_fixtures import CONFIG, make_dataset
from transfer.adapt.base import without_device
from transfer.adapt.sample_choice import Choice, embed
from transfer.adapt.sample_selection import (
    SELECTORS,
    HardwareAware,
    Paired,
    Stratified,
    Uncertain,
    selector_named,
)
from transfer.baselines.situation import Situation
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.evaluate.onboarding_contenders import choose_few_shot
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
    more = selector.choose(replace(choice_of(source), taken=first), len(POOL) - 24)
    assert set(first.tolist()) | set(more.tolist()) == set(POOL.tolist())
    assert not set(first.tolist()) & set(more.tolist())


def test_search_gives_every_workload_its_turn(source: FleetTLP) -> None:
    taken = np.zeros(0, dtype=np.int64)
    for _ in range(4):
        choice = replace(choice_of(source), taken=taken, taken_secs=np.full(len(taken), 1e-3))
        taken = np.concatenate([taken, selector_named("search").choose(choice, 8)])
    assert np.unique(DATASET.group[taken], return_counts=True)[1].tolist() == [8] * 4


@pytest.mark.parametrize("name", ["few-of-each", "random", "stratified", "paired", "uncertainty", "hardware"])
def test_more_samples_begin_with_the_fewer(name: str, source: FleetTLP) -> None:
    selector = selector_named(name)
    few, many = (selector.choose(choice_of(source), count) for count in (16, 48))
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
    with pytest.raises(TransferError, match="few-of-each"):
        selector_named("best")


def test_eight_of_a_workload_are_taken_before_the_next_but_by_random(source: FleetTLP) -> None:
    """Expectations and the check need samples that can be compared with each other."""
    counts = {
        name: np.unique(DATASET.group[selector_named(name).choose(choice_of(source), 24)], return_counts=True)
        for name in ("few-of-each", "paired", "random")
    }
    assert counts["few-of-each"][1].tolist() == counts["paired"][1].tolist() == [8, 8, 8]
    assert len(counts["random"][0]) > 3


def test_stratified_takes_fast_and_slow_ones_of_every_workload(source: FleetTLP) -> None:
    choice = choice_of(source)
    rows = Stratified().choose(choice, 20)
    groups, counts = np.unique(DATASET.group[rows], return_counts=True)
    assert len(groups) == 10
    assert set(counts.tolist()) == {2}
    expected = dict(zip(POOL.tolist(), choice.expected().tolist(), strict=True))
    for group in groups:
        mine = [expected[row] for row in POOL.tolist() if DATASET.group[row] == group]
        chosen = [expected[row] for row in rows.tolist() if DATASET.group[row] == group]
        assert max(chosen) == max(mine)
        assert min(chosen) == min(mine)


def test_paired_takes_what_all_source_devices_measured_first(source: FleetTLP) -> None:
    rows = Paired(per_workload=3).choose(choice_of(source), 30)
    measured = np.isfinite(DATASET.latency_secs[:, :2]).sum(axis=1)
    for group in np.unique(DATASET.group[rows]):
        both = ((DATASET.group == group) & (measured == 2)).sum()
        assert (measured[rows[DATASET.group[rows] == group]] == 2).sum() == min(3, both)


def test_uncertainty_takes_what_source_devices_disagree_on(source: FleetTLP) -> None:
    group = DATASET.group
    latency = DATASET.latency_secs.copy()
    # Two source devices agree on everything but two candidates of each workload, which they put in opposite
    # order.
    for one in range(10):
        rows = np.flatnonzero(group == one)
        latency[rows, 0] = latency[rows, 1] = np.arange(1, len(rows) + 1) * 1e-3
        latency[rows[[0, -1]], 1] = latency[rows[[-1, 0]], 1]
    told = replace(DATASET, latency_secs=latency)
    choice = replace(choice_of(source), dataset=told, pool=np.arange(len(DATASET)))
    rows = Uncertain(per_workload=2).choose(choice, 20)
    assert set(rows.tolist()) == {
        int(f(np.flatnonzero(group == one))) for one in range(10) for f in (min, max)
    }


def begun_first(dataset: Dataset, *, draws: int = 200) -> np.ndarray:
    """(workloads,) share of draws in which a workload is the first that the new device measures."""
    counts = np.zeros(len(dataset.workload_ids))
    for seed in range(draws):
        choice = Choice(
            dataset=dataset, target=TARGET, pool=np.arange(len(dataset)), source_model=no_model, seed=seed
        )
        counts[dataset.group[HardwareAware().choose(choice, 1)[0]]] += 1
    return counts / draws


def no_model() -> FleetTLP:
    raise AssertionError("source devices measured everything")


def disagreeing(on: dict[int, int], hardware: list[list[float]], flops: list[float]) -> Dataset:
    """Three sources that agree, but for workloads that one of them orders the other way round."""
    whole = make_dataset(workloads=3, candidates=12)
    ladder = 1e-3 * (1 + np.arange(len(whole)) % 12)[:, None]
    secs = np.concatenate([np.repeat(ladder, 3, axis=1), np.full((len(whole), 1), np.nan)], axis=1)
    for workload, source in on.items():
        rows = np.flatnonzero(whole.group == workload)
        secs[rows, source] = secs[rows[::-1], source]
    return replace(
        whole,
        device_ids=(*map(DeviceId, ("one", "two", "far")), DeviceId(TARGET)),
        latency_secs=secs,
        failed=np.zeros(secs.shape, dtype=np.bool_),
        hardware=np.array(hardware, dtype=np.float32),
        flops=np.array(flops),
    )


ALIKE = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]


def test_hardware_begins_with_workloads_that_sources_disagree_on() -> None:
    share = begun_first(disagreeing({1: 1}, ALIKE, [1.0, 1.0, 1.0]))
    assert share[1] > 0.9


def test_hardware_prefers_the_heavier_of_two_that_they_disagree_on() -> None:
    share = begun_first(disagreeing({0: 1, 1: 1}, ALIKE, [1e6, 1e9, 1.0]))
    # By the rank of the FLOPs: twice to thrice as often.
    assert share[1] > 1.3 * share[0] > 0


def test_hardware_does_not_listen_to_a_source_unlike_the_new_device() -> None:
    far = [[1.0, 0.0], [1.0, 0.1], [9.0, 9.0], [1.0, 0.0]]
    alike, unlike = (
        begun_first(disagreeing({0: 2, 1: 1}, hardware, [1.0, 1.0, 1.0])) for hardware in (ALIKE, far)
    )
    assert alike[0] == pytest.approx(alike[1], abs=0.15)
    assert unlike[1] > 2 * unlike[0]


def test_clusters_are_spread_over_unlike_candidates(source: FleetTLP) -> None:
    x = embed(source, DATASET, POOL)
    clustered = selector_named("kmeans").choose(choice_of(source), 12)
    random = selector_named("random").choose(choice_of(source), 12)

    def farthest(rows: np.ndarray) -> float:
        chosen = x[np.isin(POOL, rows)]
        return float(np.mean(np.min(((x[:, None] - chosen[None]) ** 2).sum(axis=2), axis=1)))

    assert farthest(clustered) < farthest(random)


def test_a_way_that_looks_at_results_is_shown_them_a_few_at_a_time() -> None:
    truth = WHOLE.latency_secs[:, WHOLE.column(DeviceId(TARGET))]
    asked: list[int] = []

    class Watching:
        name = "search"

        def choose(self, choice: Choice, count: int) -> np.ndarray:
            asked.append(count)
            np.testing.assert_array_equal(choice.taken_secs, truth[choice.taken])
            return np.setdiff1d(choice.pool, choice.taken)[:count]

    situation = Situation(
        dataset=DATASET,
        target=TARGET,
        sources=("one",),
        source_rows=np.arange(len(DATASET)),
        test=np.arange(0),
        seed=0,
    )
    rows = choose_few_shot(Watching(), situation, POOL, truth, 20, no_model)
    assert asked == [8, 8, 4]
    assert rows.tolist() == np.sort(POOL)[:20].tolist()
