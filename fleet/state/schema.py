"""The tables of `state.sqlite`, and its connections: one that writes, others that only read.

Called by `fleet.state.state_file`. It knows no record, no event and no table of Parquet files.

SQLite writes ahead (WAL) with `synchronous=FULL`: a transaction waits for the disk once. The versions 3.7.0
to 3.51.2 have a fault that needs a second connection which writes or moves pages from the log into the file.
Here the connection of the coordinator alone does either; all others are opened with `mode=ro`: decision 65.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil

from agents.records import CandidateId
from agents.sqlite_files import is_damage, log_of, os_error, write_ahead
from fleet.errors import StateDamaged, StoreError, StoreLocked, store_error

#: Name of the file in a store's folder, and the number of its layout.
STATE, STATE_SCHEMA = "state.sqlite", 2
#: `PRAGMA application_id`: the letters FLET.
APPLICATION_ID = 0x464C4554
#: Pages of 4 KB after which SQLite moves the log into the file. A thousand devices' turn has some hundred.
CHECKPOINT_PAGES = 4096
#: The log gives room back beyond this.
_LOG_BYTES = 64 << 20
#: Pages of the file that SQLite keeps in memory, in KiB: those of the workloads that are measured now.
_CACHE_KIB = 32 << 10
#: File systems on which several hosts may write: SQLite's locks and its shared memory do not hold there.
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "fuse.sshfs", "afs"})

_TABLES = """
CREATE TABLE label (
    number INTEGER PRIMARY KEY,
    text TEXT NOT NULL UNIQUE
);
-- What was measured where. Keys are numbers of labels but for the candidate: 16 bytes.
CREATE TABLE result (
    workload INTEGER NOT NULL,
    device INTEGER NOT NULL,
    environment INTEGER NOT NULL,
    candidate BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    outcome INTEGER NOT NULL,
    latency_secs REAL,
    PRIMARY KEY (workload, device, environment, candidate, attempt)
) WITHOUT ROWID;
-- Lost ones: outcome 7, see `fleet.state.rows`.
CREATE INDEX result_lost ON result (device, environment, workload, candidate, attempt) WHERE outcome = 7;
-- Sums over the results of a workload on a device in an environment.
CREATE TABLE tally (
    workload INTEGER NOT NULL,
    device INTEGER NOT NULL,
    environment INTEGER NOT NULL,
    records INTEGER NOT NULL,
    measured INTEGER NOT NULL,
    ok INTEGER NOT NULL,
    measured_at REAL NOT NULL,
    noise_at REAL NOT NULL,
    PRIMARY KEY (device, environment, workload)
) WITHOUT ROWID;
-- The fastest candidates of a workload on a device in an environment: a few each.
CREATE TABLE fastest (
    workload INTEGER NOT NULL,
    device INTEGER NOT NULL,
    environment INTEGER NOT NULL,
    candidate BLOB NOT NULL,
    latency_secs REAL NOT NULL,
    PRIMARY KEY (workload, device, environment, candidate)
) WITHOUT ROWID;
-- The numbers ascend in the order in which candidates became known.
CREATE TABLE candidate (
    number INTEGER PRIMARY KEY,
    family INTEGER NOT NULL,
    workload INTEGER NOT NULL,
    id BLOB NOT NULL,
    is_waiting INTEGER NOT NULL DEFAULT 1,
    is_blocked INTEGER NOT NULL DEFAULT 0,
    dialect TEXT NOT NULL,
    origin TEXT NOT NULL,
    trace BLOB NOT NULL,
    base INTEGER,
    UNIQUE (family, workload, id)
);
-- Whoever looks for gaps reads no traces.
CREATE INDEX candidate_in_order ON candidate (family, workload, number, id, is_blocked);
CREATE INDEX candidate_blocked ON candidate (family, workload, id) WHERE is_blocked;
-- Rows that are acknowledged and not in the table yet: an Arrow stream per piece.
-- Those of a lane go together. The ids of their devices have blanks between them.
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    lane INTEGER NOT NULL,
    devices TEXT NOT NULL,
    rows INTEGER NOT NULL,
    since REAL NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX waiting_in_lane ON waiting (lane, number);
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
);
-- The state after all events up to `number`; one row at most.
CREATE TABLE snapshot (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    number INTEGER NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
);
CREATE TABLE dead_letter (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    rows INTEGER NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL,
    UNIQUE (kind, name)
);
-- What fits in no row: small texts by name.
CREATE TABLE note (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;
-- Version of the table that holds all rows which left `waiting`, and how many it has; one row at most.
CREATE TABLE table_version (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    version INTEGER NOT NULL,
    rows INTEGER NOT NULL
);
-- Data files of the table: what their bytes must be.
CREATE TABLE data_file (
    path TEXT PRIMARY KEY,
    device INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    sum INTEGER NOT NULL
) WITHOUT ROWID;
"""
#: Results of a workload on a device in an environment: three numbers of labels.
IN_GROUP = "workload = ? AND device = ? AND environment = ?"


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the file for writing, and make it if it is missing; the holder of the store's lock alone may.

    Raises:
        StateDamaged: It is no database, or its pages do not fit together.
        StoreError: It lies on a network, has another layout, or the disk failed.
    """
    refuse_network(path)
    with state_errors("opening the state file", path):
        connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            write_ahead(
                connection,
                path,
                [
                    *_TABLES.split(";\n"),
                    f"PRAGMA application_id={APPLICATION_ID}",
                    f"PRAGMA user_version={STATE_SCHEMA}",
                ],
                checkpoint_pages=CHECKPOINT_PAGES,
                log_bytes=_LOG_BYTES,
            )
            _check_layout(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the file for reading, beside the one that writes.

    Raises:
        StateDamaged: It is no database, or its pages do not fit together.
        StoreError: It is missing, has another layout, or cannot be read.
    """
    if not path.exists():
        raise StoreError(f"there is no {path}; `fleet init` and `fleet collect` make a store")
    # On a disk that cannot be written SQLite has no place for its shared memory, and nobody writes.
    is_frozen = not log_of(path).exists() and not os.access(path.parent, os.W_OK)
    with state_errors("opening the state file", path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if is_frozen else ''}",
            uri=True,
            timeout=5.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            _check_layout(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _check_layout(connection: sqlite3.Connection, path: Path) -> None:
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [layout] = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        what = f"its application id is {application:#x}, expected {APPLICATION_ID:#x}"
        raise damaged(path, f"it is no state file of a fleet: {what}")
    if layout != STATE_SCHEMA:
        raise StoreError(
            f"{path} has layout {layout}, this version reads {STATE_SCHEMA}; use the version that wrote it"
        )


def refuse_network(path: Path) -> None:
    """Refuse a file on a file system of a network.

    Raises:
        StoreError: It lies on one.
    """
    place = Path(os.path.realpath(path.parent))
    mounts = {Path(disk.mountpoint): disk.fstype for disk in psutil.disk_partitions(all=True)}
    kind = next((mounts[folder] for folder in (place, *place.parents) if folder in mounts), "")
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StoreError(
            f"{path.parent} is on a file system of a network ({kind}), where the locks of SQLite do not hold;"
            " put the store on a disk of this host"
        )


def damaged(path: Path, what: str) -> StateDamaged:
    """The error of a state file that does not hold what was written."""
    return StateDamaged(
        f"{path} is damaged: {what}; `fleet store verify --rebuild` makes it again from what can be read"
    )


def one_line(text: str) -> str:
    """What SQLite says of damage, which may quote damaged names, as a line for people."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


@contextmanager
def state_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the system into those of the store.

    Raises:
        StateDamaged: The file does not hold what was written.
        StoreLocked: Another process writes to it.
        StoreFull: There was no room; nothing was kept.
        StoreError: Any other error of the disk.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise damaged(path, "a name in it is no text") from error
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged(path, one_line(str(error))) from error
        system_error = os_error(error, path)
        if system_error.errno == errno.EAGAIN:
            raise StoreLocked(f"{path} is being written by another process; stop that process") from error
        raise store_error(system_error, doing, path) from error
    except OSError as error:
        raise store_error(error, doing, path) from error


def reading(path: Path) -> AbstractContextManager[None]:
    """`state_errors` of somebody who reads."""
    return state_errors("reading the state file", path)


# Keys of the rows of a state file: numbers for texts that stand in millions of rows, and ids of candidates.
#
# Candidates are looked up many at a time: one by one takes three times as long.

#: Candidates of one question at most; SQLite takes some 32,000 values.
MOST_VALUES = 1000

#: Numbers of a workload, a device and an environment.
Group = tuple[int, int, int]
#: Of a candidate: its outcomes, by attempt.
Attempts = dict[int, int]


class Labels:
    """The table `label`, all of it in memory: some thousands of texts.

    Args:
        connection: Of a state file.
        path: The file, for messages.

    Attributes:
        texts: By number; not to be changed by others.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._number_of: dict[str, int] = {}
        self.texts: dict[int, str] = {}
        self._uncommitted: list[str] = []
        for number, text in connection.execute("SELECT number, text FROM label"):
            self._number_of[text] = number
            self.texts[number] = text
        self._next = max(self.texts, default=0) + 1

    def find(self, text: str) -> int:
        """Number of a text; -1, which no row has, for one that stands nowhere."""
        return self._number_of.get(text, -1)

    def text(self, number: int) -> str:
        """The text that has a number.

        Raises:
            StateDamaged: No text has it.
        """
        text = self.texts.get(number)
        if text is None:
            raise damaged(self._path, f"no name has the number {number}")
        return text

    def number(self, text: str) -> int:
        """Number of a text; a new one gets one within the open transaction."""
        number = self._number_of.get(text)
        if number is None:
            # A file that was made again may lack numbers.
            number, self._next = self._next, self._next + 1
            self._connection.execute("INSERT INTO label VALUES (?, ?)", (number, text))
            self._number_of[text], self.texts[number] = number, text
            self._uncommitted.append(text)
        return number

    def commit(self) -> None:
        """Keep the new ones: the transaction is on the disk."""
        self._uncommitted.clear()

    def rollback(self) -> None:
        """Forget the new ones: the transaction was taken back."""
        for text in self._uncommitted:
            del self.texts[self._number_of.pop(text)]
        self._uncommitted.clear()


def packed_id(candidate_id: CandidateId) -> bytes:
    """The id of a candidate in half the bytes.

    Raises:
        StoreError: It is no even number of the digits 0-9 and a-f.
    """
    try:
        packed = bytes.fromhex(candidate_id)
    except (ValueError, TypeError):
        packed = b""
    # `fromhex` takes blanks and capitals, and two ids must not become one.
    if packed.hex() != candidate_id:
        raise StoreError(f"the candidate {candidate_id!r} cannot be stored: its id is no hexadecimal number")
    return packed


def packed_ids(candidate_ids: Iterable[CandidateId]) -> Iterator[list[bytes]]:
    """Yield ids that were checked before as SQLite has them, as many at a time as a question may have."""
    return parts(map(bytes.fromhex, candidate_ids))


def parts(candidates: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield some values at a time; a part whose length is no power of two repeats its last one."""
    every = list(candidates)
    for start in range(0, len(every), MOST_VALUES):
        part = every[start : start + MOST_VALUES]
        # A statement of each length would be made anew again and again.
        length = min(MOST_VALUES, 1 << (len(part) - 1).bit_length())
        yield part + part[-1:] * (length - len(part))


def marks(values: Sequence[object]) -> str:
    """The places of some values in a statement."""
    return ", ".join("?" * len(values))


def attempts_of(
    connection: sqlite3.Connection, group: Group, candidates: Iterable[bytes]
) -> defaultdict[bytes, Attempts]:
    """Look up what was measured of some candidates of a group, by candidate; nothing of those without any."""
    attempts: defaultdict[bytes, Attempts] = defaultdict(dict)
    for values in parts(candidates):
        for candidate, attempt, outcome in connection.execute(
            f"SELECT candidate, attempt, outcome FROM result WHERE {IN_GROUP}"
            f" AND candidate IN ({marks(values)})",
            (*group, *values),
        ).fetchall():
            attempts[candidate][attempt] = outcome
    return attempts
