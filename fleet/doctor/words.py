"""Words of the doctor: what it found out about this host, and what it makes of it.

Values only, shared by the parts of `fleet.doctor.doctor`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agents.host.priority import Priority
from agents.sandbox.confinement_trial import Aspect, Means, Trial

# TVM as this project is tested with it.
TVM_VERSION = "0.27.0.post1"


class Level(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    level: Level = Level.WARNING
    #: The fault itself.
    what: str
    #: Why it matters.
    why: str
    #: What to do, with the command if there is one.
    do: str


class LockState(StrEnum):
    """What became of the attempt to take the host's timing lock."""

    FREE = "free"
    HELD = "held"
    #: Its file cannot be used.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MixedCode:
    """A device with records of one environment that different code of this project measured."""

    device_id: str
    #: Share by which the median speeds of its canaries differ between them; None if it was not measured.
    canary_change: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What the doctor looks at, in addition to the descriptor."""

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
    #: File that switches turbo off; empty where it is off already or hidden.
    turbo_file: str = ""
    #: How timings may go before other programs; None if nobody looked.
    priority: Priority | None = None
    #: Whether the kernel counts when it takes a core from a thread.
    counts_switches: bool = True
    timing_lock: LockState = LockState.FREE
    timing_lock_path: str = ""
    #: Why it cannot be used, if so.
    timing_lock_fault: str = ""
    #: How far worker processes are confined, or why that could not be tried; empty if it was not tried.
    confinement: Trial | str = ""
    #: Why no library can be loaded from the folder for temporary files; empty if one can.
    temporary_fault: str = ""
    #: Modules of `WANTED_MODULES` that are not installed.
    missing_modules: tuple[str, ...] = ()
    #: Where the dataset is kept, and the bytes free there; -1 if unknown.
    store: str = ""
    disk_free_bytes: int = -1
    #: True where NVIDIA's driver is loaded.
    nvidia_driver: bool = False
    #: Result of `agents.host.cuda.compiler_fault`.
    cuda_compiler_fault: str = ""
    #: Index of each CUDA device and what `agents.host.cuda.gpu_state` gives of it.
    gpus: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    #: RPC devices that cannot be reached: device, and what `agents.host.rpc_tracker.served` gives of it.
    unserved: tuple[tuple[str, str], ...] = ()
    #: What other users could read or replace and must not: file or folder, what is wrong, and what to do.
    exposed: tuple[tuple[str, str, str], ...] = ()
    #: Devices with records of one environment that different code of this project measured.
    mixed_code: tuple[MixedCode, ...] = ()


def _missing(name: str, package: str, why: str, level: Level = Level.WARNING) -> Finding:
    what = f"the Python module {name} is missing"
    return Finding(level=level, what=what, why=why, do=f"pip install {package}")


#: Modules that some verb needs, and what it means if one is not installed. None of them is imported.
WANTED_MODULES: Mapping[str, Finding] = {
    "tvm": _missing(
        "tvm", f"apache-tvm=={TVM_VERSION}", "programs are built and timed with TVM", Level.ERROR
    ),
    "psutil": _missing("psutil", "psutil", "TVM's worker processes need it"),
    "cloudpickle": _missing("cloudpickle", "cloudpickle", "TVM's worker processes need it"),
    "tornado": _missing("tornado", "tornado", "TVM's RPC tracker and server need it"),
    "xgboost": _missing("xgboost", "xgboost-cpu", "part of each model is trees of XGBoost", Level.ERROR),
    "pynvml": _missing("pynvml", "nvidia-ml-py", "CUDA devices are found with it, and their clocks and heat"),
}


# How far worker processes are confined on this host: a table, and what would make it better. Pure.
#
# `SECURITY.md` promises what stands here, row by row.

_LANDLOCK_CURE = (
    "run Linux 5.13 or later with Landlock on (CONFIG_SECURITY_LANDLOCK, and `landlock` in "
    "/sys/kernel/security/lsm), in a container that allows it"
)
_FILTER_CURE = "run Linux with CONFIG_SECCOMP_FILTER, on x86-64 or AArch64"
_TMPDIR_CURE = "set TMPDIR to a folder on a disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinementRow:
    """How far worker processes are kept from one aspect of their host."""

    aspect: Aspect
    #: What was tried and refused, and how much was tried.
    refused: tuple[str, ...]
    tried: int
    #: What refused it.
    by: tuple[str, ...]
    #: What worker processes can do, and must not.
    missing: tuple[str, ...]


def confinement_rows(trial: Trial) -> list[ConfinementRow]:
    """Give a row for each aspect, in the order of `Aspect`."""
    rows = []
    for aspect in Aspect:
        tried = [attempt for attempt in trial.attempts if attempt.aspect is aspect]
        refused = [attempt for attempt in tried if attempt.is_refused]
        missing = [attempt.what for attempt in tried if not attempt.is_refused]
        if aspect is Aspect.MEMORY and trial.memory_folder:
            missing.append(_in_memory(trial))
        rows.append(
            ConfinementRow(
                aspect=aspect,
                refused=tuple(attempt.what for attempt in refused),
                tried=len(tried),
                by=tuple(
                    f"{means} {trial.landlock}" if means is Means.LANDLOCK else str(means)
                    for means in Means
                    if means in {attempt.by for attempt in refused}
                ),
                missing=tuple(missing),
            )
        )
    return rows


def confinement_findings(trial: Trial | str) -> Iterable[Finding]:
    """Judge a trial, or give the reason why there was none; an empty text means that it was not tried."""
    if isinstance(trial, str):
        if trial:
            yield Finding(
                what="how far worker processes are confined could not be tried",
                why=trial,
                do="look at what stands there, and run `fleet doctor` again",
            )
        return
    if trial.allowed:
        cures = [_LANDLOCK_CURE] * (not trial.landlock) + [_FILTER_CURE] * (not trial.has_filter)
        yield Finding(
            what=f"worker processes can {', '.join(trial.allowed)}",
            why="so can a program that is measured; everything else that was tried is refused",
            do="; ".join(cures) or "look at what the worker processes print when they start",
        )
    if trial.memory_folder:
        yield Finding(
            what=f"worker processes can {_in_memory(trial)}",
            why="it counts against no limit of a program that is measured",
            do=_TMPDIR_CURE,
        )


def _in_memory(trial: Trial) -> str:
    return f"fill memory with files in {trial.memory_folder}, which is not a disk"
