"""Frames of the spool's segment files: make them, find them again, set damaged files aside.

Only `agents.spool.disk_spool` calls it. A frame is the marker, the length of its payload and a CRC-32 (4
bytes each, little-endian), then the payload: JSON.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Starts each frame. 0xF5 occurs in no UTF-8 text, so no payload can hold it and a search finds true frames.
MARKER = b"\xf5REC"
HEAD = struct.Struct("<4sII")


@dataclass(slots=True)
class Scan:
    """What a segment file holds."""

    #: (offset, length) of the payloads of all whole frames.
    frames: list[tuple[int, int]]
    #: End of the last whole frame.
    end: int
    #: Offsets where bytes between whole frames are no frame.
    holes: list[int]


def frame(value: dict[str, Any]) -> bytes:
    """Make the frame of a JSON object."""
    # ASCII only, so the marker cannot occur inside.
    payload = json.dumps(value, separators=(",", ":")).encode()
    return HEAD.pack(MARKER, len(payload), _crc(payload)) + payload


def _crc(payload: bytes) -> int:
    # The length is part of the sum: else a length of 0 over zeros would be a whole frame.
    return zlib.crc32(payload, len(payload))


def payload_at(data: bytes, offset: int) -> int | None:
    """Length of the payload of the whole frame at this offset, or None."""
    if offset + HEAD.size > len(data):
        return None
    marker, length, crc = HEAD.unpack_from(data, offset)
    payload = data[offset + HEAD.size : offset + HEAD.size + length]
    if marker != MARKER or len(payload) != length or crc != _crc(payload):
        return None
    return int(length)


def scan(data: bytes) -> Scan:
    """Find the frames of a segment, also those behind damage."""
    found = Scan(frames=[], end=0, holes=[])
    at = 0
    while at < len(data):
        length = payload_at(data, at)
        if length is not None:
            if at != found.end:
                found.holes.append(found.end)
            found.frames.append((at + HEAD.size, length))
            at += HEAD.size + length
            found.end = at
        else:
            at = data.find(MARKER, at + 1)
            if at < 0:
                break
    return found


def set_aside(path: Path, data: bytes, found: Scan) -> str:
    """Keep a damaged segment for people, and put its good frames in its place; return what to say."""
    kept = path.with_name(path.name + ".corrupt")
    number = 0
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.{number}.corrupt")
    good = path.with_name(path.name + ".tmp")
    with good.open("wb") as stream:
        for offset, length in found.frames:
            stream.write(data[offset - HEAD.size : offset + length])
        stream.flush()
        os.fsync(stream.fileno())
    # A second name first, then one step to the new content: a kill in between loses neither.
    kept.hardlink_to(path)
    good.replace(path)
    fsync_folder(path.parent)
    offsets = ", ".join(map(str, found.holes))
    return (
        f"{path} is damaged at byte {offsets}: kept as {kept.name}, its {len(found.frames)} good frames go on"
    )


def truncate(path: Path, size: int) -> None:
    """Cut a file, durably."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Wait until new and renamed files of a folder, or what a file holds, are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, durably: else a power cut takes them with all they hold."""
    made = [one for one in folder.parents if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    # Its own name always: a kill may have come between the two steps.
    for one in (folder, *made):
        fsync_folder(one.parent)


__all__ = [
    "HEAD",
    "MARKER",
    "Scan",
    "frame",
    "fsync_folder",
    "make_folder",
    "payload_at",
    "scan",
    "set_aside",
    "truncate",
]
