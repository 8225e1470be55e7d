"""The doctor's eyes: gathers the state of this host from `/proc`, `/sys`, NVIDIA's library and RPC trackers.

Called by the command line through `fleet.doctor.doctor`. Judges nothing and changes nothing; looking takes
about half a second, in most of which one core is kept busy.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agents.errors import AgentError
from agents.host import procfs as host
from agents.host.cuda import compiler_fault, gpu_state
from agents.host.host_lock import HostLockError, host_lock_path, not_timing, open_lock
from agents.host.probe import core_groups
from agents.host.rpc_tracker import served
from agents.records import DeviceKind, DeviceSpec
from agents.sandbox.confinement_trial import Trial, try_confinement
from agents.sandbox.scratch import require_executable
from fleet.doctor.words import WANTED_MODULES, HostState, InterruptRate, LockState
from fleet.private_files import NotPrivateError, read_private

_WATCH_SECS = 0.3
# The timing lock is held for most of a measurement, but not all the time; so it is tried several times.
_STEP_SECS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """What the kernel counts since boot."""

    at_secs: float
    steal_ticks: int
    swapped_pages: int
    throttled: int
    #: (interrupt, source, logical CPU) -> times that the CPU served it.
    interrupts: Mapping[tuple[int, str, int], int]


def look(
    store: Path,
    root: Path = Path("/"),
    specs: Iterable[DeviceSpec] = (),
    *,
    tokens: Iterable[Path] = (),
    ray_folder: Path | None = None,
) -> HostState:
    """Gather the state of this host.

    Args:
        store: Where the dataset is or will be kept.
        root: Root of the file tree to read.
        specs: The devices that this host is to be or to reach; an RPC tracker is asked for its devices.
        tokens: Files that only this user may read; those that are not there are left out.
        ray_folder: Where `ray start` keeps its sockets.
    """
    usable = sorted(os.sched_getaffinity(0))
    devices = list(specs)
    load = os.getloadavg()[0]
    # The devices come first: reading their state takes no load of its own, while watching does.
    gpus = _gpus(devices)
    before = _counters(root, usable)
    lock = _watch(host_lock_path())
    after = _counters(root, usable)
    secs = max(after.at_secs - before.at_secs, 1e-9)
    governors = ((core, host.cpufreq(root, core, "scaling_governor")) for core in usable)
    margin = host.temperature_margin_c(root)
    swap = host.memory_bytes(root, "SwapTotal") - host.memory_bytes(root, "SwapFree")
    return HostState(
        load=load,
        memory_available_bytes=host.memory_available_bytes(root),
        memory_pressure=host.memory_pressure(root) or 0.0,
        swapped_pages=after.swapped_pages - before.swapped_pages,
        swap_used_bytes=max(0, swap),
        cpu_quota=host.cpu_quota(root),
        core_groups=core_groups(root),
        governors=tuple((core, governor) for core, governor in governors if governor),
        turbo_file=_turbo_file(root),
        temperature_margin_c=math.inf if margin is None else margin,
        throttled=after.throttled,
        throttled_now=after.throttled - before.throttled,
        stolen_share=(after.steal_ticks - before.steal_ticks) / os.sysconf("SC_CLK_TCK") / secs,
        interrupts=_rates(before, after, secs, host.uptime_secs(root)),
        timing_lock=lock,
        timing_lock_path=str(host_lock_path()),
        timing_lock_fault=_lock_fault(host_lock_path()),
        confinement=_confinement(),
        temporary_fault=_temporary_fault(Path(tempfile.gettempdir())),
        missing_modules=tuple(name for name in WANTED_MODULES if importlib.util.find_spec(name) is None),
        store=str(store),
        disk_free_bytes=_free_bytes(store),
        nvidia_driver=bool(host.cuda_driver(root)),
        cuda_compiler_fault=compiler_fault(),
        gpus=gpus,
        unserved=_unserved(devices),
        exposed=tuple(_exposed(tokens, ray_folder)),
    )


def _watch(lock: Path) -> LockState:
    """Keep one core busy for a while, and see whether anybody holds the timing lock meanwhile.

    A hypervisor takes time only from a core that wants to run: asleep, the doctor would see no neighbour.
    """
    lock_state = _try_lock(lock)
    end = time.perf_counter() + _WATCH_SECS
    while (now := time.perf_counter()) < end:
        step = now + _STEP_SECS
        while time.perf_counter() < step:
            pass
        if lock_state is LockState.FREE:
            lock_state = _try_lock(lock)
    return lock_state


def _try_lock(path: Path) -> LockState:
    """Try the timing lock as a timing would, but shared with other doctors and for no time at all."""
    try:
        with not_timing(path) as is_free:
            return LockState.FREE if is_free else LockState.HELD
    except FileNotFoundError:
        return LockState.FREE
    except HostLockError:
        return LockState.REFUSED


def _lock_fault(path: Path) -> str:
    try:
        os.close(open_lock(path))
    except FileNotFoundError:
        return ""
    except HostLockError as error:
        return str(error)
    return ""


def _confinement() -> Trial | str:
    try:
        return try_confinement()
    except AgentError as error:
        return str(error)


def _temporary_fault(folder: Path) -> str:
    try:
        require_executable(folder)
    except AgentError as error:
        return str(error)
    return ""


def _counters(root: Path, cores: Collection[int]) -> _Counters:
    pages = dict(
        line.split()[:2] for line in host.read_text(root / "proc/vmstat").splitlines() if " " in line
    )
    swapped = sum(int(pages.get(name, "0")) for name in ("pswpin", "pswpout"))
    # Only the drivers of Intel CPUs count this.
    throttles = [
        root / f"sys/devices/system/cpu/cpu{core}/thermal_throttle/{name}_throttle_count"
        for core in cores
        for name in ("core", "package")
    ]
    return _Counters(
        at_secs=time.perf_counter(),
        steal_ticks=host.steal_ticks(root, cores) or 0,
        swapped_pages=swapped,
        throttled=int(max((host.read_number(path) for path in throttles), default=0)),
        interrupts=parse_interrupts(host.read_text(root / "proc/interrupts")),
    )


def parse_interrupts(text: str) -> dict[tuple[int, str, int], int]:
    """Read `/proc/interrupts`: (interrupt, source, logical CPU) -> times served, for devices only.

    The rows of the CPUs' own interrupts (timer, rescheduling) carry letters and are left out, as are rows
    that do not fit the header.
    """
    header, _, body = text.partition("\n")
    names = header.split()
    cores = [int(name[3:]) for name in names if name.startswith("CPU") and name[3:].isdecimal()]
    served: dict[tuple[int, str, int], int] = {}
    for line in body.splitlines():
        words = line.split()
        counts = words[1 : len(cores) + 1]
        number = words[0].removesuffix(":") if words else ""
        if len(cores) != len(names) or not number.isdecimal() or len(counts) < len(cores):
            continue
        if not all(count.isdecimal() for count in counts):
            continue
        source = words[-1] if len(words) > len(cores) + 1 else number
        for core, count in zip(cores, counts, strict=True):
            served[int(number), source, core] = int(count)
    return served


def _rates(before: _Counters, after: _Counters, secs: float, uptime_secs: float) -> tuple[InterruptRate, ...]:
    rates = []
    for key, count in after.interrupts.items():
        now = (count - before.interrupts.get(key, count)) / secs
        irq, source, core = key
        average = count / uptime_secs if uptime_secs else 0.0
        if count:
            rates.append(InterruptRate(irq=irq, source=source, core=core, per_s=max(now, average)))
    return tuple(rates)


def _turbo_file(root: Path) -> str:
    if host.turbo(root) != "on":
        return ""
    names = ("sys/devices/system/cpu/cpufreq/boost", "sys/devices/system/cpu/intel_pstate/no_turbo")
    return next((f"/{name}" for name in names if (root / name).exists()), "")


def _gpus(devices: Iterable[DeviceSpec]) -> tuple[tuple[int, Mapping[str, object]], ...]:
    indices = sorted({spec.index for spec in devices if spec.kind is DeviceKind.CUDA})
    return tuple((index, state) for index in indices if (state := gpu_state(index)))


def _unserved(devices: Iterable[DeviceSpec]) -> tuple[tuple[str, str], ...]:
    remote = [spec for spec in devices if spec.kind is DeviceKind.RPC and spec.tracker and spec.key]
    reasons = ((str(spec.device_id), served(spec.tracker, spec.key)) for spec in remote)
    return tuple((device_id, reason) for device_id, reason in reasons if reason)


def _free_bytes(store: Path) -> int:
    place = store.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return -1


def _exposed(tokens: Iterable[Path], ray_folder: Path | None) -> Iterator[tuple[str, str, str]]:
    for path in tokens:
        try:
            read_private(path)
        except FileNotFoundError:
            continue
        except NotPrivateError as error:
            yield str(error.path), error.fault, error.cure
    try:
        status = ray_folder.lstat() if ray_folder is not None else None
    except OSError:
        return
    if status is not None and status.st_uid == os.geteuid() and status.st_mode & 0o002:
        cure = f"run: ray stop; rm -r {ray_folder} and start Ray with --temp-dir as docs/cluster.md says"
        yield str(ray_folder), "every user may replace the sockets and files of Ray in it", cure
