"""What a power cut may leave of a folder, by the trace that `benchmarks.chaos_faults` wrote of its changes.

It takes each name and byte that no fsync has confirmed by itself, which is more than most file systems lose.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

#: How a line of a trace begins.
_BEGIN = re.compile(r'\{"(?:inode|folder)"')
#: What a disk writes whole.
_SECTOR_BYTES = 512


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """What a trace says, line by line.

    A kill may cut a line, and another process writes on behind it: the step of such a line was not taken.
    """
    for line in path.read_text().splitlines():
        for begin in _BEGIN.finditer(line):
            with suppress(ValueError):
                yield json.loads(line[begin.start() :])
                break


def power_cut(folder: Path, trace: Path, rng: random.Random) -> None:
    """Leave of a folder what a power cut may leave: what no fsync has confirmed is cut, or gone, by chance.

    Every file is cut at a random byte behind what was on the disk for certain. Bytes that were overwritten
    since may be the old ones. Every name that its folder was not made durable with may be gone, and a file
    that it replaced back. To be called after the kill.

    Args:
        folder: The folder given to the fault points.
        trace: Their trace; it starts afresh afterwards, because then all that is left is on the disk.
        rng: Decides.
    """
    sizes: dict[int, int] = {}
    former: dict[int, list[tuple[int, bytes]]] = {}
    names: dict[int, dict[str, int]] = {}  # by the folder's number: it may be renamed after
    for line in _lines(trace / "trace.jsonl"):
        if "folder" in line:
            names[line["folder"]] = line["names"]
        elif "was" in line:
            former.setdefault(line["inode"], []).append((line["offset"], bytes.fromhex(line["was"])))
        else:
            sizes[line["inode"]] = line["size"]
            former.pop(line["inode"], None)
    _cut_names(folder, names, trace, rng)
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        inode = path.stat().st_ino
        _bring_back(path, former.get(inode, []), rng)
        size = path.stat().st_size
        safe = min(sizes.get(inode, 0), size)
        if safe < size and rng.random() < 0.8:
            os.truncate(path, rng.randint(safe, size))
            if rng.random() < 0.2:  # some file systems leave zeros where data never arrived
                os.truncate(path, size)
    shutil.rmtree(trace)
    mark_durable(folder, trace)


def _bring_back(path: Path, former: Sequence[tuple[int, bytes]], rng: random.Random) -> None:
    """Put bytes back that were overwritten or cut off, sector by sector, each by chance."""
    with path.open("r+b") as stream:
        for offset, was in reversed(former):
            for start in range(0, len(was), _SECTOR_BYTES):
                if rng.random() < 0.5:
                    stream.seek(offset + start)
                    stream.write(was[start : start + _SECTOR_BYTES])


def _cut_names(folder: Path, names: dict[int, dict[str, int]], trace: Path, rng: random.Random) -> None:
    durable = names.get(folder.stat().st_ino, {})
    now = names_in(str(folder))
    former: dict[int | None, str] = {inode: name for name, inode in durable.items() if now.get(name) != inode}
    for name in sorted({*durable, *now}):
        path, before, after = folder / name, durable.get(name), now.get(name)
        if (old := former.get(after)) is not None and not (folder / old).exists():
            # Renamed: it has one of its names, whichever.
            if rng.random() < 0.5:
                path.rename(folder / old)
            continue
        spare = trace / str(before)
        # Without a spare it was removed by code that the fault points do not see: take it that it is gone.
        if before == after or rng.random() < 0.5 or (before is not None and not spare.exists()):
            continue
        if after is not None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if before is not None:
            os.link(spare, path)
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        _cut_names(inner, names, trace, rng)


def mark_durable(folder: Path, trace: Path) -> None:
    """Write a trace that says: all that is in the folder now has reached the disk."""
    trace.mkdir(parents=True, exist_ok=True)
    with (trace / "trace.jsonl").open("w") as stream:
        for path in (folder, *folder.rglob("*")):
            status = path.stat()
            line: dict[str, object] = {"inode": status.st_ino, "size": status.st_size}
            if path.is_dir():
                line = {"folder": status.st_ino, "names": names_in(str(path))}
            stream.write(json.dumps(line) + "\n")


def names_in(folder: str) -> dict[str, int]:
    """Each name in a folder and the number of what it names."""
    return {entry.name: entry.inode() for entry in os.scandir(folder)}
