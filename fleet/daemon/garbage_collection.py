"""Python's search for dead cycles, made seldom: it stops everything, and a coordinator hardly makes any.

`fleet.daemon.daemon` runs in it. With a thousand devices and the usual thresholds it took a quarter of the
processor time, a tenth of a second at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: New objects before the youngest are looked through, and how often that before older ones are. At 10,000
#: records a second all are looked through every two minutes or so.
_THRESHOLDS = (200_000, 20, 25)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for dead cycles seldom, and never among what is there already."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
