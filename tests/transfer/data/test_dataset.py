from __future__ import annotations

import json
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Descriptor, DeviceId, DeviceSpec, Outcome, Record, Workload, WorkloadId
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from transfer.data.dataset import Dataset, build_dataset
from transfer.errors import DatasetError

ONE, OTHER = gmm_workload("one"), gmm_workload("other", networks=("bert", "resnet"))
CANDIDATES = gmm_candidates(ONE, 3) + gmm_candidates(OTHER, 2)
WORKLOADS: dict[WorkloadId, Workload] = {one.workload_id: one for one in (ONE, OTHER)}
DEVICES: dict[DeviceId, tuple[DeviceSpec, Descriptor]] = {
    DeviceId(name): cpu_device(name, mcpu)
    for name, mcpu in (("old", "x86-64-v2"), ("new", "x86-64-v4"), ("idle", "x86-64-v3"))
}


def build(records: list[Record]) -> Dataset:
    return build_dataset(records, WORKLOADS, DEVICES)


def row(dataset: Dataset, number: int) -> int:
    return dataset.candidate_ids.index(CANDIDATES[number].candidate_id)


def full() -> Dataset:
    records = [
        record_of(candidate, device, secs * (number + 1))
        for device, secs in (("old", 2e-3), ("new", 1e-3))
        for number, candidate in enumerate(CANDIDATES)
    ]
    return build(records)


def test_records_of_several_devices_meet_in_one_row() -> None:
    dataset = full()
    assert len(dataset) == 5
    assert dataset.device_ids == ("new", "old")
    assert set(dataset.workload_ids) == set(WORKLOADS)
    for number in range(5):
        assert dataset.latency_secs[row(dataset, number)].tolist() == [
            1e-3 * (number + 1),
            2e-3 * (number + 1),
        ]
        workload_id = dataset.workload_ids[dataset.group[row(dataset, number)]]
        assert workload_id == CANDIDATES[number].workload_id
    assert not dataset.failed.any()
    assert dataset.hardware.shape == (2, len(dataset.spec.hardware_names))
    assert dict(zip(dataset.workload_ids, dataset.weight.tolist(), strict=True)) == {
        ONE.workload_id: 2,
        OTHER.workload_id: 4,
    }


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["old", "new"]), st.floats(1e-6, 1)), min_size=1)
)
def test_medians_of_any_records_in_any_order_agree_with_a_slow_reference(
    rows: list[tuple[int, str, float]],
) -> None:
    records = [
        record_of(CANDIDATES[number], device, secs, 3 * secs, attempt=place)
        for place, (number, device, secs) in enumerate(rows)
    ]
    dataset, backward = build(records), build(records[::-1])
    assert dataset.candidate_ids == backward.candidate_ids
    np.testing.assert_array_equal(dataset.features.numbers, backward.features.numbers)
    for number in {number for number, _, _ in rows}:
        for column, device in enumerate(dataset.device_ids):
            # Of each record its fastest repeat, of several records the median.
            known = [secs for other, name, secs in rows if (other, name) == (number, device)]
            found = dataset.latency_secs[row(dataset, number), column]
            assert found == median(known) if known else np.isnan(found)


def test_failures_are_told_without_a_latency() -> None:
    dataset = build(
        [
            record_of(CANDIDATES[0], "old", 1e-3),
            record_of(CANDIDATES[1], "old", outcome=Outcome.RUN_TIMEOUT),
            record_of(CANDIDATES[1], "new", 1e-3),
            record_of(CANDIDATES[2], "old", 5e-3),
            record_of(CANDIDATES[2], "old", outcome=Outcome.BUILD_FAILED, attempt=1),
            # These only tell of the device, and leave no trace.
            record_of(CANDIDATES[3], "old", outcome=Outcome.LOST),
            record_of(CANDIDATES[4], "idle", outcome=Outcome.REJECTED),
        ]
    )
    assert dataset.device_ids == ("new", "old")
    old = dataset.column("old")
    assert dataset.failed[:, old].tolist() == [number == row(dataset, 1) for number in range(3)]
    assert np.isnan(dataset.latency_secs[row(dataset, 1), old])
    assert not dataset.failed[row(dataset, 2), old], "a candidate that ran once can run"
    assert dataset.rows_of("old").tolist() == sorted([row(dataset, 0), row(dataset, 2)])
    assert dataset.rows_of("new").tolist() == [row(dataset, 1)]
    labels = dataset.labels()[:, old]
    assert labels[row(dataset, 0)] == 1
    assert np.isnan(labels[row(dataset, 1)])
    assert labels[row(dataset, 2)] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([], "there are no records; run `fleet collect` first"),
        *(
            ([record_of(CANDIDATES[0], "old", outcome=outcome)], "none of the 1 records is ok; run `fleet")
            for outcome in (Outcome.LOST, Outcome.BUILD_FAILED)
        ),
        *(
            ([record_of(CANDIDATES[0], "old", *secs)], "of device 'old' is ok but its seconds")
            for secs in ((np.nan,), (np.inf,), (0.0,), (-1e-3,), (), (1e-3, np.nan, 1e-3))
        ),
        (
            [record_of(CANDIDATES[0], "mars", 1e-3)],
            r"device 'mars', which has no spec .*known: idle, new, old",
        ),
        (
            [record_of(gmm_candidates(gmm_workload("third"), 1)[0], "old", 1e-3)],
            "not in the table of workloads",
        ),
    ],
)
def test_what_nothing_can_be_learnt_from_is_refused_with_the_cure(records: list[Record], found: str) -> None:
    with pytest.raises(DatasetError, match=found):
        build(records)


def test_what_cannot_be_read_is_left_out_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    """One bad row of an older import kept a whole store from being learnt from."""
    trace = json.loads(CANDIDATES[0].trace)
    bad = []
    for place in range(2):
        instructions, decisions = trace
        bad.append(replace(CANDIDATES[0], trace=json.dumps([instructions, decisions[place + 1 :]])))
    strangers = [record_of(one, device, 1e-4) for one in bad for device in ("old", "idle")]
    records = [record_of(one, "old", 1e-3 * (2 + place)) for place, one in enumerate(CANDIDATES)]
    plain = build(records)
    assert not caplog.records
    # Whoever stands first or last, the others are what they are without.
    dataset = build([*strangers[:2], *records, *strangers[2:]])
    assert dataset.candidate_ids == plain.candidate_ids
    assert dataset.device_ids == plain.device_ids == ("old",)
    np.testing.assert_array_equal(dataset.latency_secs, plain.latency_secs)
    np.testing.assert_array_equal(dataset.features.summary, plain.features.summary)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"2 candidates are left out: their traces cannot be read; the first: candidate {bad[0].candidate_id}"
    )
    with pytest.raises(DatasetError, match="none of the 4 records is ok and can be read"):
        build(strangers)


@pytest.mark.parametrize(
    "claims",
    [
        {"arg_shapes": ((-3, 2), (2,), (2,))},
        {"arg_shapes": ((10**400,), (2,), (2,))},
        {"operator": "\ud800"},
        {"networks": (("bert", 10**400),)},
    ],
)
def test_a_workload_that_says_what_cannot_be_is_left_out(
    claims: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    odd = replace(OTHER, **{"arg_dtypes": ("float32",) * 3, **claims})
    records = [record_of(one, "old", 1e-3) for one in CANDIDATES]
    dataset = build_dataset(records, {**WORKLOADS, OTHER.workload_id: odd}, DEVICES)
    assert dataset.workload_ids == (ONE.workload_id,)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("2 candidates are left out")
    assert f"workload {OTHER.workload_id} says of itself what cannot be" in line
