"""Devices lend each other the workloads that one of them did not measure, in a training and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, DEVICES, make_dataset, with_latency
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.train.rows import with_lent_latencies
from transfer.train.training import train

DATASET = make_dataset()
EVERY = np.arange(len(DATASET.group))


def without(dataset: Dataset, device: str, workloads: list[int], kept: int = 0) -> Dataset:
    """The dataset without what a device measured of some workloads, but for some candidates of each."""
    for workload in workloads:
        gone = np.flatnonzero(dataset.group == workload)[kept:]
        dataset = with_latency(dataset, gone, device, np.nan)
    return dataset


@pytest.mark.parametrize("kept", [0, 1])
def test_the_most_alike_device_that_measured_a_workload_lends_it(kept: int) -> None:
    near, own, far = DEVICES[:3]
    # Devices on a line, so that it is known who is alike.
    hardware = np.zeros_like(DATASET.hardware)
    hardware[[DATASET.column(one) for one in (near, own, far)], 0] = (1.0, 0.0, 5.0)
    lacking = without(replace(DATASET, hardware=hardware), own, [0, 1], kept)
    lacking = without(lacking, near, [1])
    found = with_lent_latencies(lacking, EVERY, DEVICES).latency_secs
    for workload, lender in ((0, near), (1, far)):
        rows = DATASET.group == workload
        of_lender = lacking.latency_secs[rows, lacking.column(lender)]
        assert np.array_equal(found[rows, lacking.column(own)], of_lender, equal_nan=True), workload
    others = ~np.isin(DATASET.group, [0, 1])
    assert np.array_equal(found[others], lacking.latency_secs[others], equal_nan=True)


def test_nothing_is_lent_by_other_devices_or_from_other_rows() -> None:
    own, lender = DEVICES[:2]
    lacking = without(DATASET, own, [0, 1])
    found = with_lent_latencies(lacking, np.flatnonzero(DATASET.group != 0), (own, lender))
    column = lacking.column(own)
    assert np.isnan(found.latency_secs[DATASET.group == 0, column]).all()
    assert np.isfinite(found.latency_secs[DATASET.group == 1, column]).any()
    alone = with_lent_latencies(lacking, EVERY, (own,))
    assert alone is lacking
    assert with_lent_latencies(DATASET, EVERY, DEVICES) is DATASET


def test_a_device_that_measured_nothing_is_trained_only_where_others_lend() -> None:
    own = DEVICES[0]
    lacking = without(DATASET, own, list(range(len(DATASET.workload_ids))))
    with pytest.raises(TransferError, match="cannot train a head"):
        train(lacking, EVERY, config=CONFIG, seed=0, devices=DEVICES)
    model = train(lacking, EVERY, config=replace(CONFIG, lends=True), seed=0, devices=DEVICES).model
    assert own in model.device_ids


def test_where_nothing_is_lacking_a_training_is_what_it_was() -> None:
    plain, lending = (
        train(DATASET, EVERY, config=replace(CONFIG, lends=lends), seed=0).model for lends in (False, True)
    )
    block = DATASET.features.take(EVERY)
    assert np.array_equal(plain.score(block, DEVICES[0]), lending.score(block, DEVICES[0]))
