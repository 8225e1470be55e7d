"""Read a whole store and say what of it is damaged: `fleet store verify`.

It takes no lock and writes nothing, so it may run beside a daemon. It reads the state file as it is at one
moment, and the table at the version that this names. Memory: some 24 bytes a record.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agents.records import is_live
from fleet.archive.checks import (
    Seen,
    StateSeen,
    catalog_faults,
    comparison_faults,
    file_faults,
    first_halves,
    state_faults,
)
from fleet.errors import StoreError, disk_errors
from fleet.state.questions import StateReader
from fleet.state.rebuild import rebuild
from fleet.state.schema import STATE
from fleet.state.table import is_left_over, is_ours
from fleet.state.table_log import TableLog, removed
from fleet.store.catalog import read_devices
from fleet.store.delta.log import RECORDS, TableSnapshot, load_snapshot
from fleet.store.delta.schema import read_batches
from fleet.store.reader import DEVICES, WORKLOADS, acquire, check_folder, release

#: Damages that are told one by one; the others are counted.
MOST_TOLD = 1000

_FROM_BACKUP: Final = "take it from a backup: `fleet store restore`"
_REBUILD: Final = "stop the daemon, then `fleet store verify --rebuild`"
_LOG: Final = f"{RECORDS}/_delta_log"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was written."""

    #: Below the store.
    where: str
    what: str
    #: What to do about it.
    next_step: str


@dataclass(slots=True, kw_only=True)
class Verified:
    """What was read and found."""

    version: int = -1
    records: int = 0
    files: int = 0
    bytes: int = 0
    devices: int = 0
    workloads: int = 0
    #: Records that are acknowledged and not in the table yet.
    waiting: int = 0
    secs: float = 0.0
    #: The first `MOST_TOLD` damages, and how many there are.
    damage: list[Damage] = field(default_factory=list)
    damages: int = 0
    #: Whether making the state file again mends something.
    is_rebuild_due: bool = False
    #: What is no damage but worth a word.
    notes: list[str] = field(default_factory=list)

    def add(self, where: str, what: str, next_step: str = _FROM_BACKUP) -> None:
        """Note a damage."""
        self.damages += 1
        self.is_rebuild_due |= next_step == _REBUILD
        if len(self.damage) < MOST_TOLD:
            self.damage.append(Damage(where, what, next_step))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; `ok` says whether nothing is damaged."""
        return {"ok": not self.damages, **asdict(self)}


def verify(folder: Path) -> Verified:
    """Read every file of a store.

    Raises:
        StoreError: There is no store.
    """
    began = time.monotonic()
    with disk_errors("verifying the store", folder):
        check_folder(folder, create=False)
        result = _Verification(folder).run()
    result.secs = round(time.monotonic() - began, 3)
    return result


def rebuild_state(folder: Path) -> list[str]:
    """Make the state file of a store again from its readable rows and the table, if that mends anything.

    Returns:
        What was kept and what came back, one line each; empty where there is nothing to mend.

    Raises:
        StoreLocked: A daemon writes to the store; stop it first.
        StoreError: There is no store, its log cannot be read, or the disk failed.
    """
    with disk_errors("making the state file again", folder):
        check_folder(folder, create=False)
        lock = acquire(folder)
        try:
            if not verify(folder).is_rebuild_due:
                return []
            return rebuild(folder / STATE, _families(folder))
        finally:
            release(folder, lock)


def _families(folder: Path) -> dict[str, str]:
    """Name by live device under which candidates are shared."""
    with suppress(OSError, ValueError, StoreError):
        devices = read_devices(folder / DEVICES)
        return {name: str(entry.spec.family) for name, entry in devices.items() if is_live(entry.spec)}
    return {}


class _Verification:
    """One look at a store."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._table = folder, folder / RECORDS
        self._log = TableLog(self._table)
        self._result = Verified()
        self._state, self._totals = StateSeen(), Seen()
        #: Paths that a commit takes out of the table.
        self._removed: set[str] = set()

    def run(self) -> Verified:
        for what in state_faults(self._folder / STATE, self._state, self._totals):
            self._result.add(STATE, what.partition("; `fleet")[0], _REBUILD)
        self._result.waiting = self._totals.rows
        self._check_version()
        self._check_commits()
        self._check_checkpoint()
        try:
            snapshot = self._snapshot()
        except StoreError as error:
            self._result.add(RECORDS, str(error))
        else:
            self._check_files(snapshot)
            self._check_catalog(snapshot)
        return self._result

    def _snapshot(self) -> TableSnapshot:
        last = self._log.last()
        version = last if self._state.version is None else min(last, self._state.version)
        return load_snapshot(self._table, version)

    def _check_version(self) -> None:
        """Whether the table ends with the version that the state file names, or with a killed writer's."""
        version, last = self._state.version, self._log.last()
        if version is None and self._state.files is None:
            return  # that the file cannot be read is said already
        if version is not None and last < version:
            what = f"the table ends at version {last}, the state file names {version}: commits are missing"
            self._result.add(_LOG, what, _REBUILD)
        elif last > (version or 0):
            with suppress(StoreError), StateReader(self._folder / STATE) as later:
                if what := _version_fault(self._log, last, later):
                    self._result.add(_LOG, what, _REBUILD)

    def _check_commits(self) -> None:
        """Look at every commit: one that lost a line would take records away without a word."""
        begun = max(self._log.checkpoints(), default=-1)
        for version in self._log.versions():
            try:
                self._removed.update(removed(self._log.actions(version)))
                is_good = True
            except FileNotFoundError:
                continue  # old ones are deleted
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                is_good = False
            # What a killed writer has left counts for nothing.
            if not is_good and version <= (self._state.version or 0):
                step = _REBUILD if version > max(begun, 0) else _FROM_BACKUP
                name = self._log.commit_path(version).name
                self._result.add(f"{_LOG}/{name}", "this commit is damaged", step)

        expected = range(begun + 1, min(self._log.last(), self._state.version or 0) + 1)
        for version in sorted(set(expected) - set(self._log.versions())):
            self._result.add(f"{_LOG}/{self._log.commit_path(version).name}", "it is missing", _REBUILD)

    def _check_checkpoint(self) -> None:
        for version in self._log.checkpoints()[:1]:
            path = self._log.checkpoint_path(version)
            try:
                pq.read_table(path)
            except (OSError, pa.ArrowException) as error:
                step = "delete it and _last_checkpoint if commit 0 is there, else " + _FROM_BACKUP
                self._result.add(f"{_LOG}/{path.name}", f"this checkpoint is damaged: {error}", step)

    def _check_files(self, snapshot: TableSnapshot) -> None:
        """Read all data files, and compare what they say with the state file."""
        result, state = self._result, self._state
        result.version, result.files = snapshot.version, len(snapshot.files)
        result.bytes = sum(file.bytes for file in snapshot.files)
        before = result.damages
        for file in snapshot.files:
            expected = None if state.files is None else state.files.get(file.path)
            if state.files is not None and (expected is None or expected.rows != file.rows):
                what = "it does not say" if expected is None else "it says another number of rows"
                result.add(STATE, f"{what} what the table's file {file.path} must be", _REBUILD)
            known_sum = expected.sha256 if expected is not None else None
            for what in file_faults(self._table, file, known_sum, self._totals):
                result.add(f"{RECORDS}/{file.path}", what)
        named = {file.path for file in snapshot.files} | self._removed
        for path in sorted((state.files or {}).keys() - named):
            # One that is gone was of an earlier version.
            if (self._table / path).exists():
                what = "no commit names it, but it is in the state file: a commit lost a line"
                result.add(f"{RECORDS}/{path}", what, _REBUILD)
        result.records = self._totals.rows - result.waiting
        self._check_repeated(snapshot)
        if result.damages > before:
            result.notes.append("the results were not compared with the table, which is damaged")
            return
        for what in comparison_faults(state, self._totals):
            result.add(STATE, what, _REBUILD)

    def _check_repeated(self, snapshot: TableSnapshot) -> None:
        """Say which records are there twice, at each place but the first."""
        twice = np.unique(self._totals.repeated())
        self._totals.ids.clear()
        before: set[str] = set()
        for file in snapshot.files if len(twice) else ():
            # What cannot be read is said already.
            with suppress(OSError, pa.ArrowException, StoreError):
                for batch in read_batches(self._table / file.path, ("record_id",), rows=65_536):
                    names = batch.column("record_id")
                    # Equal first halves of unlike ids come once in 10^12 ids, so the whole ids decide.
                    for place in np.flatnonzero(np.isin(first_halves(names), twice)).tolist():
                        name = names[place].as_py()
                        if name in self._state.waiting:
                            self._result.add(STATE, f"record {name} waits, and is in the table", _REBUILD)
                        if name in before:
                            what = f"record {name} is in the table more than once"
                            self._result.add(f"{RECORDS}/{file.path}", what, "report it, and " + _FROM_BACKUP)
                        before.add(name)

    def _check_catalog(self, snapshot: TableSnapshot) -> None:
        """Look at workloads and devices, and whether those that records name are there."""
        result, names_by_folder = self._result, dict[str, set[str]]()
        for name, ending in ((WORKLOADS, ".json"), (DEVICES, ".jsonl")):
            paths = sorted((self._folder / name).glob(f"[!.]*{ending}"))
            names_by_folder[name] = {path.stem for path in paths}
            for path in paths:
                for what in catalog_faults(path, name):
                    result.add(f"{name}/{path.name}", what)
        result.workloads, result.devices = len(names_by_folder[WORKLOADS]), len(names_by_folder[DEVICES])
        rows = dict(self._state.waiting_by_device)
        for file in snapshot.files:
            rows[file.device_id] = rows.get(file.device_id, 0) + file.rows
        for name, ending, counts in (
            (WORKLOADS, ".json", self._totals.workloads),
            (DEVICES, ".jsonl", rows),
        ):
            for missing in sorted(counts.keys() - names_by_folder[name]):
                result.add(
                    f"{name}/{missing}{ending}", f"it is missing, and {counts[missing]} records name it"
                )


def _version_fault(log: TableLog, last: int, state: StateReader) -> str:
    """What is wrong with a table that ends with another version than its state file names; may be nothing."""
    named = state.table_version()
    if (named is not None and last <= named) or (named is None and last == 0):
        return ""
    unlike = f"the table ends at version {last}, the state file names {named}"
    if named is None or last > named + 1:
        return unlike
    try:
        actions = log.actions(last)
        if not is_ours(actions):
            return f"version {last} was written by somebody else"
        return "" if is_left_over(actions, state) else unlike
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # a killed writer's, which is set aside
