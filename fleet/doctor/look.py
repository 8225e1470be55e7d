"""The doctor's eyes: gathers the state of this host from `/proc`, `/sys`, NVIDIA's library and RPC trackers.

Called by the command line through `fleet.doctor.doctor`. Judges nothing and changes nothing; looking takes
about half a second.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from agents.errors import AgentError
from agents.host import procfs as host
from agents.host.cuda import compiler_fault, gpu_state
from agents.host.host_lock import HostLockError, host_lock_path, not_timing, open_lock
from agents.host.priority import allowed_priority, counts_switches
from agents.host.probe import core_groups
from agents.host.rpc_tracker import served
from agents.records import DeviceKind, DeviceSpec
from agents.sandbox.confinement_trial import Trial, try_confinement
from agents.sandbox.scratch import require_executable
from fleet.doctor.mixed_code import mixed_code
from fleet.doctor.words import WANTED_MODULES, HostState, LockState
from fleet.private_files import NotPrivateError, read_private

#: How long the timing lock is watched, and the pause between two tries.
_WATCH_SECS, _STEP_SECS = 0.3, 0.01


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
        tokens: Files that only this user may read; missing ones are left out.
        ray_folder: Where `ray start` keeps its sockets.
    """
    usable = sorted(os.sched_getaffinity(0))
    devices = list(specs)
    lock_state, lock_fault = _lock(host_lock_path())
    gpus = {spec.index for spec in devices if spec.kind is DeviceKind.CUDA}
    remote = [spec for spec in devices if spec.kind is DeviceKind.RPC and spec.tracker and spec.key]
    answers = ((str(spec.device_id), served(spec.tracker, spec.key)) for spec in remote)
    governors = ((core, host.cpufreq(root, core, "scaling_governor")) for core in usable)
    return HostState(
        load=os.getloadavg()[0],
        memory_available_bytes=host.memory_available_bytes(root),
        cpu_quota=host.cpu_quota(root),
        core_groups=core_groups(root),
        governors=tuple((core, governor) for core, governor in governors if governor),
        turbo_file=_turbo_file(root),
        priority=allowed_priority(),
        counts_switches=counts_switches(),
        timing_lock=lock_state,
        timing_lock_path=str(host_lock_path()),
        timing_lock_fault=lock_fault,
        confinement=_confinement(),
        temporary_fault=_temporary_fault(Path(tempfile.gettempdir())),
        missing_modules=tuple(name for name in WANTED_MODULES if importlib.util.find_spec(name) is None),
        store=str(store),
        disk_free_bytes=_free_bytes(store),
        nvidia_driver=bool(host.cuda_driver(root)),
        cuda_compiler_fault=compiler_fault(),
        gpus=tuple((index, state) for index in sorted(gpus) if (state := gpu_state(index))),
        unserved=tuple((device_id, reason) for device_id, reason in answers if reason),
        exposed=tuple(_exposed(tokens, ray_folder)),
        mixed_code=tuple(mixed_code(store)),
    )


def _lock(path: Path) -> tuple[LockState, str]:
    """Whether the timing lock is held, and why it cannot be used.

    It is held for most of a measurement, but not all the time; so it is tried several times.
    """
    ends_at = time.monotonic() + _WATCH_SECS
    try:
        while time.monotonic() < ends_at:
            # As a timing would, but shared with other doctors and for no time at all.
            with not_timing(path) as is_free:
                if not is_free:
                    return LockState.HELD, ""
            time.sleep(_STEP_SECS)
        os.close(open_lock(path))
    except FileNotFoundError:
        pass
    except HostLockError as error:
        return LockState.REFUSED, str(error)
    return LockState.FREE, ""


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


def _turbo_file(root: Path) -> str:
    if host.turbo(root) != "on":
        return ""
    names = ("sys/devices/system/cpu/cpufreq/boost", "sys/devices/system/cpu/intel_pstate/no_turbo")
    return next((f"/{name}" for name in names if (root / name).exists()), "")


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
        cure = f"run: ray stop; rm -r {ray_folder} and start Ray with --temp-dir (docs/cluster.md)"
        yield str(ray_folder), "every user may replace the sockets and files of Ray in it", cure
