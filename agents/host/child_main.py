"""`python -m agents.host.child_main MODULE PARENT NICE CORES ARGUMENT...`: what every child begins with.

Started by `agents.host.child_process`. It dies with its parent, gives way to others and stays on its cores
before the module that it is for is imported.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from agents.host.priority import be_nice
from agents.host.process_control import die_with_parent


def main(arguments: Sequence[str]) -> None:
    """Prepare this process, and be the program of a module."""
    module, parent, nice, cores, *rest = arguments
    die_with_parent(int(parent))
    if int(nice):
        be_nice(int(nice))
    if cores:
        os.sched_setaffinity(0, set(map(int, cores.split(","))))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
