"""Which candidates a new device measures: every way gives new ones only, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, make_dataset
from transfer.adapt.base import without_device
from transfer.adapt.sample_selection import (
    SELECTORS,
    Choice,
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
