"""Latencies of several devices parted into what they share and what is each one's own.

Called by whatever carries the latencies of source devices over to a new one. All of it works on logarithms of
seconds, where "twice as slow" is the same distance everywhere, and inside a workload.

Legend: n rows, S source devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transfer.arrays import Floats, Groups
from transfer.data.labels import group_min

#: Passes that part a table with holes into row and column effects.
_PASSES = 8
#: A candidate that is e times slower than the best of its workload counts 1/e.
_FAST = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Agreed:
    """Source devices' log latencies parted."""

    #: (n,) log seconds that the source devices agree on; NaN where none measured the row.
    shared: Floats
    #: (n, S) what a source device says beside it; 0 where it did not measure the row.
    own: Floats


def part_latencies(latency_secs: Floats, group: Groups) -> Agreed:
    """Part source devices' latencies into what they share and what is their own.

    A source device that lacks some candidates of a workload must not make those look fast or slow, so each
    has a level in each workload, found together with the means by going to and fro.

    Args:
        latency_secs: (n, S) seconds, NaN where there is none.
        group: (n,) workload of each row.
    """
    is_measured = np.isfinite(latency_secs)
    values = np.where(is_measured, np.log(np.where(is_measured, latency_secs, 1.0)), 0.0)
    count = int(group.max(initial=-1)) + 1
    per_row = is_measured.sum(axis=1)
    per_level = np.zeros((count, is_measured.shape[1]))
    np.add.at(per_level, group, is_measured)
    # Where no candidate ties two source devices together, each one's mean is its level: what a slow device
    # measured must not look slow beside what a fast one did.
    level = np.zeros_like(per_level)
    np.add.at(level, group, values)
    level /= np.maximum(1, per_level)
    shared = np.zeros(len(group))
    for _ in range(_PASSES):
        rest = np.where(is_measured, values - level[group], 0.0)
        shared = rest.sum(axis=1) / np.maximum(1, per_row)
        rest = np.where(is_measured, values - shared[:, None], 0.0)
        total = np.zeros_like(level)
        np.add.at(total, group, rest)
        level = total / np.maximum(1, per_level)
        # Only differences of levels are defined.
        level -= (level * (per_level > 0)).sum(axis=1, keepdims=True) / np.maximum(
            1, (per_level > 0).sum(axis=1, keepdims=True)
        )
    own = np.where(is_measured, values - shared[:, None] - level[group], 0.0)
    return Agreed(np.where(per_row > 0, shared, np.nan), own)


def fast_weights(value: Floats, group: Groups) -> Floats:
    """(n,) weights in (0, 1] that fall with the distance to the best of the workload; 0 where unknown."""
    least = group_min(value[:, None], group, int(group.max(initial=-1)) + 1)[group, 0]
    return np.asarray(np.nan_to_num(np.exp(-(value - least) / _FAST)))
