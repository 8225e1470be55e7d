"""How many files and sockets the daemon may have open: as many as it is allowed to allow itself.

A process begins with the soft limit, 1,024 mostly. Agents, the store and Ray take some each, and so does
whoever connects to the API (`fleet.api.connections`) or to Ray.
"""

from __future__ import annotations

import resource

#: More are of no use, and some programs walk through all numbers up to the limit.
MOST_OPEN_FILES = 65_536


def raise_open_files() -> int:
    """Raise the soft limit of this process and of all that it starts to the hard one; returns what holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
