"""What a power cut may leave of a folder: what was confirmed, mixed by chance with what is there.

`benchmarks.chaos_faults` keeps a copy of each file, and of the names in each folder, whenever they have
reached the disk for certain. A cut takes each name and sector that no sync has confirmed by itself, which is
more than most file systems lose.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

#: What a disk writes whole.
_SECTOR_BYTES = 512


def power_cut(folder: Path, trace: Path, rng: random.Random) -> None:
    """Leave of a folder what a power cut may leave; to be called after the kill.

    Every name that its folder was not synced with may be gone, and a file that it replaced back. Sectors that
    were overwritten since a sync may be the old ones, and what was appended may be cut.

    Args:
        folder: The folder given to the fault points.
        trace: Their trace; it starts afresh afterwards, because then all that is left is on the disk.
        rng: Decides.
    """
    _cut_names(folder, trace, rng)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            before, now = _copy(path, trace, b""), path.read_bytes()
            if before != now:
                path.write_bytes(_mixed(before, now, rng))
    shutil.rmtree(trace)
    mark_durable(folder, trace)


def _mixed(before: bytes, now: bytes, rng: random.Random) -> bytes:
    common = min(len(before), len(now))
    starts = range(0, common, _SECTOR_BYTES)
    sectors = [rng.choice((before, now))[start : min(start + _SECTOR_BYTES, common)] for start in starts]
    tail = max(before, now, key=len)[common:]
    cut = tail[: rng.randint(0, len(tail))]
    # Some file systems leave zeros where data never arrived.
    return b"".join((*sectors, rng.choice((tail, cut, cut, cut, cut.ljust(len(tail), b"\0")))))


def _cut_names(folder: Path, trace: Path, rng: random.Random) -> None:
    durable, now = (json.loads(names) for names in (_copy(folder, trace, b"{}"), content_of(folder)))
    former = {inode: name for name, inode in durable.items() if now.get(name) != inode}
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
        _cut_names(inner, trace, rng)


def mark_durable(folder: Path, trace: Path) -> None:
    """Begin a trace that says: all that is in the folder now has reached the disk."""
    trace.mkdir(parents=True, exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        copy_path(path.stat().st_ino, trace).write_bytes(content_of(path))


def content_of(path: Path) -> bytes:
    """What a sync confirms: the bytes of a file, or the names in a folder, each with its number."""
    if path.is_dir():
        return json.dumps({entry.name: entry.inode() for entry in os.scandir(path)}).encode()
    return path.read_bytes()


def copy_path(inode: int, trace: Path) -> Path:
    """Where the copy of what was confirmed of a file or folder lies."""
    return trace / f"{inode}.synced"


def _copy(path: Path, trace: Path, otherwise: bytes) -> bytes:
    copy = copy_path(path.stat().st_ino, trace)
    return copy.read_bytes() if copy.exists() else otherwise
