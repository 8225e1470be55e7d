"""How modules of this project are started as programs of their own, whatever folder the user is in.

Called by `process.py`, `llvm_features.py` and `fleet.refresh.trainer_process`. Python would look for modules
in the present folder first: a `random.py` that lies there would be run instead of the library's.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

#: Ray's token runs code on every host: a program that is measured must not find it.
_SECRETS = frozenset({"RAY_AUTH_TOKEN"})


def command(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module; needs `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """The environment of this process without its secrets, for a program to find the same project."""
    folder = str(Path(__file__).resolve().parents[2])
    # An empty entry would mean the present folder.
    known = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    # Installed, it is found by itself; its neighbours there must not come before the standard library.
    if folder not in (*site.getsitepackages(), site.getusersitepackages(), *known[:1]):
        known.insert(0, folder)
    kept = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**kept, "PYTHONPATH": os.pathsep.join(known)}


def leave_out_torch() -> None:
    """Have TVM start without torch in this process, for a program that never needs torch.

    TVM imports torch wherever it is installed: 3.1 s of the 4.7 s that TVM's start took on two cores.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own sign of a module that is not there
