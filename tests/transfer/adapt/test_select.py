"""Which candidates a new device measures: every way gives new ones only, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import make_dataset, trained
from transfer.adapt.base import without_device
from transfer.adapt.sample_selection import (
    SELECTORS,
    Choice,
)
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP

TARGET = "cpu-new"
WHOLE = make_dataset(workloads=10, candidates=12)
DATASET = without_device(WHOLE, TARGET)
POOL = np.flatnonzero(np.isfinite(DATASET.latency_secs[:, :2]).any(axis=1))


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    return trained(DATASET, epochs=3)


def choice_of(source: FleetTLP) -> Choice:
    return Choice(dataset=DATASET, target=TARGET, pool=POOL, source_model=lambda: source, seed=0)


@pytest.mark.parametrize("name", list(SELECTORS))
def test_as_many_as_asked_for_none_twice_and_then_those_that_are_left(name: str, source: FleetTLP) -> None:
    selector, choice = SELECTORS[name], choice_of(source)
    for count in (0, 1, 7, 24):
        first = selector.choose(choice, count).tolist()
        assert len(set(first)) == len(first) == count
    more = selector.choose(replace(choice, measured=np.array(first)), len(POOL) - 24)
    assert sorted([*first, *more.tolist()]) == sorted(POOL.tolist())


@pytest.mark.parametrize("name", list(SELECTORS))
def test_latencies_of_the_target_change_nothing(name: str, source: FleetTLP) -> None:
    selector, choice = SELECTORS[name], replace(choice_of(source), seed=4)
    np.testing.assert_array_equal(
        selector.choose(replace(choice, dataset=WHOLE), 20), selector.choose(choice, 20)
    )
    with pytest.raises(TransferError, match=f"{len(POOL)} of {len(POOL)} known ones were not measured"):
        selector.choose(choice, len(POOL) + 1)
