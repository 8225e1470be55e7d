"""One bit a place: which candidates of a workload a device has measured.

Only `fleet.coverage.matrix` and its callers use it. A device may have measured a few of very many candidates,
so bits are kept in chunks, and only chunks with a bit set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

#: Bytes of a chunk, and places in it.
CHUNK_BYTES = 512
_PLACES = 8 * CHUNK_BYTES


class PlaceBits:
    """A set of places.

    Attributes:
        chunks: By number: `CHUNK_BYTES` bytes; place p is bit p % 8 of byte p // 8 of all chunks in a row.
    """

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks: dict[int, bytearray] = {}

    def set_few(self, places: Sequence[int]) -> int:
        """As `set_many`, of places in any order: arrays pay from some fifty on."""
        new = 0
        for place in places:
            chunk = self._chunk(place // _PLACES)
            at, mask = (place % _PLACES) >> 3, 1 << (place & 7)
            if not chunk[at] & mask:
                chunk[at] |= mask
                new += 1
        return new

    def set_many(self, places: NDArray[np.int64]) -> int:
        """Set bits.

        Args:
            places: (n,) sorted, without repeats, at least one.

        Returns:
            How many were not set before.
        """
        numbers = places // _PLACES
        new = 0
        for part in np.split(places, np.flatnonzero(np.diff(numbers)) + 1):
            row = np.frombuffer(self._chunk(int(part[0]) // _PLACES), dtype=np.uint8)
            at, masks = (part % _PLACES) >> 3, np.left_shift(1, part & 7).astype(np.uint8)
            new += int(np.count_nonzero((row[at] & masks) == 0))
            np.bitwise_or.at(row, at, masks)
        return new

    def holds(self, place: int) -> bool:
        """Whether a bit is set."""
        chunk = self.chunks.get(place // _PLACES)
        return chunk is not None and bool(chunk[(place % _PLACES) >> 3] >> (place & 7) & 1)

    def places(self) -> NDArray[np.int64]:
        """Places whose bits are set, in order."""
        numbers = np.array(sorted(self.chunks), dtype=np.int64)
        row = np.frombuffer(b"".join(self.chunks[one] for one in numbers.tolist()), dtype=np.uint8)
        found = np.flatnonzero(np.unpackbits(row, bitorder="little"))
        return numbers[found // _PLACES] * _PLACES + found % _PLACES if len(found) else found

    def open_places(self, count: int) -> Iterator[int]:
        """Places below `count` whose bits are not set, in order; no more is looked at than is asked for."""
        for number in range(-(-count // _PLACES)):
            start = number * _PLACES
            chunk = self.chunks.get(number)
            if chunk is None:
                yield from range(start, min(start + _PLACES, count))
                continue
            row = ~np.frombuffer(bytes(chunk), dtype=np.uint8)
            for place in np.flatnonzero(np.unpackbits(row, bitorder="little")).tolist():
                if start + place < count:
                    yield start + place

    def _chunk(self, number: int) -> bytearray:
        chunk = self.chunks.get(number)
        if chunk is None:
            chunk = self.chunks[number] = bytearray(CHUNK_BYTES)
        return chunk
