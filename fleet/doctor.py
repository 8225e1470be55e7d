"""`fleet doctor`: what on this host would spoil measurements or stop the program, and what to do about it.

`look` gathers the state of the host; `diagnose` judges it and is pure, so that other hosts can be judged in
tests. Called by the command line; changes nothing.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agents import host
from agents.probe import core_groups, differences
from agents.records import Descriptor, DeviceKind, DeviceSpec

# With tvm-ffi 0.1.15 and later, TVM 0.27 ends in a segmentation fault as soon as a module is saved to JSON.
_CRASHING_FFI = (0, 1, 15)
_GOOD_FFI = "0.1.14.post0"
_TVM = "0.27.0.post1"
# Two processes with TVM (0.4 GiB each), one with torch, and a large convolution's arrays fit into 2 GiB.
_LOW_MEMORY_BYTES = 2 << 30
# A day of one device is a few hundred MiB of records; with less than 256 MiB the store refuses appends.
_LOW_DISK_BYTES = 2 << 30
_FULL_DISK_BYTES = 256 << 20
# The fleet itself keeps one core per process busy; a load well above what it needs is someone else's.
_QUIET_LOAD = 0.5


class Level(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    level: Level
    #: What is the case.
    what: str
    #: Why it matters.
    why: str
    #: What to do, with the command where there is one.
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What the doctor looks at beside the descriptor."""

    #: Processes that were ready to run, averaged over the last minute.
    load: float = 0.0
    #: Memory this process may still take, in bytes; 0 if unknown.
    memory_available_bytes: int = 0
    #: CPUs' worth of time that the control groups allow; infinity if unlimited.
    cpu_quota: float = math.inf
    #: Logical CPUs by physical core; empty if unknown.
    core_groups: tuple[tuple[int, ...], ...] = ()
    #: Governor of each usable core that shows one.
    governors: tuple[tuple[int, str], ...] = ()
    #: Modules of `WANTED_MODULES` that are not installed.
    missing_modules: tuple[str, ...] = ()
    #: Where the dataset is kept, and the bytes free there; -1 if unknown.
    store: str = ""
    disk_free_bytes: int = -1
    #: True where NVIDIA's driver is loaded.
    nvidia_driver: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModule:
    """A Python module that some verb needs."""

    package: str
    why: str
    level: Level


#: Modules that are looked for, none of them imported.
WANTED_MODULES: Mapping[str, WantedModule] = {
    "tvm": WantedModule(
        package=f"apache-tvm=={_TVM}", why="programs are built and timed with TVM", level=Level.ERROR
    ),
    "psutil": WantedModule(package="psutil", why="TVM's worker processes need it", level=Level.WARNING),
    "cloudpickle": WantedModule(
        package="cloudpickle", why="TVM's worker processes need it", level=Level.WARNING
    ),
    "tornado": WantedModule(
        package="tornado", why="TVM's RPC tracker and server need it", level=Level.WARNING
    ),
    "xgboost": WantedModule(
        package="xgboost", why="only comparisons with TVM's own cost model need it", level=Level.NOTE
    ),
    "pynvml": WantedModule(
        package="nvidia-ml-py",
        why="CUDA devices are described through it, else by nvidia-smi",
        level=Level.NOTE,
    ),
}


def look(store: Path, root: Path = Path("/")) -> HostState:
    """Gather the state of this host.

    Args:
        store: Where the dataset is or will be kept.
        root: Root of the file tree to read.
    """
    usable = sorted(os.sched_getaffinity(0))
    governors = ((core, host.cpufreq(root, core, "scaling_governor")) for core in usable)
    return HostState(
        load=os.getloadavg()[0],
        memory_available_bytes=host.memory_available_bytes(root),
        cpu_quota=host.cpu_quota(root),
        core_groups=core_groups(root),
        governors=tuple((core, governor) for core, governor in governors if governor),
        missing_modules=tuple(name for name in WANTED_MODULES if importlib.util.find_spec(name) is None),
        store=str(store),
        disk_free_bytes=_free_bytes(store),
        nvidia_driver=bool(host.cuda_driver(root)),
    )


def diagnose(
    descriptor: Descriptor, specs: Iterable[DeviceSpec], state: HostState | None = None
) -> list[Finding]:
    """Judge a host.

    Args:
        descriptor: What the probe saw.
        specs: The devices that this host is to be; a difference from a file is a finding.
        state: What `look` gathered; None judges the descriptor and the specs alone.

    Returns:
        Findings, the worst first. Errors stop the program or a device, warnings spoil measurements.
    """
    devices = list(specs)
    state = state or HostState()
    found = [
        *_software(descriptor, state),
        *_specs(descriptor, devices),
        *_clock(descriptor, state),
        *_cores(descriptor, devices, state),
        *_room(state),
    ]
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))


def version_numbers(version: str) -> tuple[int, ...]:
    """Give the first three numbers of a version (`0.1.14.post0` is (0, 1, 14)); empty if it has none."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def _software(descriptor: Descriptor, state: HostState) -> Iterable[Finding]:
    versions = dict(descriptor.versions)
    ffi = versions.get("apache-tvm-ffi", "")
    if version_numbers(ffi) >= _CRASHING_FFI:
        yield Finding(
            level=Level.ERROR,
            what=f"apache-tvm-ffi {ffi} is installed",
            why="TVM 0.27 crashes with 0.1.15 and later when it saves a module",
            do=f"pip install apache-tvm-ffi=={_GOOD_FFI}",
        )
    tvm = versions.get("apache-tvm", "")
    if tvm and tvm != _TVM:
        yield Finding(
            level=Level.WARNING,
            what=f"apache-tvm {tvm} is installed",
            why=f"this project is tested with {_TVM}; TVM's Python interface changes between versions",
            do=f"pip install apache-tvm=={_TVM} apache-tvm-ffi=={_GOOD_FFI}",
        )
    for name in state.missing_modules:
        wanted = WANTED_MODULES[name]
        if name == "pynvml" and not state.nvidia_driver:
            continue
        yield Finding(
            level=wanted.level,
            what=f"the Python module {name} is missing",
            why=wanted.why,
            do=f"pip install {wanted.package}",
        )
    if state.nvidia_driver and not descriptor.cuda_devices:
        yield Finding(
            level=Level.WARNING,
            what="NVIDIA's driver is loaded, but no CUDA device is visible",
            why="its devices cannot be measured",
            do="look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES",
        )


def _specs(descriptor: Descriptor, devices: Iterable[DeviceSpec]) -> Iterable[Finding]:
    for spec in devices:
        for difference in differences(spec, descriptor):
            yield Finding(
                level=Level.NOTE,
                what=f"device {spec.device_id} cannot be measured here",
                why=difference.partition(": ")[0],
                do=difference.partition(": ")[2] or "change its file",
            )


def _clock(descriptor: Descriptor, state: HostState) -> Iterable[Finding]:
    slow = [(core, governor) for core, governor in state.governors if governor != "performance"]
    if slow:
        governors = ", ".join(sorted({governor for _, governor in slow}))
        yield Finding(
            level=Level.WARNING,
            what=f"the frequency governor is {governors} on {len(slow)} of {len(state.governors)} cores",
            why="the clock follows the load, so the same program gets faster while it is timed",
            do="sudo cpupower frequency-set -g performance",
        )
    if state.load > _QUIET_LOAD * max(1, len(descriptor.usable_cores)):
        yield Finding(
            level=Level.WARNING,
            what=f"the load is {state.load:.1f} on {len(descriptor.usable_cores)} usable cores",
            why="programs beside the timed one take its caches, its memory bandwidth and its turn",
            do="stop them, or wait: `uptime` shows the load",
        )


def _cores(descriptor: Descriptor, devices: Iterable[DeviceSpec], state: HostState) -> Iterable[Finding]:
    usable = descriptor.usable_cores
    timing = {core for spec in devices if spec.kind is not DeviceKind.REPLAY for core in spec.cores} & set(
        usable
    )
    if len(usable) < 2:
        yield Finding(
            level=Level.WARNING,
            what=f"this process may use {len(usable)} core",
            why="building and timing must take turns, which halves the speed or worse",
            do="give it two cores or more (taskset, container limits)",
        )
    shared = sorted(
        {cpu for group in state.core_groups if timing & set(group) for cpu in group if cpu in usable}
    )
    idle = [cpu for cpu in shared if cpu not in timing]
    if idle:
        names = ",".join(map(str, idle))
        keep = ",".join(str(cpu) for cpu in usable if cpu not in idle)
        yield Finding(
            level=Level.WARNING,
            what=f"logical CPU {names} shares a physical core with a timing core and would build programs",
            why="a busy SMT sibling takes up to half of the timed core",
            do=f"start with `taskset -c {keep}`, or switch SMT off (/sys/devices/system/cpu/smt/control)",
        )
    if state.cpu_quota < len(usable):
        yield Finding(
            level=Level.WARNING,
            what=f"the container may use {state.cpu_quota:.2g} CPUs' worth of time on {len(usable)} cores",
            why="once it is spent the kernel stops every process, in the middle of a timing too",
            do="pin the container to whole cores (docker --cpuset-cpus) instead of --cpus",
        )


def _room(state: HostState) -> Iterable[Finding]:
    if 0 < state.memory_available_bytes < _LOW_MEMORY_BYTES:
        yield Finding(
            level=Level.WARNING,
            what=f"{state.memory_available_bytes / 2**30:.1f} GiB of memory are available",
            why=f"less than {_LOW_MEMORY_BYTES >> 30} GiB makes builders swap or be killed",
            do="stop other programs or raise the container's limit",
        )
    if 0 <= state.disk_free_bytes < _LOW_DISK_BYTES:
        full = state.disk_free_bytes < _FULL_DISK_BYTES
        yield Finding(
            level=Level.ERROR if full else Level.WARNING,
            what=f"{state.disk_free_bytes / 2**20:.0f} MiB are free where the store is ({state.store})",
            why="a full disk stops collection; what is stored stays whole",
            do="free space there, or set store.path in configs/fleet.yaml",
        )


def _free_bytes(store: Path) -> int:
    place = store.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return -1
