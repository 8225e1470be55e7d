"""Names of versions, and the file of a registry: who serves which device, and how that came about.

Only `fleet.models.registry` writes it; see there for what it is for. It is SQLite with a rollback journal and
not with a log (WAL): several processes write here, and before 3.51.3 SQLite may lose a part of its log then.
A connection is open for one block only, because a forked process must not have one.
Within this process nothing else may open the file: closing it would let go of SQLite's locks.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, FiniteFloat, Json, TypeAdapter, ValidationError

from agents.files import fsync, read_regular, write_durably
from agents.records import DeviceId, ModelRef, canonical_json
from agents.sqlite_files import is_damage, os_error, sqlite_code
from fleet.errors import FleetError
from fleet.state.schema import one_line, refuse_network
from transfer.model.manifest import first_fault

#: Name of the file, and the number of its layout.
REGISTRY, REGISTRY_LAYOUT = "registry.sqlite", 1
#: `PRAGMA application_id`: the letters FLMO.
APPLICATION_ID = 0x464C4D4F
#: Earlier champions that a device remembers.
MOST_BEFORE = 8
_VERSION = re.compile(r"v(\d{6})")
#: Seconds that a change waits for another one, and that a reader waits for a change to reach the disk.
_WAIT_SECS = 60.0
#: Bytes of a journal that is looked at: it has the pages that a change was about to replace.
_MOST_BYTES = 1 << 30
#: A journal that ends so names a further file, which SQLite would delete after a look into it.
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
#: Names and order of the columns are those of `Champion` and `Change`; what has parts of its own is JSON.
_TABLES = (
    """CREATE TABLE champion (
    device_id TEXT PRIMARY KEY,
    version TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    since REAL NOT NULL,
    reason TEXT NOT NULL,
    judged TEXT,
    before TEXT NOT NULL,
    earlier TEXT,
    pinned_at REAL,
    rolled_back_from TEXT NOT NULL,
    retained TEXT NOT NULL
) WITHOUT ROWID""",
    """CREATE TABLE change (
    serial INTEGER PRIMARY KEY,
    at_secs REAL NOT NULL,
    kind TEXT NOT NULL,
    device_id TEXT NOT NULL,
    version TEXT NOT NULL,
    previous TEXT NOT NULL,
    reason TEXT NOT NULL,
    judged TEXT
)""",
)


def versions(folder: Path) -> list[str]:
    """List the versions in a folder of models, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name))


def version_number(name: str) -> int:
    """Number of a version.

    Raises:
        ValueError: The name is no version's.
    """
    match = _VERSION.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name of a version, such as v000012")
    return int(match.group(1))


def latest(folder: Path) -> Path:
    """Folder of the newest version.

    Raises:
        FleetError: There is none.
    """
    names = versions(folder)
    if not names:
        raise FleetError(f"no model under {folder}; run `fleet train` first")
    return folder / names[-1]


class RegistryError(FleetError):
    """The registry cannot do what it was asked for, or its files are damaged."""


#: Name of a version, or nothing.
_Name = Annotated[str, Field(pattern=r"^(v[0-9]{6})?$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """The head that serves a device."""

    device_id: DeviceId
    version: _Name
    #: Hash of the version's manifest.
    sha256: str
    #: Unix seconds when it took its place.
    since: FiniteFloat
    #: Why it did.
    reason: str
    #: What it reached on held-out workloads when it was published (`fleet.models.promotion`); None where not
    #: judged.
    judged: Json[Mapping[str, Any]] | None = None
    #: Versions that served the device before, oldest first; those after a rollback's target are gone.
    before: Json[tuple[_Name, ...]] = ()
    #: `judged` of the last of these.
    earlier: Json[Mapping[str, Any]] | None = None
    #: Unix seconds since when nobody may change it; None where it is not pinned.
    pinned_at: FiniteFloat | None = None
    #: Newest version that was rolled back by hand: it does not come back by itself, and only a better head
    #: takes the place. Empty where none was.
    rolled_back_from: _Name = ""
    #: Why the last version that could have taken the place did not; empty where there was none.
    retained: str = ""

    @property
    def ref(self) -> ModelRef:
        """What travels to agents and clients."""
        return ModelRef(version=self.version, device_id=self.device_id, sha256=self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One device got another champion, or its champion was pinned or let go."""

    #: Counted from 1 over all changes; 0 before it is written.
    serial: int = 0
    at_secs: FiniteFloat
    #: `published`, `rolled_back`, `pinned` or `unpinned`.
    kind: str
    device_id: DeviceId
    version: _Name
    #: Version that served before, the same where only a pin changed; empty for a first one.
    previous: _Name
    reason: str
    judged: Json[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Who serves."""

    #: Serial of the last change.
    serial: int = 0
    champions: Mapping[DeviceId, Champion] = field(default_factory=dict)


_CHAMPIONS, _CHANGES = TypeAdapter(list[Champion]), TypeAdapter(list[Change])


class RegistryFile:
    """The file while it is open: all that is read in one block is of one moment."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def state(self) -> State:
        """Who serves.

        Raises:
            RegistryError: The rows hold other values than were written.
        """
        champions = self._rows(_CHAMPIONS, "SELECT * FROM champion ORDER BY device_id")
        with _file_errors(self._path):
            [serial] = self._connection.execute("SELECT coalesce(max(serial), 0) FROM change").fetchone()
        return State(serial=serial, champions={champion.device_id: champion for champion in champions})

    def changes(self, after: int) -> list[Change]:
        """Changes with a serial above `after`, oldest first.

        Raises:
            RegistryError: As of `state`.
        """
        return self._rows(_CHANGES, "SELECT * FROM change WHERE serial > ? ORDER BY serial", after)

    def commit(self, champions: Iterable[Champion], changes: Sequence[Change]) -> None:
        """Put champions in place, with the changes that tell of it: after a kill all of it or nothing.

        Raises:
            OSError: The disk is full or failed; nothing of it counts.
            RegistryError: The file is damaged, or readers do not let go of it.
        """
        present = self.state().champions
        fresh = [_values(champion) for champion in champions if champion != present.get(champion.device_id)]
        with _file_errors(self._path, is_change=True):
            # Whoever writes into damaged pages makes more of them.
            [fault] = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            if fault != "ok":
                raise _damage(self._path, one_line(fault))
            self._connection.executemany(f"REPLACE INTO champion VALUES ({'?, ' * 10}?)", fresh)
            self._connection.executemany(
                f"INSERT INTO change VALUES (NULL, {'?, ' * 6}?)", [_values(change)[1:] for change in changes]
            )
            self._connection.execute("COMMIT")

    def _rows(self, kind: TypeAdapter[list[_Row]], query: str, *values: int) -> list[_Row]:
        try:
            with _file_errors(self._path):
                self._connection.row_factory = sqlite3.Row
                rows = list(map(dict, self._connection.execute(query, values)))
            # Bytes become lists, which are no value of any column.
            return kind.validate_json(json.dumps(rows, default=list), strict=True)
        except ValidationError as error:
            raise _damage(self._path, first_fault(error)) from None


_Row = TypeVar("_Row", Champion, Change)


def _values(row: Champion | Change) -> tuple[Any, ...]:
    values = asdict(row).values()
    return tuple(canonical_json(cell) if isinstance(cell, dict | tuple) else cell for cell in values)


@contextmanager
def opened(path: Path, *, is_change: bool = False) -> Iterator[RegistryFile]:
    """Open the file of a registry, as it was after the last change.

    For a change it is made if it is missing, and nobody else changes it or the versions meanwhile. Readers
    wait during its commit only; what is not committed is taken back. They may write too, for who comes first
    takes back what a killed process left half done.

    Raises:
        OSError: The disk is full or failed, for a change.
        RegistryError: It is missing or damaged, another version wrote it, or it cannot be read.
    """
    if is_change:
        refuse_network(path)
        _make(path)
    _check_journal(path)
    with _file_errors(path, is_change=is_change):
        name = f"{path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(name, uri=True, timeout=_WAIT_SECS, isolation_level=None)
    with closing(connection):
        with _file_errors(path, is_change=is_change):
            # EXTRA waits for the folder too once the journal is gone: a power cut that brought the journal
            # back would take back a change that was acknowledged.
            connection.execute(f"PRAGMA {'synchronous=EXTRA' if is_change else 'query_only=ON'}")
            connection.execute(f"BEGIN {'IMMEDIATE' if is_change else 'DEFERRED'}")
            _check_tables(connection, path)
        yield RegistryFile(connection, path)


def _make(path: Path) -> None:
    """Make the file, unless another process was first. It comes whole, so an empty one is a damaged one."""
    if path.exists():
        return
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        numbers = f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={REGISTRY_LAYOUT}"
        connection.executescript(";".join((*_TABLES, *numbers)))
        content = connection.serialize()
    whole = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    write_durably(whole, content)
    # The first one may have cleared ours away.
    with suppress(FileExistsError, FileNotFoundError):
        os.link(whole, path)
    whole.unlink(missing_ok=True)
    fsync(path.parent)


def _check_journal(path: Path) -> None:
    """Refuse the journal of a stranger in which SQLite would wait for ever, or which names a further file."""
    journal = path.with_name(path.name + "-journal")
    try:
        if read_regular(journal, _MOST_BYTES).endswith(_SUPER_JOURNAL):
            raise _damage(path, f"{journal.name} names a further file, which none of ours does")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _damage(path, f"{journal.name}: {error.strerror}") from error


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another version, or of somebody else.

    Raises:
        RegistryError: It holds anything but the tables of a registry.
    """
    heads = [
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "application_id", "user_version")
    ]
    # Nor may there be anything else, such as a view that never ends in the place of a table.
    tables = [text for (text,) in connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")]
    if [*heads, *tables] != ["delete", APPLICATION_ID, REGISTRY_LAYOUT, *_TABLES]:
        raise _damage(path, "another version or another program wrote it: read it with that one")


def _damage(path: Path, fault: str) -> RegistryError:
    return RegistryError(
        f"{path}: {fault}; restore it, or delete it and train anew: no device has a champion then"
    )


@contextmanager
def _file_errors(path: Path, *, is_change: bool = False) -> Iterator[None]:
    """Turn the errors of SQLite into a registry's; for a change those of the disk into the system's."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise _damage(path, "a name in it is no text") from error
    except sqlite3.Error as error:
        code = sqlite_code(error)
        if code == sqlite3.SQLITE_BUSY:
            raise RegistryError(
                f"{path.parent} is being changed by another process for {_WAIT_SECS:.0f} s; try again"
            ) from error
        if code == sqlite3.SQLITE_READONLY and not is_change:
            raise RegistryError(
                f"{path}: a killed process left a change half done, and only who may write in its folder "
                "takes that back; do it with `fleet models list`"
            ) from error
        if is_change and not is_damage(error):
            raise os_error(error, path) from error
        raise _damage(path, one_line(str(error))) from error
