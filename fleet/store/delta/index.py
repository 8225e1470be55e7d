"""The record ids of a table on the disk, so that opening a large store does not read its records.

Only `fleet.store.store`, the writer, calls it. The folder is a cache: delete it, and the next writer reads
the ids from the data files and writes it again.

What makes it safe to believe: `index.json` names one version of the table, with a hash of that version's
commit, and the runs hold exactly the ids of that version. Whoever opens it follows the commits from there.
Anything unexpected on the way (a commit that is gone or another one, rows that somebody deleted, counts that
do not add up, a run that is damaged) and the ids are read from the data files instead.
"""

from __future__ import annotations

import json
import logging
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from fleet.durable import fsync, write_durably
from fleet.store.delta.changes import DamagedError, StaleError, changes_of_cache, commit_hash
from fleet.store.delta.ids import ID_BYTES, IdRun, RecordIds
from fleet.store.delta.log import TableSnapshot, commit_path

_LOG = logging.getLogger(__name__)

#: Folder beside the table, and the file in it that says what the others are.
IDS, INDEX = "ids", "index.json"

#: Layout of the folder.
INDEX_SCHEMA = 1

#: A table with fewer records is read as fast as its index.
LEAST_IDS = 4096
#: The index is written again when it lacks this many ids or commits.
SAVE_IDS = 65_536
SAVE_COMMITS = 512

_CHUNK = 1 << 20

#: Gives the column `record_id` of data files, by their paths below the table.
ReadIds = Callable[[Iterable[str]], Iterator[pa.Array]]


@dataclass(slots=True)
class IdIndex:
    """The ids of a table, and what of them is on the disk.

    Attributes:
        ids: All ids of the table; the writer adds to them what it has committed.
    """

    folder: Path
    table: Path
    ids: RecordIds = field(default_factory=RecordIds)
    #: Version of the table that the files hold; -1 if there are none.
    saved_version: int = -1
    #: Ids in the files.
    saved_ids: int = 0
    #: Files that the index on the disk names.
    _named: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, root: Path, table: Path, snapshot: TableSnapshot, read: ReadIds) -> IdIndex:
        """Know the ids of the newest version of a table.

        Raises:
            StoreError: A data file is damaged.
        """
        index = cls(root / IDS, table)
        try:
            fresh = index._load(snapshot)
        except StaleError as error:
            if (index.folder / INDEX).exists():
                _LOG.info("%s: the ids are read from the records: %s", table, error)
            index.ids.load(read(file.path for file in snapshot.files))
        else:
            for column in read(fresh):
                index.ids.take(column)
        index._sweep()
        return index

    def is_due(self, version: int) -> bool:
        """Whether so much is missing on the disk that `save` pays."""
        missing = len(self.ids) - self.saved_ids
        behind = version - self.saved_version
        return missing >= SAVE_IDS or (behind >= SAVE_COMMITS and self.is_worth_it(version))

    def is_worth_it(self, version: int) -> bool:
        """Whether `save` pays when the store is closed or tidied up."""
        missing = len(self.ids) - self.saved_ids
        is_large = len(self.ids) >= LEAST_IDS
        return is_large and (missing >= LEAST_IDS or version - self.saved_version >= SAVE_COMMITS // 8)

    def save(self, snapshot: TableSnapshot) -> None:
        """Write what is missing; the files hold exactly the ids of this version then.

        Args:
            snapshot: The newest version: all its records, and no others, are in `ids`.

        Raises:
            OSError: The disk is full or failed; the files are as before.
        """
        self.folder.mkdir(exist_ok=True)
        self.ids.settle()
        try:
            kept = [run if run.name else self._write(run) for run in self.ids.runs]
            value = {
                "schema": INDEX_SCHEMA,
                "version": snapshot.version,
                "commit": commit_hash(commit_path(self.table, snapshot.version)),
                "rows": snapshot.rows,
                "runs": [{"file": run.name, "ids": len(run), "crc32": run.crc} for run in kept],
            }
            write_durably(self.folder / INDEX, (json.dumps(value) + "\n").encode())
        except OSError:
            # The new runs are named nowhere; on a full disk they must not stay.
            self._sweep()
            raise
        self.ids.runs, self._named = kept, {run.name for run in kept}
        self.saved_version, self.saved_ids = snapshot.version, len(self.ids)
        self._sweep()

    def _write(self, run: IdRun) -> IdRun:
        """Put a run into a file, and go on with the file mapped: it takes no memory of the process then."""
        path, crc = self.folder / f"{uuid.uuid4().hex}.run", 0
        try:
            with path.open("xb") as stream:
                for half in (run.first, run.second):
                    data = np.ascontiguousarray(half, dtype="<u8").data.cast("B")
                    stream.write(data)
                    crc = zlib.crc32(data, crc)
            fsync(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return _mapped(path, len(run), crc)

    def _load(self, snapshot: TableSnapshot) -> list[str]:
        """Take the runs, all of them or none; return the data files with ids that they lack."""
        try:
            value = json.loads((self.folder / INDEX).read_text())
            if value["schema"] != INDEX_SCHEMA:
                raise StaleError(f"the index has layout {value['schema']}")
            version, rows = int(value["version"]), int(value["rows"])
            files = [(str(run["file"]), int(run["ids"]), int(run["crc32"])) for run in value["runs"]]
        except FileNotFoundError as error:
            raise StaleError("there is no index") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StaleError(f"the index is damaged: {error}") from error
        changes = changes_of_cache(self.table, version, value.get("commit"), rows, snapshot)
        self.ids = RecordIds(checked_run(self.folder, *one) for one in files)
        self._named = {run.name for run in self.ids.runs}
        self.saved_version, self.saved_ids = version, len(self.ids)
        return changes.fresh

    def _sweep(self) -> None:
        """Delete runs that the index does not name: left by a kill, or joined into others since."""
        for path in self.folder.glob("*.run"):
            if path.name not in self._named:
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def checked_run(folder: Path, name: str, ids: int, crc: int) -> IdRun:
    """Read a run once for its sum, then map it.

    Raises:
        DamagedError: It is not what the index says.
    """
    path = folder / name
    found = 0
    try:
        if Path(name).name != name or path.stat().st_size != ids * ID_BYTES:
            raise DamagedError(f"{name} has another length than the index says")
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                found = zlib.crc32(chunk, found)
    except OSError as error:
        raise DamagedError(f"{name} cannot be read: {error}") from error
    if found != crc:
        raise DamagedError(f"{name} is damaged")
    return _mapped(path, ids, crc)


def _mapped(path: Path, ids: int, crc: int) -> IdRun:
    if not ids:
        return IdRun(np.empty(0, np.uint64), np.empty(0, np.uint64), path.name, crc)
    halves = np.memmap(path, dtype="<u8", mode="r", shape=(2, ids))
    return IdRun(halves[0], halves[1], path.name, crc)
