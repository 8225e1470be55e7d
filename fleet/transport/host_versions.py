"""Which versions the hosts of a fleet must share, and how a host with others is refused.

An agent runs the project, the TVM and the Python of its own host. With others than the coordinator's it would
misread what it is asked, or measure other programs under the same name.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping

from agents.host.probe import installed_version

#: Packages whose versions must be equal on all hosts; Python's must be too.
SHARED_PACKAGES = ("tensor-fleet", "apache-tvm")
_PYTHON, _HOST = "python", "host"
#: What Ray says to a process whose Ray or Python is another than the cluster's, its spaces made single.
_RAY_MISMATCH = re.compile(
    r"Version mismatch: The cluster was started with: Ray: (\S+) Python: (\S+)"
    r" This process on .*? was started with: Ray: (\S+) Python: (\S+)"
)


def own_versions() -> dict[str, str]:
    """The versions of this process, by name; empty where a package is not installed."""
    versions = {package: installed_version(package) for package in SHARED_PACKAGES}
    return {**versions, _PYTHON: platform.python_version()}


def version_refusal(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Say in one line why an agent's host is refused; None where it has the same versions.

    Args:
        theirs: Version of each package and of Python on the agent's host, and the name of that `host`.
        ours: Those of the coordinator.
    """
    differ = [name for name in ours if theirs.get(name, "") != ours[name]]
    if not differ:
        return None
    pairs = (f"{name} {theirs.get(name) or 'none'} (coordinator: {ours[name] or 'none'})" for name in differ)
    return (
        f"its host {theirs.get(_HOST) or 'of unknown name'} has "
        f"{', '.join(pairs)}; install the coordinator's versions there"
    )


def join_refusal(message: str, address: str) -> str | None:
    """Say in one line that Ray refused a process for its version; None where Ray said something else."""
    mismatch = _RAY_MISMATCH.search(" ".join(message.split()))
    if mismatch is None:
        return None
    theirs, ours = mismatch.group(1, 2), mismatch.group(3, 4)
    differ = [number for number in (0, 1) if theirs[number] != ours[number]]
    names = ("Ray", "Python")
    pairs = (f"{names[number]} {ours[number]} (cluster: {theirs[number]})" for number in differ)
    return (
        f"the Ray cluster at {address} refuses this host: it has {', '.join(pairs)}; "
        "use the cluster's version here"
    )
