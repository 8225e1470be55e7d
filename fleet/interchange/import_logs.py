"""Import of other tools' measurement logs: files in, records in the store, every line accounted for.

Called by `fleet import`. Logs are untrusted: a line that is no measurement is counted with its reason, and
nothing in a line raises anything. Memory is bounded, whatever the files hold.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from agents.records import DeviceId, Family, Workload
from fleet.errors import FleetError
from fleet.interchange.import_files import FileState, ImportJournal, LogFile, find_logs, is_network
from fleet.interchange.import_report import (
    ImportReport,
    ImportTarget,
    LineCounts,
    check_device_id,
    family_of,
    keep_device,
)
from fleet.interchange.import_rows import RowBatch
from fleet.interchange.line_reader import DIALECTS, LineReader, companion_of
from fleet.interchange.logs.catalog import Environment, LoggedWorkload, Measurement
from fleet.interchange.logs.json_values import Rejected
from fleet.terminal_text import visible

#: Bytes of new workloads that wait for a commit at most.
FRESH_BYTES: Final = 32 << 20

#: Lines at the beginning of a file that are asked for its family.
_LOOK_LINES = 50

#: Lines between two looks at how far a file has been read.
_LINES_PER_REPORT = 256

#: Told (bytes of the files read so far, bytes of all files, what is going on).
Watch = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import."""

    paths: tuple[Path, ...]
    device_id: str
    dialect: str = "auto"
    #: Network of all files; empty: told by the layout DEVICE/NETWORK/TUNER, else none.
    network: str = ""
    #: Of the device files.
    devices_folder: Path = Path("configs/hardware")
    #: Read files again that an earlier import had read to their end.
    again: bool = False


def check_request(request: ImportRequest) -> tuple[list[LogFile], list[Path]]:
    """Find the files of an import: the logs, and files that are none. A wrong request makes no store.

    Raises:
        FleetError: A path, the device's id or the dialect is wrong.
        OSError: A file cannot be read.
    """
    if request.dialect not in DIALECTS:
        raise FleetError(f"dialect {request.dialect!r} is not known; expected {', '.join(DIALECTS)}")
    check_device_id(request.device_id)
    if not is_network(request.network):
        raise FleetError(
            f"network {request.network!r} cannot be used: expected up to 128 printable characters"
        )
    return find_logs(request.paths, request.network)


def import_logs(store: ImportTarget, request: ImportRequest, watch: Watch | None = None) -> ImportReport:
    """Import files into an open store.

    Durable in batches as it goes on; after a kill the same call goes on, and a second call adds nothing.

    Args:
        store: An open store, or the way into that of a daemon.
        request: What to import.
        watch: Told of the progress.

    Raises:
        FleetError: A path, the device's id or the dialect is wrong, or CPU and GPU logs are mixed: what was
            stored before stays.
        StoreError: The store cannot be written.
        OSError: A file cannot be read.
    """
    # Parsed JSON has no cycles; looking for some in the rows that wait costs a fifth of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _Import(store, request, watch).run(*check_request(request))
    finally:
        if collects:
            gc.enable()


class _Import:
    """The state of one import."""

    def __init__(self, store: ImportTarget, request: ImportRequest, watch: Watch | None) -> None:
        self._store = store
        self._request = request
        self._watch = watch
        self._device_id: DeviceId = check_device_id(request.device_id)
        self._reader = LineReader(request.dialect)
        self._batch = RowBatch(self._device_id)
        self._journal = ImportJournal(store.path, self._device_id)
        self._report = ImportReport(device_id=self._device_id, table_version=store.version)
        #: Files whose last rows are in the batch, not in the store.
        self._ending: dict[FileState, LineCounts] = {}
        #: Workloads to store before the batch, with the networks that they were met in.
        self._fresh: dict[LoggedWorkload, set[str]] = {}
        self._fresh_bytes = 0
        #: Workloads with each network that they were met in.
        self._met: set[tuple[LoggedWorkload, str]] = set()
        self._family: Family | None = family_of(store, request.devices_folder, self._device_id)
        self._family_from = f"device {self._device_id}"
        self._environment: Environment | None = None
        self._read_bytes = self._all_bytes = 0

    def run(self, logs: list[LogFile], others: list[Path]) -> ImportReport:
        began = time.monotonic()
        self._report.files_skipped = others
        self._all_bytes = sum(log.bytes for log in logs)
        todo: list[tuple[LogFile, FileState]] = []
        for log in logs:
            state = self._state(log)
            counts = None if self._request.again else self._journal.counts(state)
            if counts is not None:
                self._report.counts.add(counts)
                self._report.files_known += 1
                self._read_bytes += log.bytes
                self._report_progress()
            else:
                todo.append((log, state))
        self._check_families([log for log, _ in todo])
        for log, state in todo:
            counts = self._file(log)
            self._report.counts.add(counts)
            self._ending[state] = counts
        self._commit()
        self._report.files = len(logs)
        self._report.table_version = self._store.version
        self._report.seconds = time.monotonic() - began
        return self._report

    def _state(self, log: LogFile) -> FileState:
        """What the journal knows a file by; the file beside it that belongs to it counts, too."""
        settings = f"{self._request.dialect} {log.network}"
        if (beside := companion_of(log.path)) is not None:
            status = beside.stat()
            settings += f" {status.st_size} {status.st_mtime_ns}"
        status = log.path.stat()
        return FileState(
            path=log.path.resolve().as_uri(),
            bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            settings=settings,
        )

    def _check_families(self, logs: Sequence[LogFile]) -> None:
        """Look at the beginning of every file, so that mixed families stop the import before it began."""
        reader = LineReader(self._request.dialect)
        for log in logs:
            _, lines = reader.open(log.path, with_companion=False)
            for number, entry in enumerate(islice(lines, _LOOK_LINES), 1):
                if not isinstance(entry, Rejected):
                    self._check_family(entry.environment, f"{visible(str(log.path))}:{number}")
                    break

    def _check_family(self, environment: Environment, where: str) -> None:
        family, kind = environment.machine.target.family, environment.machine.target.kind
        if self._family is None:
            self._family, self._family_from = family, f"{where} ({kind})"
        elif family is not self._family:
            raise FleetError(
                f"{where} was measured on a {family} ({kind}), but {self._family_from} is a {self._family}:"
                " give each its own --device"
            )

    def _file(self, log: LogFile) -> LineCounts:
        """Read one file; its rows go to the batch."""
        counts = LineCounts()
        file, lines = self._reader.open(log.path)
        for entry in lines:
            counts.lines += 1
            if isinstance(entry, Rejected):
                self._reject(entry, log, counts)
            else:
                self._keep(entry, log, counts)
            if not counts.lines % _LINES_PER_REPORT:
                self._report_progress(file.position, log.path.name, counts.lines)
        self._report_progress(file.position, log.path.name, counts.lines)
        self._read_bytes += file.position
        if file.damage:
            self._report.damaged[str(log.path)] = file.damage
        return counts

    def _keep(self, measurement: Measurement, log: LogFile, counts: LineCounts) -> None:
        if measurement.environment is not self._environment:
            self._check_family(measurement.environment, f"{visible(str(log.path))}:{counts.lines}")
            self._meet(measurement.environment)
        workload = measurement.workload
        if (workload, log.network) not in self._met:
            self._met.add((workload, log.network))
            if workload not in self._fresh:
                self._fresh[workload] = set()
                self._fresh_bytes += workload.bytes
            self._fresh[workload].add(log.network)
        self._batch.add(measurement)
        counts.dialects[workload.dialect] += 1
        counts.outcomes[measurement.result.outcome] += 1
        if self._batch.is_full or self._fresh_bytes >= FRESH_BYTES:
            self._commit()

    def _meet(self, environment: Environment) -> None:
        self._environment = environment
        if not self._report.described_by:
            folder = self._request.devices_folder
            self._report.described_by = keep_device(self._store, folder, self._device_id, environment.machine)
        self._report.targets.add(environment.machine.target.kind)

    def _reject(self, reason: Rejected, log: LogFile, counts: LineCounts) -> None:
        counts.rejected[reason.reason] += 1
        if reason.reason not in self._report.examples:
            where = f"{log.path}:{counts.lines}"
            self._report.examples[reason.reason] = f"{where}: {reason.detail}" if reason.detail else where

    def _commit(self) -> None:
        """Make everything read so far durable: workloads, then records, then which files are done."""
        self._report.workloads += self._store.put_workloads(self._take_workloads())
        if len(self._batch):
            done = self._store.append_table(self._device_id, self._batch.take())
            self._report.imported += done.appended
        self._journal.finish(self._ending)
        self._ending = {}
        gc.collect(1)

    def _take_workloads(self) -> list[Workload]:
        workloads = []
        for logged, networks in self._fresh.items():
            named = tuple((name, 1) for name in sorted(networks) if name)
            self._report.networks.update(name for name in networks if name)
            workloads.append(replace(logged.workload, networks=named))
            logged.forget_content()
        self._fresh = {}
        self._fresh_bytes = 0
        return workloads

    def _report_progress(self, position: int = 0, name: str = "", lines: int = 0) -> None:
        if self._watch is not None:
            note = f"{self._report.counts.lines + lines:,} lines {name}".rstrip()
            self._watch(self._read_bytes + position, self._all_bytes, note)
