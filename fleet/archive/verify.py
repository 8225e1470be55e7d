"""Read a whole store and say what of it is damaged: `fleet store verify`.

It takes no lock and writes nothing, so it may run beside a daemon: what it reads is the table at one version,
and the log of what was taken in as it stands at one moment. Memory: 8 to 16 bytes a record.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.archive.record_checks import Seen, file_faults, first_halves, row_faults
from fleet.coverage.table_summary import FILE as SUMMARY_FILE
from fleet.coverage.table_summary import SUMMARY, mapped
from fleet.durable import disk_errors
from fleet.errors import StoreError
from fleet.state.questions import StateReader
from fleet.state.rebuild import rebuild
from fleet.state.schema import STATE
from fleet.store.catalog import read_device, read_workloads, sum_fault
from fleet.store.delta.changes import DamagedError, StaleError, changes_of_cache
from fleet.store.delta.files import known_sums
from fleet.store.delta.index import IDS, INDEX, checked_run
from fleet.store.delta.log import (
    TableSnapshot,
    checkpoints,
    delta_errors,
    is_whole,
    load_snapshot,
)
from fleet.store.delta.schema import read_batches
from fleet.store.intake_log import (
    FILE,
    INTAKE,
    IntakeLog,
    by_device,
    copy_log,
)
from fleet.store.lock import acquire, check_folder, release
from fleet.store.reader import DEVICES, RECORDS, WORKLOADS

#: Damages that are told one by one; the others are counted.
MOST_TOLD = 1000

_FROM_BACKUP = "take it from a backup: `fleet store restore`"
_DELETE = "delete it: it is made again"


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
    #: What is no damage but worth a word.
    notes: list[str] = field(default_factory=list)

    def add(self, where: str, what: str, next_step: str = _FROM_BACKUP) -> None:
        """Note a damage."""
        self.damages += 1
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
        found = Verified()
        # Before the table: what it names is there by then.
        index = _index(folder)
        _check_log(folder / RECORDS, found)
        try:
            snapshot = load_snapshot(folder / RECORDS)
        except StoreError as error:
            found.add(RECORDS, str(error))
        else:
            _check_table(folder, snapshot, index, found)
        _check_summary(folder, found)
        _check_state(folder, found)
        found.secs = round(time.monotonic() - began, 3)
    return found


def rebuild_state(folder: Path) -> list[str]:
    """Make the state file of a store again from what can be read of it.

    Returns:
        What was kept, one line each; empty where the file is not damaged.

    Raises:
        StoreLocked: A daemon writes to the store; stop it first.
        StoreError: There is no store, or the disk failed.
    """
    with disk_errors("making the state file again", folder):
        check_folder(folder, create=False)
        lock = acquire(folder)
        try:
            looked = Verified()
            _check_state(folder, looked)
            return rebuild(folder / STATE) if looked.damages else []
        finally:
            release(folder, lock)


def _check_table(folder: Path, snapshot: TableSnapshot, index: dict[str, Any], found: Verified) -> None:
    table = folder / RECORDS
    found.version, found.files = snapshot.version, len(snapshot.files)
    found.bytes = sum(file.bytes for file in snapshot.files)
    sums: dict[str, str] | None = None
    try:
        sums = known_sums(table, snapshot.version)
    except StoreError as error:
        found.notes.append(f"the sums of the data files are not known: {error}")
    seen = Seen()
    for file in snapshot.files:
        known_sum = None if sums is None else sums.get(file.path, "")
        for what in file_faults(table, file, known_sum, seen):
            found.add(f"{RECORDS}/{file.path}", what)
    found.records = seen.rows
    ids = np.sort(np.concatenate(seen.ids)) if seen.ids else np.empty(0, np.uint64)
    seen.ids.clear()
    for where, record_id in _repeated(table, snapshot, ids):
        found.add(
            where, f"record {record_id} is in the table more than once", "report it, and " + _FROM_BACKUP
        )
    if found.damages:
        found.notes.append("the cache of ids was not compared with the table, which is damaged")
    _check_index(folder, snapshot, index, ids if not found.damages else None, found)
    _check_intake(folder, found, seen)
    _check_catalog(folder, snapshot, found, seen)


def _repeated(table: Path, snapshot: TableSnapshot, ids: NDArray[np.uint64]) -> Iterator[tuple[str, str]]:
    """Yield where records stand that the table has twice, but for the first place of each."""
    twice = np.unique(ids[1:][ids[1:] == ids[:-1]])
    if not len(twice):
        return
    before: set[str] = set()
    for file in snapshot.files:
        try:
            for batch in read_batches(table / file.path, ("record_id",), rows=65_536):
                names = batch.column("record_id")
                # Equal first halves of unlike ids come once in 10^12 ids, so the whole ids decide.
                for place in np.flatnonzero(np.isin(first_halves(names), twice)).tolist():
                    one = names[place].as_py()
                    if one in before:
                        yield f"{RECORDS}/{file.path}", one
                    before.add(one)
        except (OSError, pa.ArrowException, StoreError):
            continue  # told already


def _check_log(table: Path, found: Verified) -> None:
    """Look at every commit: one that lost a line would take records away without a word."""
    log = table / "_delta_log"
    known = {"add", "remove", "commitInfo", "metaData", "protocol", "txn"}
    for path in sorted(log.glob("[0-9]*.json")):
        try:
            is_good = is_whole(path) and all(
                json.loads(line).keys() <= known for line in path.read_text().splitlines()
            )
        except FileNotFoundError:
            continue  # upkeep deletes old ones
        except (OSError, ValueError, AttributeError):
            is_good = False
        if not is_good:
            found.add(f"{RECORDS}/_delta_log/{path.name}", "this commit is damaged")
    for path in checkpoints(table)[:1]:
        try:
            with delta_errors("reading", path):
                pq.read_table(path)
        except (StoreError, OSError) as error:
            step = "delete it and _last_checkpoint if commit 0 is there, else " + _FROM_BACKUP
            found.add(f"{RECORDS}/_delta_log/{path.name}", f"this checkpoint is damaged: {error}", step)


def _index(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / IDS / INDEX).read_text())
        return value if isinstance(value, dict) else {"schema": None}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        return {"schema": None}


def _check_index(
    folder: Path,
    snapshot: TableSnapshot,
    index: dict[str, Any],
    ids: NDArray[np.uint64] | None,
    found: Verified,
) -> None:
    """Compare the cache of ids with those of the table, as far as these could be read.

    An id too many would lose a record, one too few double it.
    """
    where = f"{IDS}/{INDEX}"
    if not index:
        return
    try:
        version, rows = int(index["version"]), int(index["rows"])
        files = [(str(run["file"]), int(run["ids"]), int(run["crc32"])) for run in index["runs"]]
    except (KeyError, TypeError, ValueError):
        found.add(where, "it cannot be read", _DELETE)
        return
    if version > snapshot.version:
        what = f"it knows version {version}, the table ends at {snapshot.version}: commits are missing"
        found.add(f"{RECORDS}/_delta_log", what)
        return
    table = folder / RECORDS
    try:
        changes_of_cache(table, version, index.get("commit"), rows, snapshot)
        runs = [checked_run(folder / IDS, *one) for one in files]
    except StaleError as error:
        if _index(folder) != index:
            found.notes.append("the cache of ids was written anew meanwhile, and was not compared")
        elif isinstance(error, DamagedError):
            found.add(IDS, str(error), _DELETE)
        else:
            found.notes.append(f"the cache of ids is not believed and will be made again: {error}")
        return
    if ids is None:
        return
    kept = np.sort(np.concatenate([run.first for run in runs])) if runs else np.empty(0, np.uint64)
    at = np.minimum(np.searchsorted(ids, kept), max(0, len(ids) - 1))
    strange = len(kept) - int(np.count_nonzero(ids[at] == kept)) if len(ids) else len(kept)
    if strange or len(kept) != rows:
        what = f"it holds {len(kept)} ids, {strange} of them not in the table, which had {rows} then"
        found.add(where, what, _DELETE)


def _check_summary(folder: Path, found: Verified) -> None:
    path = folder / SUMMARY / SUMMARY_FILE
    try:
        mapped(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        found.add(f"{SUMMARY}/{SUMMARY_FILE}", str(error), _DELETE)


def _check_state(folder: Path, found: Verified) -> None:
    """Look at what the coordinator knows, as it is at one moment."""
    path = folder / STATE
    if not path.exists():
        return
    try:
        with StateReader(path) as reader:
            faults = list(reader.faults())
    except StoreError as error:
        faults = [str(error)]
    for what in faults:
        found.add(
            STATE, what.partition("; `fleet")[0], "stop the daemon, then `fleet store verify --rebuild`"
        )


def _check_intake(folder: Path, found: Verified, seen: Seen) -> None:
    """Look at what is acknowledged and not in the table, in a copy: the daemon goes on with the file."""
    step = "open the store: what is whole goes on"
    pieces: list[pa.Table] = []
    where = f"{INTAKE}/{FILE}"
    with tempfile.TemporaryDirectory() as made:
        if copy_log(folder / INTAKE, Path(made)):
            notes: list[str] = []
            try:
                with closing(IntakeLog(Path(made))) as log:
                    pieces += log.replay(notes)
            except StoreError as error:
                notes.append(str(error))
            if notes:
                found.add(where, "it is damaged: its rows cannot all be read", step)
    for rows in pieces:
        found.waiting += rows.num_rows
        for device_id, part in by_device(rows).items():
            for what in row_faults(device_id, part, seen):
                found.add(where, what)


def _check_catalog(folder: Path, snapshot: TableSnapshot, found: Verified, seen: Seen) -> None:
    """Look at workloads and devices, and whether those that records name are there."""
    there: dict[str, set[str]] = {}
    for name, ending in ((WORKLOADS, ".json"), (DEVICES, ".jsonl")):
        paths = sorted((folder / name).glob(f"[!.]*{ending}"))
        there[name] = {path.stem for path in paths}
        for path in paths:
            for what in catalog_faults(path, name):
                found.add(f"{name}/{path.name}", what)
    found.workloads, found.devices = len(there[WORKLOADS]), len(there[DEVICES])
    for one in sorted(seen.workloads.keys() - there[WORKLOADS]):
        found.add(f"{WORKLOADS}/{one}.json", f"it is missing, and {seen.workloads[one]} records name it")
    rows: dict[str, int] = {}
    for file in snapshot.files:
        rows[file.device_id] = rows.get(file.device_id, 0) + file.rows
    for one in sorted(rows.keys() - there[DEVICES]):
        found.add(f"{DEVICES}/{one}.jsonl", f"it is missing, and {rows[one]} records name it")


def catalog_faults(path: Path, folder: str) -> Iterator[str]:
    """Yield the faults of one file of the folder of workloads or of devices."""
    try:
        text = path.read_text()
        *lines, rest = text.split("\n")
        for line in lines:
            if what := sum_fault(line):
                yield what
        if rest and _begins_whole(rest):
            yield "its last line is whole but does not end as lines do"
        if folder == DEVICES:
            read_device(path)
        elif path.stem not in read_workloads(path.parent, [path.stem]):
            yield "it is of another workload than its name says"
    except (OSError, ValueError, StoreError) as error:
        yield str(error)


def _begins_whole(text: str) -> bool:
    """Whether a text begins with a whole value: a crash while it was written leaves none."""
    try:
        json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return True
