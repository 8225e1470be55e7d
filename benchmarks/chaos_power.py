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


def _said(path: Path) -> Iterator[dict[str, Any]]:
    """What a trace says, line by line.

    A kill may cut a line, and another process writes on behind it: the step of such a line was not taken.
    """
    for line in path.read_text().splitlines():
        for begin in _BEGIN.finditer(line):
            with suppress(ValueError):
                yield json.loads(line[begin.start() :])
                break


def power_cut(folder: Path, trace: Path, rng: random.Random) -> int:
    """Leave of a folder what a power cut may leave: what no fsync has confirmed is cut, or gone, by chance.

    Every file is cut at a random byte behind what was on the disk for certain. Bytes that were overwritten
    since may be the old ones. Every name that its folder was not made durable with may be gone, and a file
    that it replaced back. To be called after the kill.

    Args:
        folder: The folder given to the fault points.
        trace: Their trace; it starts afresh afterwards, because then all that is left is on the disk.
        rng: Decides.

    Returns:
        How many bytes and names were taken or brought back.
    """
    sizes: dict[int, int] = {}
    former: dict[int, list[tuple[int, bytes]]] = {}
    names: dict[int, dict[str, int]] = {}  # by the folder's number: it may be renamed after
    if (trace / "trace.jsonl").exists():
        for said in _said(trace / "trace.jsonl"):
            if "folder" in said:
                names[said["folder"]] = said["names"]
            elif "was" in said:
                former.setdefault(said["inode"], []).append((said["offset"], bytes.fromhex(said["was"])))
            else:
                sizes[said["inode"]] = said["size"]
                former.pop(said["inode"], None)
    changed = _cut_names(Path(os.path.realpath(folder)), names, trace, rng)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            changed += _bring_back(path, former.get(path.stat().st_ino, []), rng)
            found = path.stat()
            safe = min(sizes.get(found.st_ino, 0), found.st_size)
            if safe < found.st_size and rng.random() < 0.8:
                cut = rng.randint(safe, found.st_size)
                os.truncate(path, cut)
                if rng.random() < 0.2:  # some file systems leave zeros where data never arrived
                    os.truncate(path, found.st_size)
                changed += found.st_size - cut
    shutil.rmtree(trace)
    mark_durable(folder, trace)
    return changed


def _bring_back(path: Path, former: Sequence[tuple[int, bytes]], rng: random.Random) -> int:
    """Put bytes back that were overwritten or cut off, sector by sector, each by chance; returns how many."""
    changed = 0
    with path.open("r+b") as stream:
        for offset, was in reversed(former):
            for start in range(0, len(was), _SECTOR_BYTES):
                if rng.random() < 0.5:
                    stream.seek(offset + start)
                    changed += stream.write(was[start : start + _SECTOR_BYTES])
    return changed


def _cut_names(folder: Path, names: dict[int, dict[str, int]], trace: Path, rng: random.Random) -> int:
    changed = 0
    durable = names.get(folder.stat().st_ino, {})
    now = names_in(str(folder))
    former: dict[int | None, str] = {one: name for name, one in durable.items() if now.get(name) != one}
    for name in sorted({*durable, *now}):
        path, before, after = folder / name, durable.get(name), now.get(name)
        if (old := former.get(after)) is not None and not (folder / old).exists():
            # Renamed: it has one of its names, whichever.
            if rng.random() < 0.5:
                path.rename(folder / old)
                changed += 1
            continue
        if before == after or rng.random() < 0.5:
            continue
        kept = trace / str(before)
        if before is not None and not kept.exists():
            continue  # removed by code that the fault points do not see: take it that it is gone
        changed += 1
        if after is not None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if before is not None:
            os.link(kept, path)
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        if entry.is_dir(follow_symlinks=False):
            changed += _cut_names(Path(entry.path), names, trace, rng)
    return changed


def mark_durable(folder: Path, trace: Path) -> None:
    """Write a trace that says: all that is in the folder now has reached the disk."""
    trace.mkdir(parents=True, exist_ok=True)
    root = Path(os.path.realpath(folder))
    with (trace / "trace.jsonl").open("w") as stream:
        for place in (root, *sorted(root.rglob("*"))):
            found = place.stat()
            if place.is_dir():
                stream.write(json.dumps({"folder": found.st_ino, "names": names_in(str(place))}) + "\n")
            else:
                stream.write(json.dumps({"inode": found.st_ino, "size": found.st_size}) + "\n")


def names_in(folder: str) -> dict[str, int]:
    """Each name in a folder and the number of what it names."""
    return {entry.name: entry.inode() for entry in os.scandir(folder)}
