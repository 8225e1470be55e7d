"""Frames, the format of earlier versions: find them in a file, and move the segments of an old spool over.

`fleet` reads its own old files with it. A frame is the marker, the length of its payload and a CRC-32 (4
bytes each, little-endian), then the payload: JSON.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from agents.codec import record_from_json
from agents.files import free_name, fsync
from agents.row_file import RowFile

#: Starts each frame. 0xF5 occurs in no UTF-8 text, so no payload can hold it and a search finds true frames.
_MARKER = b"\xf5REC"
_HEAD = struct.Struct("<4sII")


@dataclass(slots=True)
class Scan:
    """What a segment file holds."""

    #: (offset, length) of the payloads of all whole frames.
    frames: list[tuple[int, int]]
    #: End of the last whole frame.
    end: int
    #: Offsets where bytes between whole frames are no frame.
    holes: list[int]


def _payload_at(data: bytes, offset: int) -> int | None:
    """Length of the payload of the whole frame at this offset, or None."""
    if offset + _HEAD.size > len(data):
        return None
    marker, length, crc = _HEAD.unpack_from(data, offset)
    payload = data[offset + _HEAD.size : offset + _HEAD.size + length]
    # The length is part of the sum: else a length of 0 over zeros would be a whole frame.
    if marker != _MARKER or len(payload) != length or crc != zlib.crc32(payload, length):
        return None
    return int(length)


def scan(data: bytes) -> Scan:
    """Find the frames of a segment, also those behind damage."""
    found = Scan(frames=[], end=0, holes=[])
    at = 0
    while at < len(data):
        length = _payload_at(data, at)
        if length is not None:
            if at != found.end:
                found.holes.append(found.end)
            found.frames.append((at + _HEAD.size, length))
            at += _HEAD.size + length
            found.end = at
        else:
            at = data.find(_MARKER, at + 1)
            if at < 0:
                break
    return found


def old_spool(folder: Path, rows: RowFile) -> list[str]:
    """Move the records of a spool of segment files into rows; a damaged segment is set aside.

    A frame of a segment holds either a `record`, perhaps with the `lease` that it was made under, or a list
    of `acknowledged` ids. A kill in the middle costs nothing: the next call moves them again.

    Returns:
        Damage that was found, one line each.

    Raises:
        OSError: The disk is full or failed; the segments are as they were.
    """
    paths = sorted(folder.glob("*.seg"))
    if not paths:
        return []
    pending: dict[str, bytes] = {}
    damaged: dict[Path, str] = {}
    for path in paths:
        data = path.read_bytes()
        found = scan(data)
        # Only the last segment may end in the middle of a frame.
        if found.end < len(data) and path != paths[-1]:
            found.holes.append(found.end)
        if found.holes:
            damaged[path] = (
                f"{path} is damaged at byte {', '.join(map(str, found.holes))}: kept as "
                f"{free_name(path, '.corrupt').name}, its {len(found.frames)} good frames go on"
            )
        for offset, length in found.frames:
            payload = data[offset : offset + length]
            value = json.loads(payload)
            for record_id in value.get("acknowledged", ()):
                pending.pop(record_id, None)
            if "record" in value:
                record_id = record_from_json(value["record"]).record_id
                pending.pop(record_id, None)
                pending[record_id] = payload
    rows.change(list(pending.items()), [one.number for one in rows.rows() if one.key in pending])
    for path in paths:
        path.replace(free_name(path, ".corrupt")) if path in damaged else path.unlink()
    fsync(folder)
    return list(damaged.values())
