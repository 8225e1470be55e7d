"""What a search leaves of a whole network: a compiled library, checked and timed beside other ways to run it.

Called by `tuning.py` before the search and behind it. Before it each network is compiled without schedules
and compared with torch, so that one without a right library is refused before anything is measured. Libraries
are built and timed in confined processes (`agents.networks.reader`); the fastest one with the right output is
kept: the one of this search, that of an earlier one, or TVM's without any schedule.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agents.files import fsync
from agents.host.host_lock import host_lock_path, make_lock
from agents.networks.latency import SIDES
from agents.networks.library import TUNED, UNTUNED
from agents.networks.network_name import NetworkName, NetworkRefusedError, read_network_name
from agents.networks.reader import ask, checked_answer
from agents.records import DeviceKind, DeviceSpec, Family, WorkloadId
from agents.sandbox.scratch import require_executable, scratch_folder
from fleet.json_types import Json, JsonDict
from fleet.store.catalog import DeviceEntry

#: Longest that a network's first run, its compilation with schedules, and its timing may take.
_FIRST_RUN_SECS, _BUILD_SECS, _TIME_SECS = 900.0, 1800.0, 1800.0
#: Of networks that are checked on this host, for devices that are not here.
_HOST_TARGET = {"kind": "llvm"}
#: Least seconds of a side in one turn of the timing.
_TURN_SECS = 0.3
#: Sides whose library is made for the timing, and those whose library may be kept.
_MADE = ("tvm_tuned", "tvm_untuned")
_LIBRARIES = ("tvm_tuned", "tvm_earlier", "tvm_untuned")


@dataclass(frozen=True, slots=True)
class Untuned:
    """What the first run of a network left: its library without schedules."""

    library: Path
    #: Seconds of each program, all its uses in a run together; none for a GPU.
    program_secs: Mapping[WorkloadId, float]


def labels_of(networks: Sequence[str]) -> dict[str, str]:
    """The name that records keep of each network, by its spelling.

    Raises:
        NetworkRefusedError: A file cannot be read, or one is a set of networks.
        AgentError: Libraries of networks could not be loaded here.
    """
    if any(read_network_name(text).is_graph for text in networks):
        require_executable(Path(tempfile.gettempdir()))
    for text in networks:
        if read_network_name(text).source == "corpus":
            raise NetworkRefusedError(
                f"network {text}: is a set of architectures to collect from; tune one of its members"
            )
    return {text: read_network_name(text).label() for text in networks}


def why_not_here(spec: DeviceSpec, host: str | None) -> str:
    """Why a library for a device is not built and timed by this process; empty where it is."""
    if spec.kind not in (DeviceKind.LOCAL, DeviceKind.CUDA):
        return f"a device of kind {spec.kind} is not timed with whole networks; apply the database yourself"
    this_host = socket.gethostname()
    if host is not None and host != this_host:
        return f"the device is on host {host}, and this is {this_host}; apply the database there"
    return ""


def check_all(networks: Sequence[str], device: DeviceEntry, folder: Path) -> dict[str, Untuned]:
    """Compile each network that is a graph without schedules, and compare its output with torch's.

    Args:
        networks: As `agents.networks.network_name` reads them.
        device: Networks of one that is not on this host are checked on this host's CPU.
        folder: Where the libraries go.

    Returns:
        What each network's run left, by its spelling; none for a device that is not here.

    Raises:
        NetworkRefusedError: One of them has no library with the right output.
    """
    host = device.descriptor.host if device.descriptor is not None else None
    is_here, runs = not why_not_here(device.spec, host), dict[str, Untuned]()
    for number, text in enumerate(networks):
        if not read_network_name(text).is_graph:
            continue
        own = folder / str(number)
        own.mkdir()
        untuned = check_network(text, device.spec if is_here else None, own)
        if is_here:
            runs[text] = untuned
    return runs


def check_network(text: str, spec: DeviceSpec | None, folder: Path) -> Untuned:
    """Compile a network without schedules into a folder, run it once, and compare its output with torch's.

    Args:
        text: The network.
        spec: The device that runs it; None for this host's CPU.
        folder: The process may write in it; the library is `UNTUNED` in it.

    Raises:
        NetworkRefusedError: It cannot be read, imported, compiled or run, its output is random, or another
            than torch's.
    """
    question = {
        "op": "first_run",
        "network": text,
        "family": Family.CPU if spec is None else spec.family,
        "target": _HOST_TARGET if spec is None else spec.target,
        "folder": str(folder),
        "threads": 1 if spec is None else spec.threads,
        "gpu_index": None if spec is None else _gpu_index(spec),
    }
    threads, cores = (1, ()) if spec is None else (spec.threads, spec.cores)
    raw_answer = ask(question, folder=folder, threads=threads, cores=cores, timeout_secs=_FIRST_RUN_SECS)
    return Untuned(folder / UNTUNED, checked_answer(text, _of_first_run, raw_answer))


def _gpu_index(spec: DeviceSpec) -> int | None:
    return spec.index if spec.kind is DeviceKind.CUDA else None


def deliver_all(
    labels: Mapping[str, str],
    device: DeviceEntry,
    traces: Mapping[WorkloadId, Sequence[str]],
    out: Path,
    untuned: Mapping[str, Untuned],
    rivals: Sequence[str],
) -> dict[str, JsonDict]:
    """Deliver each network that is a graph. What goes wrong with one is told, and keeps no other from it.

    Args:
        labels: Of the networks, by spelling.
        device: The device.
        traces: Schedules of each workload, the fastest one alone first.
        out: Folder of the libraries.
        untuned: What `check_all` gave.
        rivals: Ways of `SIDES` that the libraries are timed beside.

    Returns:
        What `deliver` gives, by label; `{"why_not"}` where there is no library.
    """
    deliveries = {}
    host = device.descriptor.host if device.descriptor is not None else None
    for text, label in labels.items():
        if not read_network_name(text).is_graph:
            continue
        if why_not := why_not_here(device.spec, host):
            deliveries[label] = {"why_not": why_not}
            continue
        try:
            deliveries[label] = deliver(text, device.spec, traces, out, untuned[text].library, rivals)
        except NetworkRefusedError as error:
            deliveries[label] = {"why_not": str(error)}
    return deliveries


def deliver(
    text: str,
    spec: DeviceSpec,
    traces: Mapping[WorkloadId, Sequence[str]],
    out: Path,
    untuned: Path,
    rivals: Sequence[str] = SIDES,
) -> JsonDict:
    """Compile a network with the fastest schedules, compare its output, time it, and keep the library.

    Args:
        text: The network.
        spec: The device.
        traces: Schedules of each workload, the fastest one alone first.
        out: Folder of the libraries.
        untuned: Its library without schedules, of `check_network`.
        rivals: Ways of `SIDES` that the libraries are timed beside.

    Returns:
        What `agents.networks.latency.time_sides` and `agents.networks.library.build` give, and: `library`
        (path; None where no output is right), `kept` (its side), `is_equal`,
        `speedup_vs_untuned`.

    Raises:
        NetworkRefusedError: It cannot be read, compiled or run.
    """
    library_path = out / f"{file_name(read_network_name(text))}.so"
    with (
        scratch_folder("tensor-fleet-library-") as folder,
        tempfile.TemporaryDirectory(prefix="tensor-fleet-earlier-") as ours,
    ):
        built = build_library(text, spec, traces, folder)
        libraries = {"tvm_untuned": untuned, "tvm_tuned": folder / TUNED}
        if library_path.exists():
            # Loaded from the same place under which it will be replaced, it would be replaced while it runs.
            # Not into the folder of a process that a file may have taken over: it may have left a link there,
            # and we would write wherever that leads.
            libraries["tvm_earlier"] = Path(shutil.copyfile(library_path, Path(ours) / "earlier.so"))
        timed = time_network(text, spec, libraries, folder, rivals)
        tolerance = timed["tolerance"]
        chosen = choose_library(timed, tolerance)
        if chosen is not None and chosen != "tvm_earlier":
            _put(libraries[chosen], library_path)
    secs = timed["secs"]
    return {
        **built,
        **timed,
        "library": str(library_path) if chosen is not None else None,
        "kept": chosen,
        "is_equal": is_right("tvm_tuned", timed, tolerance),
        "speedup_vs_untuned": secs["tvm_untuned"] / secs[chosen] if chosen is not None else None,
    }


def build_library(
    text: str, spec: DeviceSpec, traces: Mapping[WorkloadId, Sequence[str]], folder: Path
) -> JsonDict:
    """Compile a network with schedules, into a folder that the process may write in.

    Raises:
        NetworkRefusedError: It cannot be read or compiled.
    """
    question = {
        "op": "build",
        "network": text,
        "family": spec.family,
        "target": spec.target,
        "traces": dict(traces),
        "folder": str(folder),
        "lock": str(_lock_of(spec)),
        "cores": spec.cores,
    }
    # This process leaves those of the device alone while it is measured.
    cores = sorted(os.sched_getaffinity(0).union(spec.cores))
    raw_answer = ask(question, folder=folder, threads=spec.threads, cores=cores, timeout_secs=_BUILD_SECS)
    return checked_answer(text, _of_build, raw_answer)


def _lock_of(spec: DeviceSpec) -> Path:
    """The timing lock of a device of this host, which its process may only open."""
    gpu_index = _gpu_index(spec)
    lock = host_lock_path() if gpu_index is None else host_lock_path(f"cuda-{gpu_index}")
    with suppress(OSError):
        make_lock(lock)
    return lock


def time_network(
    text: str,
    spec: DeviceSpec,
    libraries: Mapping[str, Path],
    folder: Path,
    rivals: Sequence[str] = SIDES,
) -> JsonDict:
    """Time libraries of a network beside other ways to run it, on the device's cores.

    Raises:
        NetworkRefusedError: A library does not run.
    """
    question = {
        "op": "time",
        "network": text,
        "family": spec.family,
        "libraries": {side: str(path) for side, path in libraries.items()},
        "sides": list(rivals),
        "threads": spec.threads,
        "turn_secs": _TURN_SECS,
        "lock": str(_lock_of(spec)),
        "gpu_index": _gpu_index(spec),
    }
    raw_answer = ask(question, folder=folder, threads=spec.threads, cores=spec.cores, timeout_secs=_TIME_SECS)
    return checked_answer(text, lambda answer: _of_times(answer, (*SIDES, *libraries)), raw_answer)


def _of_first_run(answer: Json) -> dict[WorkloadId, float]:
    return {WorkloadId(str(name)): _secs(secs) for name, secs in answer.get("program_secs", {}).items()}


def _of_build(answer: Json) -> JsonDict:
    return {
        "workloads": int(answer["workloads"]),
        "applied": int(answer["applied"]),
        "refused": {str(name): str(why) for name, why in answer["refused"].items()},
        "ways": int(answer["ways"]),
        "changed": int(answer["changed"]),
    }


def _of_times(answer: Json, sides: Sequence[str]) -> JsonDict:
    # Those that were made just now are never absent.
    timed = [side for side in sides if side in answer["secs"] or side in _MADE]
    reference = answer["reference"]
    if reference not in timed:
        raise ValueError(f"its reference is {reference!r:.60}")
    others = [side for side in timed if side != reference]
    return {
        "secs": {side: _secs(answer["secs"][side]) for side in timed},
        "turns": {side: [_secs(secs) for secs in (answer["turns"][side] or [None])] for side in timed},
        "absent": {side: str(why) for side, why in answer["absent"].items() if side in sides},
        "reference": reference,
        "differences": {side: _apart(answer["differences"][side]) for side in others},
        "precision": str(answer["precision"]),
        "tolerance": _tolerance(answer["tolerance"]),
        "threads": int(answer["threads"]),
        "inputs": [
            [str(name), [int(extent) for extent in shape], str(dtype)]
            for name, shape, dtype in answer["inputs"]
        ],
    }


def _apart(value: Any) -> float | None:
    return None if value is None or not math.isfinite(apart := float(value)) else abs(apart)


def _tolerance(value: Any) -> float:
    if not 0 < (tolerance := float(value)) < 1:
        raise ValueError(f"{tolerance} is no tolerance")
    return tolerance


def _secs(value: Any) -> float:
    if not 0 < (secs := float(value)) < math.inf:
        raise ValueError(f"{secs} is no number of seconds")
    return secs


def choose_library(timed: Json, tolerance: float) -> str | None:
    """The side whose library is kept: the fastest one with the right output; None where none is right."""
    secs = timed["secs"]
    right = [side for side in _LIBRARIES if side in secs and is_right(side, timed, tolerance)]
    return min(right, key=lambda side: secs[side], default=None)


def file_name(network: NetworkName) -> str:
    """The name of a network's library: of a file its own name, so that a changed one replaces it."""
    name = network.path.stem if network.path is not None else network.text
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]


def is_right(side: str, timed: Json, tolerance: float) -> bool:
    """Whether the output of a side is the expected one, as far as the numbers of its type allow."""
    if side == timed["reference"]:
        return True
    apart = timed["differences"][side]
    return apart is not None and apart <= tolerance


def _put(library: Path, library_path: Path) -> None:
    """Put a library in place, whole or not at all.

    Raises:
        NetworkRefusedError: The process that made it left something else there.
    """
    library_path.parent.mkdir(parents=True, exist_ok=True)
    beside = library_path.with_name(f".{library_path.name}.tmp")
    with _opened(library) as source, beside.open("wb") as target:
        shutil.copyfileobj(source, target)
    fsync(beside)
    beside.replace(library_path)
    fsync(library_path.parent)


def _opened(library: Path) -> BinaryIO:
    """Open a library that a confined process made: a link may lead to any file, or to one without an end.

    Raises:
        NetworkRefusedError: It is no file of its own.
    """
    try:
        handle = os.open(library, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkRefusedError(f"its process left no library {library.name}: {error.strerror}") from None
    opened = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        opened.close()
        raise NetworkRefusedError(f"its process left no library {library.name}: it is no regular file")
    return opened
