"""Which records of a store become labels, and what a judge hears of them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from agents.records import NOISE, DeviceId, Outcome, Record
from fleet.models.training_rows import LEAST_PAIRS, JudgedRows, counting_rows
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.dataset_fixtures import again, changed, cpu_device, gmm_candidates, gmm_workload, record_of
from tests.table_fixtures import cells
from transfer.data.dataset import Dataset
from transfer.errors import DatasetError

ONE, OTHER = gmm_workload("one"), gmm_workload("other", networks=("bert", "resnet"))
CANDIDATES = gmm_candidates(ONE, 7) + gmm_candidates(OTHER, 4)
DEVICES = ("box", "lab", "idle")


#: A device, the place of the candidate that it measured, and what is not usual of the record.
MEASURED = """
box 0 |
box 1 |
box 2 |
box 0 | attempt: 1, origin: remeasure, run_secs: [5.0e-4]
box 3 | attempt: 1, origin: remeasure, run_secs: [7.0e-3]
box 3 | quality: '{"suspect":true}'
box 4 | quality: '{"suspect":true}'
box 5 | outcome: run_failed, run_secs: []
box 5 | attempt: 2, origin: remeasure, outcome: run_timeout, run_secs: []
box 6 | outcome: rejected
box 7 | outcome: lost, run_secs: []
box 7 | attempt: 1
# The same candidate after the host changed: the newer one counts, unless it says nothing.
box 8 |
box 8 | environment_id: f, run_secs: [3.0e-3], measured_at: 9.0e+9
box 9 | environment_id: f, outcome: rejected, measured_at: 9.0e+9
box 9 |
lab 2 |
lab 3 |
lab 4 |
lab 5 |
lab 6 |
lab 7 |
lab 8 |
lab 2 | attempt: 1, origin: noise
lab 3 | environment_id: f, quality: '{"suspect":true}'
"""


def measured() -> list[Record]:
    """Failures, suspects, second measurements and environments; box takes a millisecond more than lab."""
    found = []
    for [what, changes] in cells(MEASURED):
        device, place = what.split()
        secs = 1e-3 * (int(place) + (device == "box"))
        found.append(changed(record_of(CANDIDATES[int(place)], device, secs, 9e-3), changes))
    return found


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    records = measured()
    with Store.open(folder) as writer:
        for name in DEVICES:
            writer.put_device(*cpu_device(name))
        writer.put_workloads([ONE, OTHER])
        # Several data files a device.
        for start in range(0, len(records), 8):
            writer.append(records[start : start + 8])
    return folder


def millis_on(dataset: Dataset, device: str) -> list[float | None]:
    """The latency of each candidate in ms, None where there is none."""
    column = dataset.latency_secs[:, dataset.column(device)]
    by_id = dict(zip(dataset.candidate_ids, column.tolist(), strict=True))
    latencies = [by_id.get(one.candidate_id, math.nan) for one in CANDIDATES]
    return [None if math.isnan(secs) else round(secs * 1e3, 6) for secs in latencies]


def test_of_the_records_of_a_candidate_the_one_that_counts_becomes_its_label(store: Path) -> None:
    dataset = load_snapshot(Store.read(store)).dataset
    assert dataset.device_ids == ("box", "lab")
    assert set(dataset.candidate_ids) == {one.candidate_id for one in CANDIDATES[:10]}
    assert millis_on(dataset, "box") == [1, 2, 3, 7, 5, None, None, 8, 3, 9, None]
    assert millis_on(dataset, "lab") == [None, None, 2, 3, 4, 5, 6, 7, 8, None, None]
    failed = dataset.failed[:, dataset.column("box")]
    assert np.flatnonzero(failed).tolist() == [dataset.candidate_ids.index(CANDIDATES[5].candidate_id)]


def test_a_judge_hears_of_noise_and_of_candidates_that_no_model_chose(store: Path) -> None:
    pairs = [
        record_of(msgspec.structs.replace(one, origin=NOISE), device, secs, attempt=attempt)
        for device, candidates, slower in (
            ("lab", CANDIDATES[2:10], 1.02e-3),
            ("box", CANDIDATES[: LEAST_PAIRS - 1], 1.5e-3),  # too few
        )
        for one in candidates
        for attempt, secs in ((3, 1e-3), (4, slower))
    ]
    ranked = msgspec.structs.replace(gmm_candidates(ONE, 8)[-1], origin="model")
    # Of a device on which nothing but a lost one is there, the dataset has no column.
    lost = record_of(CANDIDATES[0], "idle", outcome=Outcome.LOST)
    with Store.open(store) as writer:
        writer.append([record_of(ranked, "box", 1e-3), *pairs, lost])
    dataset = load_snapshot(Store.read(store), judged=(judged := JudgedRows())).dataset
    not_ranked = judged.not_ranked(dataset)
    box = dataset.column("box")
    rows = [dataset.candidate_ids.index(one.candidate_id) for one in (CANDIDATES[0], CANDIDATES[1], ranked)]
    assert np.isfinite(dataset.latency_secs[rows, box]).all()
    assert not_ranked[rows, box].tolist() == [True, True, False]
    assert judged.floors == {"lab": pytest.approx(0.02, rel=0.1)}


def test_the_rows_of_a_version_stay_what_they_were(store: Path) -> None:
    with Store.open(store) as writer:
        version = writer.version
        before = list(counting_rows(writer, DeviceId("box"), version))
        better = again(record_of(CANDIDATES[4], "box", 1e-4))
        writer.append([better, record_of(CANDIDATES[10], "box", 1e-3)])
        writer.flush()
        writer.upkeep(retention_hours=1)
        assert list(counting_rows(writer, DeviceId("box"), version)) == before
        after = {row.record_id for row in counting_rows(writer, DeviceId("box"), writer.version)}
    assert better.record_id in after
    assert len(after) == len(before) + 1


def test_what_cannot_be_learnt_from_names_its_record(store: Path) -> None:
    bad = record_of(CANDIDATES[10], "box", 0.0)
    with Store.open(store) as writer:
        writer.append([bad])
        writer.flush()
        with pytest.raises(DatasetError, match=rf"{bad.record_id} of device 'box' .* \[0\.0\]"):
            load_snapshot(writer)
