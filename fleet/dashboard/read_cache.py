"""Keeps what was read of the store or the registry, by what it was read for. Threads may share it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

#: Results that are kept.
MOST_READS = 64
_Read = TypeVar("_Read")


class ReadCache:
    """Results of reads; a key names the version of what was read, so none is ever old."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: dict[tuple[object, ...], object] = {}

    def get(self, key: tuple[object, ...], make: Callable[[], _Read]) -> _Read:
        """What was made for a key before; made now where nothing was, or too many others came since.

        Nobody may change it.
        """
        with self._lock:
            if key in self._reads:
                return self._reads[key]  # type: ignore[return-value]
        made = make()
        with self._lock:
            self._reads[key] = made
            while len(self._reads) > MOST_READS:
                del self._reads[next(iter(self._reads))]
        return made


__all__ = ["ReadCache"]
