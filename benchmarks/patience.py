"""How long to wait for what real processes do: on a host whose cores are all taken, longer.

For `benchmarks.chaos` and `benchmarks.comeback`. A wait must end some time, or nothing would ever be found
broken; but a time that fits an idle host says nothing of one with ten programs a core.
"""

from __future__ import annotations

import os

#: Longest wait over that on an idle host.
_MOST = 10.0


def patience(secs: float) -> float:
    """Seconds to wait for what takes some on an idle host, by how many programs each core has to run now."""
    crowd = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return secs * min(_MOST, max(1.0, crowd))
