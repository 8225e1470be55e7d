from __future__ import annotations

import json
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import Descriptor, DeviceId, DeviceSpec, Outcome, Record, Workload, WorkloadId
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from tests.table_fixtures import rows
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


def recorded(text: str) -> list[Record]:
    """Records of words such as `0 old 1e-3; 1 old lost`: candidate, device, seconds or outcome."""
    found = []
    for attempt, words in enumerate(filter(None, text.split(";"))):
        number, device, what = words.split()
        outcome = Outcome(what) if what in list(Outcome) else Outcome.OK
        secs = [] if outcome is not Outcome.OK or what == "-" else map(float, what.split(","))
        found.append(record_of(CANDIDATES[int(number)], device, *secs, outcome=outcome, attempt=attempt))
    return found


def test_a_workload_weighs_as_often_as_networks_use_it_and_each_device_has_its_hardware() -> None:
    dataset = build(recorded("0 old 2e-3; 0 new 1e-3; 3 old 4e-3"))
    assert dataset.hardware.shape == (2, len(dataset.spec.hardware_names))
    weights = dict(zip(dataset.workload_ids, dataset.weight.tolist(), strict=True))
    assert weights == {ONE.workload_id: 2, OTHER.workload_id: 4}


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
    # The last two only tell of the device, and leave no trace.
    dataset = build(
        recorded("0 old 1e-3; 1 old run_timeout; 1 new 1e-3; 2 old 5e-3; 2 old build_failed")
        + recorded("3 old lost; 4 idle rejected")
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


USELESS = """
                        -> there are no records; run `fleet collect` first
    0 old lost          -> none of the 1 records is ok; run `fleet
    0 old build_failed  -> none of the 1 records is ok; run `fleet
    0 old nan           -> of device 'old' is ok but its seconds
    0 old inf           -> of device 'old' is ok but its seconds
    0 old 0             -> of device 'old' is ok but its seconds
    0 old -1e-3         -> of device 'old' is ok but its seconds
    0 old -             -> of device 'old' is ok but its seconds
    0 old 1e-3,nan,1e-3 -> of device 'old' is ok but its seconds
    0 mars 1e-3         -> device 'mars', which has no spec .*known: idle, new, old
"""


@pytest.mark.parametrize(("records", "reason"), rows(USELESS))
def test_what_nothing_can_be_learnt_from_is_refused_with_the_cure(records: str, reason: str) -> None:
    with pytest.raises(DatasetError, match=reason):
        build(recorded(records))


def test_a_workload_that_nobody_knows_is_refused() -> None:
    [stranger] = gmm_candidates(gmm_workload("third"), 1)
    with pytest.raises(DatasetError, match="not in the table of workloads"):
        build([record_of(stranger, "old", 1e-3)])


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
        '{"arg_shapes": [[-3, 2], [2], [2]]}',
        '{"arg_shapes": [[HUGE], [2], [2]]}',
        '{"operator": "\\ud800"}',
        '{"networks": [["bert", HUGE]]}',
    ],
)
def test_a_workload_that_says_what_cannot_be_is_left_out(
    claims: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = json.loads(claims.replace("HUGE", "1" + "0" * 400))
    odd = replace(OTHER, **{"arg_dtypes": ("float32",) * 3, **said})
    records = [record_of(one, "old", 1e-3) for one in CANDIDATES]
    dataset = build_dataset(records, {**WORKLOADS, OTHER.workload_id: odd}, DEVICES)
    assert dataset.workload_ids == (ONE.workload_id,)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("2 candidates are left out")
    assert f"workload {OTHER.workload_id} says of itself what cannot be" in line
