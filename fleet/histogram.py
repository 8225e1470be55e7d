"""How long something takes, counted by classes of seconds as Prometheus wants them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Upper bounds of the classes in seconds; the last class has none.
BOUNDS_SECS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts since it was made. Cheap enough for every wait for the disk."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECS) + 1)
        self._sum_secs = 0.0

    def add(self, secs: float) -> None:
        """Count one."""
        self._counts[bisect_left(BOUNDS_SECS, secs)] += 1
        self._sum_secs += secs

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what runs under it, whether it fails or not."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(time.perf_counter() - began)

    @property
    def view(self) -> dict[str, Any]:
        """JSON-ready: `counts`, one a class and one for what is above all bounds, and `sum_secs`."""
        return {"counts": list(self._counts), "sum_secs": self._sum_secs}
