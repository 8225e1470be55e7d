"""Which cores of a host time and which build, and the settings of a device's worker processes that follow.

Called by `worker.py`. Pure: what the host has is told by `agents.host.probe`.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.host.device_kinds import KINDS, MOST_BUILDERS
from agents.host.host_lock import host_lock_path
from agents.records import Descriptor, DeviceSpec
from agents.sandbox.stages import ChildSettings

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

    Devices whose programs run on the same cores of this host take turns by its timing lock, and each keeps
    its own builders off these cores. All devices that this host reaches are in `specs`.

    Returns:
        Its own timing cores, and what the local devices' timing leaves of the usable ones; all of them where
        that leaves none.
    """
    kind = KINDS[spec.kind]
    local = {core for other in specs if KINDS[other.kind].computes_on_host_cores for core in other.cores}
    own = set(spec.cores) if kind.uses_host_cores else set()
    if kind.computes_on_host_cores:
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
    kind = KINDS[spec.kind]
    if kind.computes_on_host_cores:
        builders = process_cores(spec.cores, quiet)
    else:
        # Nothing that is timed runs where its programs are built.
        builders = tuple((core,) for core in quiet[: kind.most_builders(spec, descriptor)])
    is_lent = kind.computes_on_host_cores and len(builders) > 1 and len(quiet) < _ENOUGH_QUIET_CORES
    name = kind.lock_name(spec)
    lock = None if name is None else host_lock_path(name)
    target_kind = str(spec.target.get("kind"))
    return tuple(
        ChildSettings(
            target=spec.target,
            device="cpu" if target_kind == "llvm" else target_kind,
            index=spec.index,
            timing_cores=spec.cores,
            build_cores=cores,
            lock_path=str(lock or ""),
            slot_path=str(lock.with_suffix(".slot")) if lock and is_lent else "",
            threads=spec.threads,
            tracker=spec.tracker,
            key=spec.key,
            environment=kind.environment(spec, descriptor),
        )
        for cores in builders
    )
