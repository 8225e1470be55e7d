"""Lines of a log that nobody vouches for: plain, gz or bz2, in bounded memory, damage told instead of raised.

Called by `fleet.interchange.import_logs`. It knows bytes and lines only, no JSON and no dialect.
"""

from __future__ import annotations

import bz2
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from fleet.errors import FleetError
from fleet.terminal_text import visible

#: A longer line is dropped as it is read. Modules of databases reach some hundred KB, records some 20 KB.
MAX_LINE_BYTES: Final = 32 << 20

#: Bytes taken from the file, and decompressed, at once.
_READ_BYTES = 1 << 14
_CHUNK_BYTES = 1 << 20
#: Bytes looked at to tell what a file is.
_LOOK_BYTES = 1 << 20
#: How a packed file begins, and what unpacks it.
_PACKED: Final[Mapping[str, tuple[bytes, Callable[[], Any]]]] = {
    "gz": (b"\x1f\x8b", partial(zlib.decompressobj, wbits=31)),
    "bz2": (b"BZh", bz2.BZ2Decompressor),
}
#: Bytes of a packed file that are unpacked at once: of gz they give less than `_CHUNK_BYTES`.
_STEP_BYTES = 256
#: A compressed file that unpacks to more than so many times its size is none of a log: those reach fifty. So
#: many bytes are unpacked in any case.
_MOST_RATIO = 128
_FREE_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class Unreadable(str):
    """Stands in a batch for a line that could not be read whole; the text is the reason."""


LONG_LINE: Final = Unreadable("line too long")
CUT_LINE: Final = Unreadable("cut by damage to the compressed file")


class LogLines:
    """The lines of one file.

    Attributes:
        path: The file.
        position: Bytes of the file read so far.
        damage: What is wrong with the compression of the file; empty if nothing was seen.
    """

    def __init__(
        self, path: Path, max_line_bytes: int = MAX_LINE_BYTES, chunk_bytes: int = _CHUNK_BYTES
    ) -> None:
        self.path = path
        self._limit = max_line_bytes
        self._chunk = chunk_bytes
        #: Bytes of the file that are still to be read: of one that grows, those that it had at first.
        self._unread_bytes = 0
        self.position = 0
        self.damage = ""

    def __iter__(self) -> Iterator[bytes | Unreadable]:
        r"""Yield all lines in order, without their `\n`.

        A last line without an end counts, an empty rest does not. A line over the limit comes as `LONG_LINE`;
        if a packed file is damaged, the whole lines up to some KB before come (of bz2 those of whole blocks),
        and `CUT_LINE` for the piece at the damage.

        Raises:
            OSError: The file cannot be opened or read.
        """
        # Pieces of the line that has not ended yet: joining them chunk by chunk would cost the square.
        pieces: list[bytes] = []
        length = 0
        for chunk in _without_bom(self.chunks()):
            first, *others = chunk.split(b"\n")
            pieces.append(first)
            length += len(first)
            for piece in others:
                yield b"".join(pieces) if length <= self._limit else LONG_LINE
                pieces, length = [piece], len(piece)
            if length > self._limit:
                pieces = []
        if length:
            whole: bytes | Unreadable = b"".join(pieces) if length <= self._limit else LONG_LINE
            yield CUT_LINE if self.damage else whole

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes in pieces.

        Raises:
            FleetError: It is no regular file: a pipe or a device may have no end.
            OSError: The file cannot be opened or read.
        """
        # A pipe that was put in the place of the file must not be waited for.
        with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FleetError(f"{visible(str(self.path))} is no regular file: only those can be imported")
            self._unread_bytes = status.st_size
            head = self._read(stream, _READ_BYTES)
            for form, (magic, _) in _PACKED.items():
                if head.startswith(magic):
                    yield from self._unpacked(stream, head, form)
                    return
            yield head
            while chunk := self._read(stream, self._chunk):
                yield chunk

    def _unpacked(self, stream: BinaryIO, data: bytes, form: str) -> Iterator[bytes]:
        """Decompress members one after the other, in small steps: of a step that fails nothing comes back."""
        magic, make = _PACKED[form]
        unpacker = make()
        unpacked = 0
        while True:
            step = b""
            if getattr(unpacker, "needs_input", True):  # bz2 keeps what it was given
                data = data or self._read(stream, _READ_BYTES)
                if not data:
                    self.damage = f"{form}: the file ends too early"
                    return
                step, data = data[:_STEP_BYTES], data[_STEP_BYTES:]
            try:
                output = unpacker.decompress(step, _CHUNK_BYTES)
            except (OSError, zlib.error) as error:
                self.damage = f"{form}: {str(error).lower()}"
                return
            unpacked += len(output)
            if unpacked > max(_FREE_BYTES, _MOST_RATIO * self.position):
                self.damage = (
                    f"{form}: it unpacks to over {_MOST_RATIO} times its size; unpack it first if it should"
                )
                return
            if output:
                yield output
            if unpacker.eof:
                data = self._next_member(stream, unpacker.unused_data + data, magic, form)
                if not data:
                    return
                unpacker = make()

    def _next_member(self, stream: BinaryIO, data: bytes, magic: bytes, form: str) -> bytes:
        """What the next compressed member begins with; empty at the end, or where something else follows.

        Members follow each other; zeros may fill up the end.
        """
        data = data.lstrip(b"\0") or self._read(stream, _READ_BYTES).lstrip(b"\0")
        if data and len(data) < len(magic):
            data += self._read(stream, _READ_BYTES)
        if data and not data.startswith(magic):
            self.damage = f"{form}: something else follows the compressed data"
            return b""
        return data

    def _read(self, stream: BinaryIO, count: int) -> bytes:
        data = stream.read(min(count, self._unread_bytes))
        self._unread_bytes -= len(data)
        self.position += len(data)
        return data


def first_lines(path: Path, count: int) -> tuple[list[bytes], str]:
    """Look into a file: at most `count` of its first lines, the last maybe cut, and damage met until there.

    Raises:
        OSError: The file cannot be opened or read.
    """
    lines = LogLines(path, chunk_bytes=_READ_BYTES)
    data = b""
    for chunk in lines.chunks():
        data += chunk
        if data.count(b"\n") >= count or len(data) >= _LOOK_BYTES:
            break
    return data.removeprefix(_BOM).split(b"\n")[:count], lines.damage


def _without_bom(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Leave out a byte order mark at the start, which may come in several pieces."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= len(_BOM):
            break
    yield head.removeprefix(_BOM)
    yield from chunks
