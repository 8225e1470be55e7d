"""A published dataset becomes part of a store, as records of others: read by every verb, run by none.

Devices get the name of the dataset before their own (`open-cpu.x86-64-v3`), which no device file can name: so
the same profile measured here stays another device. They are kept as replay devices, on which no program
runs, and whose candidates are given to no other device; modules of workloads are kept as others' until an
agent of the fleet lists the same workload. Record ids follow from the new device ids, so opening a dataset
again adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from agents.records import DeviceKind
from fleet.datasets.dataset_files import PublishedDataset, checked_rows, opened_id, with_record_ids
from fleet.store.store import Store

#: Rows of one commit.
_COMMIT_ROWS = 65_536


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
    """Decode and check every row of a dataset whose sums are right.

    Returns:
        How many records it has.

    Raises:
        DatasetRefusedError: A row is no record.
    """
    return sum(rows.num_rows for _, rows in checked_rows(dataset))


def open_dataset(dataset: PublishedDataset, store: Store) -> OpenedDataset:
    """Put a dataset into a store. All of it is checked before anything is kept.

    Durable in commits of some ten thousand records; after a kill the same call goes on.

    Raises:
        DatasetRefusedError: A row is no record: nothing was kept.
        StoreError: The store cannot be written; what was kept before stays.
    """
    verify(dataset)
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
    for name, rows in checked_rows(dataset):
        device_id = opened_id(dataset.name, name)
        waiting.setdefault(device_id, []).append(with_record_ids(device_id, rows))
        count += rows.num_rows
        if sum(one.num_rows for some in waiting.values() for one in some) >= _COMMIT_ROWS:
            appended += _commit(store, waiting)
    appended += _commit(store, waiting)
    return OpenedDataset(
        name=dataset.name,
        sha256=dataset.sha256,
        devices=tuple(opened_id(dataset.name, one) for one in sorted(dataset.devices)),
        appended=appended,
        known=count - appended,
        workloads_new=new,
        table_version=store.version,
    )


def _commit(store: Store, waiting: dict[str, list[pa.Table]]) -> int:
    done = store.append_tables({name: pa.concat_tables(some) for name, some in waiting.items()})
    waiting.clear()
    return done.appended
