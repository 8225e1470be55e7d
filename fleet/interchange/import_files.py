"""Which files an import reads: folders are walked, and what is no log is left out and named."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from fleet.errors import FleetError
from fleet.interchange.line_reader import is_head
from fleet.interchange.logs.lines import first_lines
from fleet.terminal_text import visible

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
