"""What every process of this project begins with: where Python looks for modules, who may write its files.

Python may look for modules in the present folder first: a `random.py` that lies there would be run instead of
the library's. A user without a umask would let everybody write to stores and spools.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Ray's token runs code on every host: a program that is measured must not find it.
_SECRETS = frozenset({"RAY_AUTH_TOKEN"})
#: Module that every child begins with; the module that the child is for is its first argument.
CHILD_MAIN = "agents.host.child_main"
#: Rights that no new file or folder gets: writing for the group, anything for others.
_UMASK = 0o027


def begin_process() -> None:
    """Prepare a process of our own, as early as possible: its new files, and modules of its children."""
    _add_to_umask()
    os.environ["PYTHONSAFEPATH"] = "1"


@contextmanager
def private_files() -> Iterator[None]:
    """Make new files as `begin_process` does, for a while: the process may belong to another program."""
    before = _add_to_umask()
    try:
        yield
    finally:
        os.umask(before)


def command(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module; needs `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """The environment of this process without its secrets, for a program to find the same project."""
    variables = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**variables, **import_environment()}


def import_environment() -> dict[str, str]:
    """Variables with which any Python finds this project, and nothing in the folder it is started in."""
    folder = str(Path(__file__).resolve().parents[2])
    # An empty entry would mean the present folder.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    # Installed, it is found by itself; its neighbours there must not come before the standard library.
    if folder not in (*site.getsitepackages(), site.getusersitepackages(), *paths[:1]):
        paths.insert(0, folder)
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def leave_out_torch() -> None:
    """Have TVM start without torch in this process, for a program that never needs torch.

    TVM imports torch wherever it is installed: 3.1 s of the 4.7 s that TVM's start took on two cores.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own sign of a module that is not there


def _add_to_umask() -> int:
    """Take rights away from new files of this process; returns the umask before."""
    before = os.umask(_UMASK)
    os.umask(before | _UMASK)
    return before
