"""Follows the records table in a thread of its own while somebody looks, a little at a time.

The coordinator shares the process, so the thread works no longer than it pauses, and starts with the first
visitor. Devices whose rows are read already are shown; the others are "loading". Afterwards only what came is
read: new files of the table, and rows that wait for it.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agents.records import DeviceId, WorkloadId
from fleet.dashboard.device_digest import DIGEST_COLUMNS, DeviceDigest, WorkloadCell
from fleet.dashboard.workload_view import facts_of
from fleet.errors import FleetError
from fleet.store.reader import StoreReader
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
    #: What each device shows (`DeviceDigest.to_json`), as far as its rows are read.
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


@dataclass(slots=True)
class FollowedDevice:
    """What is read of one device.

    Attributes:
        shown: Of all its rows.
    """

    device_id: DeviceId
    #: Of the rows of these files alone, by path with their rows; and the pieces that `digest` has besides.
    _in_table: DeviceDigest = field(init=False)
    _files: dict[str, int] = field(default_factory=dict)
    _pieces: tuple[int, ...] = ()
    digest: DeviceDigest = field(init=False)

    def __post_init__(self) -> None:
        self.digest = self._in_table = DeviceDigest(self.device_id)

    def follow(self, reader: StoreReader, files: Mapping[str, int]) -> Iterator[None]:
        """Read what came, a batch with each step.

        Args:
            reader: The store.
            files: The device's files with their rows.
        """
        new = set(files) - self._files.keys()
        pieces = tuple(piece.number for piece in reader.waiting() if self.device_id in piece.device_ids)
        if sum(files.values()) == self._in_table.records:
            new = set()  # files were joined, if anything
        elif not self._files.keys() <= files.keys():
            self._in_table, new = DeviceDigest(self.device_id), set(files)
        read = partial(reader.columns, DIGEST_COLUMNS, device_ids=[self.device_id])
        for _, batch in read(files=new, after=pieces[-1] if pieces else 0) if new else ():
            self._in_table.add(batch)
            yield
        self._files = dict(files)
        is_longer = bool(self._pieces) and pieces[: len(self._pieces)] == self._pieces
        if new or not is_longer:
            self.digest, self._pieces = self._in_table, ()
        if pieces != self._pieces:
            # What was shown may be looked at meanwhile.
            digest = copy.deepcopy(self.digest)
            for _, batch in read(files=(), after=self._pieces[-1] if self._pieces else 0):
                digest.add(batch)
                yield
            self.digest, self._pieces = digest, pieces


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
        self._devices: dict[DeviceId, FollowedDevice] = {}
        self._digests: dict[str, Mapping[str, Any]] = {}
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
        cells: dict[str, dict[str, WorkloadCell]] = {}
        for device_id, device in list(self._devices.items()):
            for workload_id, cell in list(device.digest.cells.items()):
                cells.setdefault(workload_id, {})[str(device_id)] = cell
        return cells

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def follow(self) -> None:
        """Read what came since the last call; the first one reads all."""
        reader = Store.read(self._store)
        if self._reader is not None and self._reader.moment == reader.moment:
            return
        is_first = self.state.state != "ready"
        done, files = 0, dict[DeviceId, dict[str, int]]()
        for file in reader.snapshot.files:
            files.setdefault(DeviceId(file.device_id), {})[file.path] = file.rows
        for piece in reader.waiting():
            for device_id in piece.device_ids:
                files.setdefault(device_id, {})
        for device_id in sorted(files):
            device = self._devices.setdefault(device_id, FollowedDevice(device_id))
            began = time.monotonic()
            for _ in device.follow(reader, files[device_id]):
                if self._pause(_PAUSE_SHARE * (time.monotonic() - began)):
                    return
                began = time.monotonic()
            if device.digest.records != self._digests.get(str(device_id), {}).get("records"):
                self._digests[str(device_id)] = device.digest.to_json()
                self._learn_workloads(reader, device_id)
            done += device.digest.records
            if is_first:
                self.state = TableState(
                    done=done, of=reader.rows, devices=dict(self._digests), workloads=dict(self._facts)
                )
        self._reader = reader
        self.state = TableState(
            state="ready",
            version=reader.version,
            done=reader.rows,
            of=reader.rows,
            devices=dict(self._digests),
            workloads=dict(self._facts),
        )

    def _learn_workloads(self, reader: StoreReader, device_id: DeviceId) -> None:
        unknown = self._devices[device_id].digest.cells.keys() - self._facts.keys()
        if unknown:
            workloads = reader.workloads([WorkloadId(workload_id) for workload_id in unknown])
            self._facts |= {
                str(workload_id): facts_of(workload) for workload_id, workload in workloads.items()
            }
            # A device without a file is not looked for again.
            self._facts |= {
                workload_id: {"name": workload_id} for workload_id in unknown - self._facts.keys()
            }

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
        self._devices, self._digests, self._facts, self._reader = {}, {}, {}, None
        self.state = TableState()

    def _failed(self, reason: str) -> None:
        self._reader = None
        self.state = TableState(
            state="failed", reason=reason, devices=self.state.devices, workloads=self._facts
        )
