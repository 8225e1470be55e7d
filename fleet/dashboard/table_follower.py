"""Follows the records table in a thread of its own while somebody looks, a little at a time.

The coordinator shares the process, so the thread works no longer than it pauses, and starts with the first
visitor. Devices whose rows are read already are shown; the others are "loading". New commits cost what they
added; after anything unexpected (`StaleError`) all rows are read again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from agents.records import DeviceId, WorkloadId
from fleet.dashboard.device_digest import DIGEST_COLUMNS, DeviceDigest, WorkloadCell
from fleet.dashboard.workload_view import facts_of
from fleet.errors import FleetError
from fleet.store.delta.changes import StaleError, changes_since
from fleet.store.reader import RECORDS, RowParts, StoreReader
from fleet.store.store import Store

_LOG = logging.getLogger(__name__)

#: Seconds between two looks for a new version, after which nobody looks any more, and after which what was
#: read is let go of: the next visitor waits while all is read again.
FOLLOW_SECS, IDLE_SECS, FORGET_SECS = 2.0, 120.0, 3600.0
#: Least pause after a batch of rows, over the time that it took.
_PAUSE_SHARE = 1.0
#: Least pause between two looks, over the time that the last one took: a busy fleet comes first.
_LEAST_WAIT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What is known of the table; changed by nobody."""

    #: `loading` until all rows of one version are read, then `ready`; `failed` with a reason.
    state: str = "loading"
    reason: str = ""
    version: int = -1
    #: Rows that are read, and rows that there are.
    done: int = 0
    of: int = 0
    #: What each device shows (`DeviceDigest.told`), as far as its rows are read.
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Facts of the workloads that were met (`fleet.dashboard.workload_view.facts_of`).
    workloads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def progress(self) -> dict[str, Any]:
        """All but the devices, JSON-ready."""
        return {
            "state": self.state,
            "reason": self.reason,
            "table_version": self.version,
            "done": self.done,
            "of": self.of,
        }


class TableFollower:
    """Keeps what the dashboard shows of a store up with its table.

    Args:
        store: Folder of the store.
        pause: Waits for so many seconds, or until the follower ends; true where it ends.
    """

    def __init__(self, store: Path, pause: Callable[[float], bool] | None = None) -> None:
        self._store = store
        self._over = threading.Event()
        self._pause = pause or self._over.wait
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._looked_at = 0.0
        self._reader: StoreReader | None = None
        self._digests: dict[DeviceId, DeviceDigest] = {}
        self._told: dict[str, Mapping[str, Any]] = {}
        self._facts: dict[str, Mapping[str, Any]] = {}
        self.state = TableState()

    def look(self) -> TableState:
        """What is known now; a thread keeps it up from here on for `IDLE_SECS`, and it for `FORGET_SECS`."""
        self._looked_at = time.monotonic()
        with self._lock:
            if (self._thread is None or not self._thread.is_alive()) and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)
                self._thread.start()
        return self.state

    def reader(self) -> StoreReader | None:
        """The store at the version that is shown; None while there is none yet."""
        return self._reader

    def cells(self) -> dict[str, dict[str, WorkloadCell]]:
        """What each device has of each workload, by workload and device."""
        found: dict[str, dict[str, WorkloadCell]] = {}
        for device_id, digest in list(self._digests.items()):
            for workload_id, cell in list(digest.cells.items()):
                found.setdefault(workload_id, {})[str(device_id)] = cell
        return found

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def follow(self) -> None:
        """Read what came since the last call; the first one reads all."""
        reader = Store.read(self._store)
        before = self._reader
        if before is not None and before.version == reader.version:
            return
        parts = _new_parts(before, reader) if before is not None and self.state.state == "ready" else None
        if parts is None:
            self._digests, self._told = {}, {}
        self._read(reader, parts)

    def _read(self, reader: StoreReader, parts: RowParts | None) -> None:
        done, began = 0, time.monotonic()
        for device_id, batch in reader.columns(DIGEST_COLUMNS, parts=parts):
            self._take(device_id, batch)
            self._learn_workloads(reader, device_id)
            done += batch.num_rows
            if parts is None:
                self.state = TableState(
                    done=done, of=reader.rows, devices=dict(self._told), workloads=dict(self._facts)
                )
            if self._pause(_PAUSE_SHARE * (time.monotonic() - began)):
                return
            began = time.monotonic()
        self._reader = reader
        self.state = TableState(
            state="ready",
            version=reader.version,
            done=reader.rows,
            of=reader.rows,
            devices=dict(self._told),
            workloads=dict(self._facts),
        )

    def _take(self, device_id: DeviceId, batch: pa.RecordBatch) -> None:
        digest = self._digests.get(device_id)
        if digest is None:
            digest = self._digests[device_id] = DeviceDigest(device_id)
        digest.add(batch)
        self._told[str(device_id)] = digest.told()

    def _learn_workloads(self, reader: StoreReader, device_id: DeviceId) -> None:
        unknown = self._digests[device_id].cells.keys() - self._facts.keys()
        if unknown:
            found = reader.workloads([WorkloadId(one) for one in unknown])
            self._facts |= {str(one): facts_of(workload) for one, workload in found.items()}
            # A device without a file is not looked for again.
            self._facts |= {one: {"name": one} for one in unknown - self._facts.keys()}

    def _run(self) -> None:
        while (began := time.monotonic()) - self._looked_at < FORGET_SECS:
            if began - self._looked_at >= IDLE_SECS:
                if self._pause(FOLLOW_SECS):
                    return
                continue
            try:
                self.follow()
            except FleetError as error:
                self._failed(str(error))
            except Exception as error:  # the page must not end the daemon
                _LOG.exception("the dashboard cannot read the store")
                self._failed(repr(error))
            if self._pause(max(FOLLOW_SECS, _LEAST_WAIT * (time.monotonic() - began))):
                return
        self._digests, self._told, self._facts, self._reader = {}, {}, {}, None
        self.state = TableState()

    def _failed(self, reason: str) -> None:
        self._reader = None
        self.state = TableState(
            state="failed", reason=reason, devices=self.state.devices, workloads=self._facts
        )


def _new_parts(before: StoreReader, reader: StoreReader) -> RowParts | None:
    """Where the rows stand that came since; None where that cannot be known."""
    try:
        changes = changes_since(reader.path / RECORDS, before.version, reader.version)
        rows = {file.path: file.rows for file in before.snapshot.files}
        return dict(changes.new_parts(rows, reader.snapshot))
    except StaleError as error:
        _LOG.info("the dashboard reads all records: %s", error)
        return None
