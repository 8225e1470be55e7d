"""Which cores of a host time and which build, and the settings of a device's worker processes that follow.

Called by `worker.py`. Pure: what the host has is told by `agents.host.probe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.host.host_lock import host_lock_path
from agents.records import Descriptor, DeviceKind, DeviceSpec
from agents.sandbox.stages import ChildSettings

#: Worker processes of one device: compiling takes some four times as long as timing.
MOST_BUILDERS = 6
#: The same for a GPU: CUDA's compiler took 2 s a program on an H100's host, its timing .1 s.
_MOST_GPU_BUILDERS = 16
#: Memory of a GPU for each of them: a process that has timed keeps a context there, of about .5 GiB.
_GPU_BYTES_EACH = 2 << 30
#: Kinds of device whose cores are not those of the host that reaches them.
ELSEWHERE = frozenset({DeviceKind.RPC, DeviceKind.REPLAY})
#: With fewer quiet cores than this the timing cores build too, rather than idle.
_ENOUGH_QUIET_CORES = 4


def quiet_cores(
    timing_cores: Sequence[int], usable_cores: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    """Cores for everything that must not disturb a timing: logical CPUs, in `groups` by physical core.

    Returns:
        Usable CPUs outside the physical cores that time, for siblings share their units; where there are
        none, those that do not time themselves; where all of them do, all.
    """
    shared = {core for group in groups if set(group) & set(timing_cores) for core in group}
    for avoided in (shared | set(timing_cores), set(timing_cores)):
        quiet = tuple(core for core in usable_cores if core not in avoided)
        if quiet:
            return quiet
    return tuple(usable_cores)


def agent_cores(
    spec: DeviceSpec,
    specs: Sequence[DeviceSpec],
    usable_cores: Sequence[int],
    groups: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    """Cores that the agent of a device may use, so that it builds on none that another one times on.

    Local devices that time on the same cores take turns by the host's timing lock, and each keeps its own
    builders off these cores. The cores of an `rpc` device are its board's: here it only builds. A `replay`
    device has none. All devices that this host reaches are in `specs`.

    Returns:
        Its own timing cores, and what the local devices' timing leaves of the usable ones; all of them where
        that leaves none.
    """
    local = {core for other in specs if other.kind is DeviceKind.LOCAL for core in other.cores}
    own = set() if spec.kind in ELSEWHERE else set(spec.cores)
    if spec.kind is DeviceKind.LOCAL:
        local -= own
    if not local:
        return tuple(usable_cores)
    quiet = quiet_cores(sorted(local), usable_cores, groups)
    return tuple(core for core in usable_cores if core in quiet or core in own)


def process_cores(timing_cores: Sequence[int], quiet: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Cores that each worker process of a device builds on, given those that must not disturb a timing.

    Each quiet core gets a process, up to `MOST_BUILDERS`. Where they are few, there is one process more, and
    the timing cores are lent to one of them while nothing is timed. Where all cores time, one process does
    everything.
    """
    if set(quiet) & set(timing_cores):
        return (tuple(timing_cores),)
    builders = tuple((core,) for core in quiet[:MOST_BUILDERS])
    return builders if len(quiet) >= _ENOUGH_QUIET_CORES else (*builders, tuple(quiet))


def worker_settings(
    spec: DeviceSpec, descriptor: Descriptor, quiet: Sequence[int]
) -> tuple[ChildSettings, ...]:
    """Settings of each worker process of a device; no timing uses the `quiet` logical CPUs of this host."""
    device = "cuda" if spec.target.get("kind") == "cuda" else "cpu"
    environment: dict[str, Any] = {}
    lock = host_lock_path()
    builders = process_cores(spec.cores, quiet)
    if spec.kind is not DeviceKind.LOCAL:
        # The device has cores of its own, so nothing that is timed runs where its programs are built.
        builders = tuple((core,) for core in quiet[:MOST_BUILDERS])
    if spec.kind is DeviceKind.CUDA:
        lock = host_lock_path(f"cuda-{spec.index}")
        builders = tuple((core,) for core in quiet[: _gpu_builders(spec, descriptor)])
    if spec.kind is DeviceKind.RPC:
        environment = remote_environment(spec, descriptor)
    is_lent = spec.kind is DeviceKind.LOCAL and len(builders) > 1 and len(quiet) < _ENOUGH_QUIET_CORES
    return tuple(
        ChildSettings(
            target=spec.target,
            device=device,
            index=spec.index,
            timing_cores=spec.cores,
            build_cores=cores,
            lock_path="" if spec.kind is DeviceKind.RPC else str(lock),
            slot_path=str(lock.with_suffix(".slot")) if is_lent else "",
            threads=spec.threads,
            tracker=spec.tracker,
            key=spec.key,
            environment=environment,
        )
        for cores in builders
    )


def _gpu_builders(spec: DeviceSpec, descriptor: Descriptor) -> int:
    """Worker processes of a CUDA device at most."""
    cards = {int(card["index"]): card for card in map(dict, descriptor.cuda_devices)}
    memory = cards.get(spec.index, {}).get("memory_bytes", "")
    room = int(memory) // _GPU_BYTES_EACH if memory else MOST_BUILDERS
    return max(1, min(_MOST_GPU_BUILDERS, room))


def remote_environment(spec: DeviceSpec, descriptor: Descriptor) -> dict[str, Any]:
    """What an environment says of a device behind a wire, over what it says of the host that builds."""
    return {
        "arch": descriptor.arch,
        "cpu_model": descriptor.cpu_model,
        "cores": list(spec.cores),
        "affinity": list(spec.cores),
        "tracker": spec.tracker,
        "key": spec.key,
    }
