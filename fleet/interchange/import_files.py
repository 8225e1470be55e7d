"""Which files an import reads: folders are walked, and what is no log is left out and named."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import msgspec

from agents.files import fsync
from agents.values import Value
from fleet.errors import FleetError, disk_errors
from fleet.interchange.import_report import LineCounts
from fleet.interchange.line_reader import is_head
from fleet.interchange.logs.lines import first_lines
from fleet.terminal_text import visible

# Which files were read to their end before: an import that is run again does not read them again.
#
# Called by `fleet.interchange.import_logs`. One JSON line a file, in the store's folder `imports/`, written
# after the file's last row is durable. It is only a shortcut: without it the same lines are found to be
# known.

#: Folder of the journals in a store.
FOLDER = "imports"

#: Changes when the importer gives other records for the same lines; what was read before is read again then.
IMPORT_VERSION = 1


class FileState(Value, frozen=True, kw_only=True):
    """A file as it was when it was read: changed in any way, it is another one."""

    #: As a URI: names of files need not be text.
    path: str
    bytes: int
    modified_ns: int
    #: Options of the import: the same file read as another dialect is another source.
    settings: str


class _JournalLine(Value, frozen=True):
    file: FileState
    counts: LineCounts
    version: int = IMPORT_VERSION


def _counter(_: type, value: dict[str, int]) -> Counter[str]:
    return Counter(value)


_DECODE = msgspec.json.Decoder(_JournalLine, dec_hook=_counter).decode


class ImportJournal:
    """The files of one device that were read to their end."""

    def __init__(self, store: Path, device_id: str) -> None:
        self._path = store / FOLDER / f"{device_id}.jsonl"
        self._finished: dict[FileState, LineCounts] = {}
        with disk_errors("reading the journal of imports", self._path):
            text = self._path.read_bytes() if self._path.exists() else b""
        for line in text.splitlines():
            with suppress(msgspec.MsgspecError, ValueError):  # torn by a kill: the file is read again
                noted = _DECODE(line)
                if noted.version == IMPORT_VERSION:
                    self._finished[noted.file] = noted.counts

    def counts(self, state: FileState) -> LineCounts | None:
        """What the file held when it was read to its end; None if it was not."""
        return self._finished.get(state)

    def finish(self, files: Mapping[FileState, LineCounts]) -> None:
        """Note files whose rows are all durable.

        Raises:
            StoreFull: No room.
            StoreError: The disk failed.
        """
        if not files:
            return
        lines = msgspec.json.Encoder().encode_lines(
            [_JournalLine(state, counts) for state, counts in files.items()]
        )
        with disk_errors("writing the journal of imports", self._path):
            is_new = not self._path.exists()
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("ab") as stream:
                # A torn line of a killed import must not swallow the next one.
                stream.write(lines if is_new else b"\n" + lines)
                stream.flush()
                os.fsync(stream.fileno())
            fsync(self._path.parent)
        self._finished.update(files)


#: File names (without suffixes) that say that the layout is DEVICE/NETWORK/TUNER: search methods of TVM.
TUNERS = frozenset(
    ("xgb", "xgboost", "xgb_knob", "ga", "random", "grid", "gridsearch", "droplet", "evolutionary", "sketch")
)
#: Files that an export writes beside its logs: what was best.
_NO_LOGS = (".results.json", ".best.json")
_SUFFIXES = (".gz", ".bz2", ".jsonl", ".json", ".log", ".txt")

#: Lines of a file that are looked at to tell a log from something else.
_LOOK_LINES = 20

#: How a JSON object or list begins; `[12s] step 3` and `[INFO] ...` of a tool's messages do not.
_JSON_START = re.compile(
    rb'\s*[\[{]\s*(?:$|["\[{\]}]|(?:-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)\s*(?:,|\]?\s*$))'
)

#: Files of one import at most, and characters of a network's name.
MAX_FILES = 100_000
_MAX_NETWORK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file to read."""

    path: Path
    bytes: int
    #: Network that its workloads belong to; empty if nothing says so.
    network: str


def find_logs(paths: Sequence[Path], network: str = "") -> tuple[list[LogFile], list[Path]]:
    """List the files of an import, each once, folders in the order of their names.

    Args:
        paths: Files, which are read whatever they are, and folders.
        network: Network of all files; where it is empty, the layout NETWORK/TUNER tells.

    Returns:
        The logs, and files of the folders that hold no line of JSON.

    Raises:
        FleetError: A path does not exist, or nothing was found.
        OSError: A file cannot be read.
    """
    logs: dict[Path, LogFile] = {}
    others: list[Path] = []
    for root in paths:
        if not root.exists():
            raise FleetError(f"{visible(str(root))}: no such file or folder: nothing was imported")
        if not (root.is_dir() or root.is_file()):
            raise FleetError(f"{visible(str(root))} is no regular file: nothing was imported")
        for path in _walk(root):
            if len(logs) + len(others) >= MAX_FILES:
                raise FleetError(
                    f"{visible(str(root))}: more than {MAX_FILES:,} files: import some folders at a time"
                )
            if path != root and (path.name.endswith(_NO_LOGS) or not _looks_like_log(path)):
                others.append(path)
                continue
            log = LogFile(path=path, bytes=path.stat().st_size, network=network or network_of(path))
            logs.setdefault(path.resolve(), log)
    if not logs:
        names = ", ".join(visible(str(path)) for path in paths)
        raise FleetError(f"{names}: holds no log of a tuner: nothing was imported")
    return list(logs.values()), others


def _walk(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    # By hand: `os.walk` calls itself for every level, and a folder may have thousands.
    waiting = [str(path)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listed:
                entries = sorted(
                    (entry for entry in listed if not entry.name.startswith(".")), key=attrgetter("name")
                )
        except OSError:
            continue
        yield from filter(Path.is_file, (Path(entry.path) for entry in entries))
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        waiting += reversed(folders)


def network_of(path: Path) -> str:
    """Name of the folder where the file is named after a tuner, as in DEVICE/NETWORK/TUNER.jsonl.gz."""
    name = path.absolute().parent.name if stem_of(path) in TUNERS else ""
    return name if is_network(name) else ""


def is_network(name: str) -> bool:
    """Whether a text can be the name of a network: it is shown, and stored."""
    return name.isprintable() and len(name) <= _MAX_NETWORK


def stem_of(path: Path) -> str:
    """Name without the suffixes of logs."""
    name = path.name.lower()
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def _looks_like_log(path: Path) -> bool:
    """Whether a first line begins like JSON or heads a tuner's table, or the file is damaged at once."""
    lines, damage = first_lines(path, _LOOK_LINES)
    return is_head(lines[0]) or any(map(_JSON_START.match, lines)) or bool(damage and not any(lines))
