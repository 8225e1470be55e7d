"""Descriptor and environment of this host.

Called by the device worker before it measures, by `fleet init`, `fleet probe` and `fleet doctor`. Reads
`/proc`, `/sys` and package metadata; never imports TVM. Must not know how devices are configured or records
kept; whether this host can be a device is for `agents.host.device_kinds`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agents.host import cpu_features as isa
from agents.host import procfs as host
from agents.host.cuda import cuda_devices, gpu_state
from agents.records import Descriptor, DeviceSpec

_ROOT = Path("/")

# Packages whose version changes the programs that are made or how they are timed.
_PROGRAM_PACKAGES = ("apache-tvm", "apache-tvm-ffi")

CUDA_DRIVER = "cuda-driver"

#: Parts of an environment that last: another value makes other measurements. `governor` and `turbo` are
#: settings that last too, but many hosts hide them. The rest belongs to one moment and only travels along.
#: So does the kernel's release: it changes every few weeks and moves a latency by less than noise, so it
#: would only make good records incomparable.
LASTING_KEYS = ("arch", "cpu_model", "versions")


@cache
def installed_version(package: str) -> str:
    """Give the version of an installed package without importing it; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _cpu_info(root: Path) -> host.CpuInfo:
    # Reading /proc/cpuinfo takes milliseconds on a host of many cores, and models and flags stay the same.
    return host.parse_cpuinfo(host.read_text(root / "proc/cpuinfo"))


def probe(root: Path = _ROOT, usable: Sequence[int] | None = None, arch: str | None = None) -> Descriptor:
    """Look at this host; another file tree (`root`) describes another one.

    Logical CPUs that this process may use, and the architecture, are asked of the system by default.
    """
    info = host.parse_cpuinfo(host.read_text(root / "proc/cpuinfo"))
    usable = tuple(sorted(os.sched_getaffinity(0) if usable is None else usable))
    arch = isa.normal_arch(arch or platform.machine())
    first = usable[0] if usable else 0
    groups = host.sibling_groups(root, info)
    logical = len(host.online_cpus(root)) or len(info.mhz) or len(usable)
    cores = len(groups) or logical
    caches = host.caches(root, first)
    sve = int(host.read_number(root / "proc/sys/abi/sve_default_vector_length"))
    vector = isa.vector_bytes(arch, info.flags, sve)
    versions = {**_program_versions(root), "python": platform.python_version()}
    return Descriptor(
        host=socket.gethostname(),
        arch=arch,
        cpu_model=info.model,
        physical_cores=cores,
        logical_cores=logical,
        usable_cores=usable,
        isa_flags=info.flags,
        vector_bytes=vector,
        l1d_bytes=caches.l1d,
        l2_bytes=caches.l2,
        l3_bytes=caches.l3,
        cache_line_bytes=caches.line,
        memory_bytes=host.memory_bytes(root, "MemTotal"),
        clock_min_mhz=host.cpufreq_mhz(root, first, "cpuinfo_min_freq"),
        clock_max_mhz=host.cpufreq_mhz(root, first, "cpuinfo_max_freq"),
        clock_now_mhz=host.cpufreq_mhz(root, first, "scaling_cur_freq") or info.mhz.get(first, 0.0),
        governor=host.cpufreq(root, first, "scaling_governor"),
        smt=any(len(group) > 1 for group in groups),
        kernel=os.uname().release,
        versions=tuple(sorted(versions.items())),
        # Ansor itself writes 64 for the vector unit of every CPU; the true width tells devices apart. The
        # five parameters after the cache line are those of GPUs.
        ansor_params=(cores, vector, caches.line, 0, 0, 0, 0, 0),
        cuda_devices=tuple(tuple(sorted(device.items())) for device in cuda_devices()),
    )


def core_groups(root: Path = _ROOT) -> tuple[tuple[int, ...], ...]:
    """Group the logical CPUs of this host by the physical core that they share."""
    return host.sibling_groups(root, _cpu_info(root))


def _program_versions(root: Path) -> dict[str, str]:
    driver = host.cuda_driver(root)
    return _package_versions() | ({CUDA_DRIVER: driver} if driver else {})


def _package_versions() -> dict[str, str]:
    versions = {package: installed_version(package) for package in _PROGRAM_PACKAGES}
    return {package: version for package, version in versions.items() if version}


def remote_descriptor(spec: DeviceSpec, board_descriptor: Descriptor | None = None) -> Descriptor:
    """Describe a device of kind `rpc` by what its server saw, else by what its YAML tells.

    Args:
        spec: The device; `mtriple`, `mcpu` and `mattr` of its target (for a GPU, of the target's `host`)
            tell architecture and vectors. A target without them is built for this host's architecture.
        board_descriptor: What `probe` gave on the device, where its server offers that.

    Returns:
        The host is `tracker/key` and the versions are those of the programs that build here. Without
        `board_descriptor` everything that only a probe on the device could tell is 0 or empty.
    """
    host_versions = tuple(sorted(_package_versions().items()))
    place = f"{spec.tracker}/{spec.key}"
    if board_descriptor is not None:
        return replace(board_descriptor, host=place, versions=host_versions, roofline=())
    target = spec.target if spec.target.get("kind") == "llvm" else spec.target.get("host", {})
    needs = isa.requirement(target if isinstance(target, Mapping) else {}, platform.machine())
    # With a name that the tables do not hold, the flags are only those of the oldest CPU.
    vector = 0 if needs.unlisted else isa.vector_bytes(needs.arch, needs.flags)
    return Descriptor(
        host=place,
        arch=needs.arch,
        vector_bytes=vector,
        versions=host_versions,
        ansor_params=(0, vector, 0, 0, 0, 0, 0, 0),
    )


def environment(cores: tuple[int, ...], root: Path = _ROOT, gpu_index: int | None = None) -> dict[str, Any]:
    """Take the snapshot of this host that travels with a record; JSON-ready, about 0.2 ms without a GPU.

    Args:
        cores: Logical CPUs that timing is pinned to; their clocks and governors are read.
        root: Root of the file tree to read.
        gpu_index: Ordinal of the CUDA device that times, in the order of `agents.host.cuda.cuda_devices`.

    Returns:
        The keys of `LASTING_KEYS`, and of this moment: `kernel`, `python`, `cores`, `affinity`, `load`
        (processes ready to run, over 1, 5 and 15 minutes), `memory_available_bytes`. Where the host shows
        them also `governor` and `clock_mhz` (one a core of `cores`), `turbo`, `temperature_c` (hottest
        sensor), `memory_pressure` (per cent of the last 10 s), `steal_ticks` (of `cores` since boot: the
        difference of two records tells what a hypervisor took between them) and `gpu` (see
        `agents.host.cuda.gpu_state`).
    """
    snapshot: dict[str, Any] = {
        "arch": isa.normal_arch(platform.machine()),
        "cpu_model": _cpu_info(root).model,
        "versions": _program_versions(root),
        "kernel": os.uname().release,
        "python": platform.python_version(),
        "cores": list(cores),
        "affinity": sorted(os.sched_getaffinity(0)),
        "load": [round(value, 2) for value in os.getloadavg()],
        "memory_available_bytes": host.memory_bytes(root, "MemAvailable"),
    }
    readings: dict[str, list[Any]] = {
        "governor": [host.cpufreq(root, core, "scaling_governor") for core in cores],
        "clock_mhz": [host.cpufreq_mhz(root, core, "scaling_cur_freq") for core in cores],
    }
    snapshot.update({key: values for key, values in readings.items() if any(values)})
    if speed := host.turbo(root):
        snapshot["turbo"] = speed
    moment = {
        "temperature_c": host.temperature_c(root),
        "memory_pressure": host.memory_pressure(root),
        "steal_ticks": host.steal_ticks(root, cores),
        "gpu": None if gpu_index is None else gpu_state(gpu_index) or None,
    }
    return snapshot | {key: value for key, value in moment.items() if value is not None}
