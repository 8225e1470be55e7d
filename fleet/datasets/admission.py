"""A published dataset becomes part of a store, as records of others: read by every verb, run by none.

Devices get the name of the dataset before their own (`open-cpu.x86-64-v3`), which no device file can name: so
the same profile measured here stays another device. They are kept as replay devices, on which no program
runs, and whose candidates are given to no other device; modules of workloads are kept as others' until an
agent of the fleet lists the same workload. Record ids follow from the new device ids, so opening a dataset
again adds nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from agents.errors import AgentError
from agents.host.limited_reader import answer, read_limited
from agents.records import DeviceKind
from fleet.datasets.dataset_files import (
    DatasetRefusedError,
    PublishedDataset,
    checked_rows,
    opened_id,
    read_published,
    with_record_ids,
)
from fleet.store.store import Store

#: Bytes of the rows of one commit: some ten thousand real ones.
_COMMIT_BYTES = 96 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDataset:
    """What opening a dataset brought into a store."""

    name: str
    sha256: str
    #: Ids of its devices in the store.
    devices: tuple[str, ...]
    appended: int
    #: Records that the store had already.
    known: int
    workloads_new: int
    table_version: int


def verify(dataset: PublishedDataset) -> int:
    """Decode and check every row of a dataset whose sums are right, in this process: for datasets of ours.

    Returns:
        How many records it has.

    Raises:
        DatasetRefusedError: A row is no record.
    """
    return sum(rows.num_rows for _, rows in checked_rows(dataset))


def verify_apart(folder: Path, sha256: str = "") -> tuple[PublishedDataset, int]:
    """Check all of a dataset of others, first in a process of its own under a limit of memory.

    Args:
        folder: Of the dataset.
        sha256: As of `read_published`.

    Returns:
        The dataset, and how many records it has.

    Raises:
        DatasetRefusedError: It is none, or not as it was published, or not read within the limit.
    """
    try:
        answer = read_limited(__name__, str(folder), sha256)
    except AgentError as error:
        raise DatasetRefusedError(str(error)) from None
    # Only what has the sum that was checked.
    return read_published(folder, answer["sha256"]), answer["records"]


def open_dataset(folder: Path, store: Store, sha256: str = "") -> OpenedDataset:
    """Put a dataset into a store. All of it is checked before anything is kept.

    Durable in commits of some ten thousand records; after a kill the same call goes on.

    Raises:
        DatasetRefusedError: As of `verify_apart`: nothing was kept.
        StoreError: The store cannot be written; what was kept before stays.
    """
    dataset, _ = verify_apart(folder, sha256)
    new = store.put_workloads(dataset.workloads, own=False)
    for name, recorded in dataset.devices.items():
        spec = replace(
            recorded.spec,
            device_id=opened_id(dataset.name, name),
            kind=DeviceKind.REPLAY,
            tracker="",
            key="",
            replay=None,
            note=f"of the dataset {dataset.name}",
        )
        store.put_device(spec, recorded.descriptor)
    appended = count = 0
    waiting: dict[str, list[pa.Table]] = {}
    waiting_bytes = 0
    for name, rows in checked_rows(dataset):
        device_id = opened_id(dataset.name, name)
        waiting.setdefault(device_id, []).append(with_record_ids(device_id, rows))
        count += rows.num_rows
        waiting_bytes += rows.nbytes
        if waiting_bytes >= _COMMIT_BYTES:
            appended += _commit(store, waiting)
            waiting_bytes = 0
    appended += _commit(store, waiting)
    return OpenedDataset(
        name=dataset.name,
        sha256=dataset.sha256,
        devices=tuple(opened_id(dataset.name, device_id) for device_id in sorted(dataset.devices)),
        appended=appended,
        known=count - appended,
        workloads_new=new,
        table_version=store.version,
    )


def _commit(store: Store, waiting: dict[str, list[pa.Table]]) -> int:
    done = store.append_tables({name: pa.concat_tables(some) for name, some in waiting.items()})
    waiting.clear()
    return done.appended


def _verified(folder: Path, sha256: str) -> dict[str, Any]:
    dataset = read_published(folder, sha256)
    return {"sha256": dataset.sha256, "records": verify(dataset)}


if __name__ == "__main__":
    answer(lambda: _verified(Path(sys.argv[1]), sys.argv[2]), DatasetRefusedError)
