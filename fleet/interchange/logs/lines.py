"""Lines of a log that nobody vouches for: plain, gz or bz2, in bounded memory, damage told instead of raised.

Called by `fleet.interchange.import_logs`. It knows bytes and lines only, no JSON and no dialect.
"""

from __future__ import annotations

import bz2
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from fleet.errors import FleetError
from fleet.terminal_text import visible

#: A longer line is dropped as it is read. Modules of databases reach some hundred KB, records some 20 KB.
MAX_LINE_BYTES: Final = 32 << 20

#: Bytes taken from the file, and decompressed, at once.
_READ_BYTES = 1 << 14
_CHUNK_BYTES = 1 << 20
#: Bytes looked at to tell what a file is.
_LOOK_BYTES = 1 << 20
_GZ_MAGIC = b"\x1f\x8b"
_BZ2_MAGIC = b"BZh"
#: Bytes of a bz2 file that are unpacked at once: of a call that fails nothing comes back.
_BZ2_BYTES = 256
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
        """Yield the lines of `batches` one by one."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[bytes | Unreadable]]:
        r"""Yield all lines in order, some MB at a time, without their `\n`.

        A last line without an end counts, an empty rest does not. A line over the limit comes as `LONG_LINE`;
        where a packed file is damaged, all whole lines before come (of bz2 those of whole blocks), and
        `CUT_LINE` for the piece at the damage.

        Raises:
            OSError: The file cannot be opened or read.
        """
        # Pieces of the line that has not ended yet: joining them chunk by chunk would cost the square.
        pieces: list[bytes] = []
        length = 0
        for chunk in _without_bom(self.chunks()):
            lines: list[bytes | Unreadable] = [*chunk.split(b"\n")]
            rest = lines.pop()
            if lines:
                lines[0] = self._joined(pieces, length, lines[0])
                if len(chunk) > self._limit:  # only with a limit below the usual size of a chunk
                    lines = [line if len(line) <= self._limit else LONG_LINE for line in lines]
                pieces, length = [], 0
            length += len(rest)
            if length <= self._limit:
                pieces.append(rest)  # type: ignore[arg-type]
            else:
                pieces = []
            if lines:
                yield lines
        if length:
            yield [CUT_LINE if self.damage else self._joined(pieces, length, b"")]

    def _joined(self, pieces: list[bytes], length: int, end: bytes | Unreadable) -> bytes | Unreadable:
        if length + len(end) > self._limit:
            return LONG_LINE
        return b"".join([*pieces, end]) if pieces else end  # type: ignore[list-item]

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
            if head.startswith(_GZ_MAGIC):
                yield from self._inflated(stream, head)
                return
            if head.startswith(_BZ2_MAGIC):
                yield from self._unpacked_bz2(stream, head)
                return
            yield head
            while chunk := self._read(stream, self._chunk):
                yield chunk

    def _inflated(self, stream: BinaryIO, data: bytes) -> Iterator[bytes]:
        """Decompress members one after the other; a bomb grows by `_CHUNK_BYTES` at a time only."""
        inflater = zlib.decompressobj(wbits=31)
        unpacked = 0
        while True:
            # zlib gives nothing of a call that fails, so a call is tried on a copy: what came before damage
            # within it can then be had byte by byte.
            before = inflater.copy()
            try:
                output = inflater.decompress(data, self._chunk)
            except zlib.error as error:
                self.damage = f"gz: {error}"
                yield _up_to_damage(before, data)
                return
            unpacked += len(output)
            if self._is_bomb(unpacked, "gz"):
                return
            if output:
                yield output
            if inflater.eof:
                data = self._next_member(stream, inflater.unused_data, _GZ_MAGIC, "gz")
                if not data:
                    return
                inflater = zlib.decompressobj(wbits=31)
            elif inflater.unconsumed_tail:
                data = inflater.unconsumed_tail
            else:
                data = self._read(stream, _READ_BYTES)
                if not data and not output:
                    self.damage = "gz: the file ends too early"
                    return

    def _unpacked_bz2(self, stream: BinaryIO, data: bytes) -> Iterator[bytes]:
        """Decompress streams one after the other, in small steps."""
        unpacker = bz2.BZ2Decompressor()
        unpacked = 0
        while True:
            step = b""
            if unpacker.needs_input:
                data = data or self._read(stream, _READ_BYTES)
                if not data:
                    self.damage = "bz2: the file ends too early"
                    return
                step, data = data[:_BZ2_BYTES], data[_BZ2_BYTES:]
            try:
                output = unpacker.decompress(step, self._chunk)
            except OSError as error:
                self.damage = f"bz2: {str(error).lower()}"
                return
            unpacked += len(output)
            if self._is_bomb(unpacked, "bz2"):
                return
            if output:
                yield output
            if unpacker.eof:
                data = self._next_member(stream, unpacker.unused_data + data, _BZ2_MAGIC, "bz2")
                if not data:
                    return
                unpacker = bz2.BZ2Decompressor()

    def _is_bomb(self, unpacked: int, form: str) -> bool:
        """Whether a file has unpacked to more bytes than any log; it is then damaged."""
        if unpacked <= max(_FREE_BYTES, _MOST_RATIO * self.position):
            return False
        self.damage = f"{form}: it unpacks to over {_MOST_RATIO} times its size; unpack it first if it should"
        return True

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


def _up_to_damage(inflater: zlib._Decompress, data: bytes) -> bytes:
    """What the bytes before the damage give; `data` is some KB, and this runs once a file."""
    output = b""
    try:
        for place in range(len(data)):
            output += inflater.decompress(data[place : place + 1])
            if len(output) > _CHUNK_BYTES:
                break
    except zlib.error:
        pass
    return output
