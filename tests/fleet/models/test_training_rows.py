"""A dataset read as columns against the same made of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.records import NOISE, DeviceId, Outcome, Record, WorkloadId
from fleet.models.training_rows import JudgedRows, counting_rows
from fleet.models.versions import load_snapshot
from fleet.store.noise import settled
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from tests.dataset_fixtures import again, cpu_device, gmm_candidates, gmm_workload, record_of
from transfer.data.dataset import Dataset
from transfer.data.joined_records import build_dataset
from transfer.errors import DatasetError

ONE, OTHER = gmm_workload("one"), gmm_workload("other", networks=("bert", "resnet"))
CANDIDATES = gmm_candidates(ONE, 7) + gmm_candidates(OTHER, 4)
DEVICES = ("box", "lab", "idle")
SUSPECT = '{"suspect":true}'


def measured() -> list[Record]:
    """Failures, suspects, second measurements and environments on two devices, each candidate its story."""
    box = [record_of(one, "box", (1 + place) * 1e-3, 9e-3) for place, one in enumerate(CANDIDATES)]
    lab = [record_of(one, "lab", (2 + place) * 1e-3) for place, one in enumerate(CANDIDATES[2:9])]
    return [
        *box[:3],
        again(box[0], run_secs=(5e-4,)),
        again(msgspec.structs.replace(box[3], outcome=Outcome.OK), run_secs=(7e-3,)),
        msgspec.structs.replace(box[3], quality=SUSPECT),
        msgspec.structs.replace(box[4], quality=SUSPECT),
        msgspec.structs.replace(box[5], outcome=Outcome.RUN_FAILED, run_secs=()),
        again(box[5], attempt=2, outcome=Outcome.RUN_TIMEOUT, run_secs=()),
        msgspec.structs.replace(box[6], outcome=Outcome.REJECTED),
        msgspec.structs.replace(box[7], outcome=Outcome.LOST, run_secs=()),
        msgspec.structs.replace(box[7], attempt=1),
        # The same candidate after the host changed: the newer one counts, unless it says nothing.
        box[8],
        msgspec.structs.replace(box[8], environment_id="f", run_secs=(3e-3,), measured_at=9e9),
        msgspec.structs.replace(box[9], environment_id="f", outcome=Outcome.REJECTED, measured_at=9e9),
        box[9],
        *lab,
        again(lab[0], origin="noise"),
        msgspec.structs.replace(lab[1], environment_id="f", quality=SUSPECT),
    ]


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


def from_records(reader: StoreReader, workload_ids: tuple[WorkloadId, ...] = ()) -> Dataset:
    """The dataset by way of `Record`."""
    records = [
        record for record in reader.records() if not workload_ids or record.workload_id in workload_ids
    ]
    devices = {
        name: (entry.spec, entry.descriptor)
        for name, entry in reader.devices().items()
        if entry.descriptor is not None
    }
    last: dict[tuple[str, str], float] = {}
    for one in records:
        key = one.device_id, one.environment_id
        last[key] = max(one.measured_at, last.get(key, 0.0))
    newest: dict[tuple[str, str], Record] = {}
    silent = (Outcome.LOST, Outcome.REJECTED)
    for one in sorted(settled(records), key=lambda one: last[one.device_id, one.environment_id]):
        if one.outcome not in silent or (one.device_id, one.candidate_id) not in newest:
            newest[one.device_id, one.candidate_id] = one
    return build_dataset(newest.values(), reader.workloads(), devices)


def assert_equal(found: Dataset, expected: Dataset) -> None:
    for name in ("candidate_ids", "workload_ids", "device_ids", "spec"):
        assert getattr(found, name) == getattr(expected, name)
    for name in ("group", "latency_secs", "failed", "flops", "weight", "hardware"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("categories", "numbers", "mask", "workload", "summary"):
        np.testing.assert_array_equal(getattr(found.features, name), getattr(expected.features, name))


def test_columns_give_the_dataset_that_records_give(store: Path) -> None:
    reader = Store.read(store)
    found = load_snapshot(reader).dataset
    assert_equal(found, from_records(reader))
    # 6 never gave a number on box and was measured on lab; all the others count on box, 5 as a failure.
    box = dict(zip(found.candidate_ids, found.latency_secs[:, found.column("box")].tolist(), strict=True))
    ids = [one.candidate_id for one in CANDIDATES]
    assert set(found.candidate_ids) == set(ids[:10])
    assert (box[ids[0]], box[ids[3]], box[ids[8]], box[ids[9]]) == (1e-3, 7e-3, 3e-3, 9e-3)
    assert found.failed[found.candidate_ids.index(ids[5]), found.column("box")]
    assert found.device_ids == ("box", "lab")


def test_what_a_judge_asks_takes_no_further_look_at_the_rows(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [
        record_of(msgspec.structs.replace(one, origin=NOISE), "lab", secs, attempt=attempt)
        for one in CANDIDATES[2:10]
        for attempt, secs in ((1, 1e-3), (2, 1.02e-3))
    ]
    ranked = msgspec.structs.replace(gmm_candidates(ONE, 8)[-1], origin="model")
    # Of a device on which nothing but a lost one is there, the dataset has no column.
    lost = record_of(CANDIDATES[0], "idle", outcome=Outcome.LOST)
    with Store.open(store) as writer:
        writer.append([record_of(ranked, "box", 1e-3), *pairs, lost])
    reader, asked = Store.read(store), []
    columns = StoreReader.columns

    def watched(self: StoreReader, names: Sequence[str], **options: Any) -> Any:
        asked.append((*options["device_ids"], "trace" in names))
        return columns(self, names, **options)

    monkeypatch.setattr(StoreReader, "columns", watched)
    dataset = load_snapshot(reader, judged=(judged := JudgedRows())).dataset
    not_ranked = judged.not_ranked(dataset)
    assert asked == [(device, is_long) for device in sorted(DEVICES) for is_long in (False, True)]
    assert_equal(dataset, load_snapshot(reader).dataset)
    box = dataset.column("box")
    rows = [dataset.candidate_ids.index(one.candidate_id) for one in (CANDIDATES[0], CANDIDATES[1], ranked)]
    assert np.isfinite(dataset.latency_secs[rows, box]).all()
    assert not_ranked[rows, box].tolist() == [True, True, False]
    assert judged.floors == {"lab": pytest.approx(0.02, rel=0.1)}


def test_only_some_workloads(store: Path) -> None:
    reader = Store.read(store)
    chosen = (OTHER.workload_id,)
    found = load_snapshot(reader, workload_ids=chosen).dataset
    assert found.workload_ids == chosen
    assert_equal(found, from_records(reader, chosen))


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
