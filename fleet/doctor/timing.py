"""The doctor's judgement of how a host is set up for timings: clocks, cores, other fleets, GPUs. Pure.

Called by `fleet.doctor.doctor.diagnose`. What comes and goes (heat, swapping, interrupts, stolen time) is not
looked at: the first A/A run of a device measures what it does to the numbers. What is always there would be
taken for the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agents.records import Descriptor, DeviceKind, DeviceSpec
from fleet.doctor.words import Finding, HostState, Level, LockState

# The fleet itself keeps one core per process busy; a load well above what it needs is someone else's.
_QUIET_LOAD = 0.5
_GPU_SLOWDOWNS = frozenset(
    {
        "sw_power_cap",
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    }
)
_GPU_BUSY_PER_CENT = 10
# NVML cannot tell whether clocks are locked, but a locked clock does not fall this far when the card idles.
_GPU_IDLE_SHARE = 0.5


def timing_findings(descriptor: Descriptor, devices: Sequence[DeviceSpec], state: HostState) -> list[Finding]:
    """List what on this host makes timings slower or less steady than they could be."""
    local_specs = [spec for spec in devices if spec.kind in (DeviceKind.LOCAL, DeviceKind.CUDA)]
    timing = {core for spec in local_specs for core in spec.cores} & set(descriptor.usable_cores)
    return [
        *_clock(state),
        *_neighbours(descriptor, state),
        *_cores(descriptor, timing, state),
        *_gpus(descriptor, state),
    ]


def _clock(state: HostState) -> Iterable[Finding]:
    slow = [(core, governor) for core, governor in state.governors if governor != "performance"]
    if slow:
        governors = ", ".join(sorted({governor for _, governor in slow}))
        yield Finding(
            what=f"the frequency governor is {governors} on {len(slow)} of {len(state.governors)} cores",
            why="the clock follows the load, so the same program gets faster while it is timed",
            do="sudo cpupower frequency-set -g performance",
        )
    if state.turbo_file:
        off = 1 if state.turbo_file.endswith("no_turbo") else 0
        yield Finding(
            what="turbo boost is on",
            why="the clock of the timed core follows the heat and what the other cores do",
            do=f"echo {off} | sudo tee {state.turbo_file}",
        )


def _neighbours(descriptor: Descriptor, state: HostState) -> Iterable[Finding]:
    usable = len(descriptor.usable_cores)
    if state.load > _QUIET_LOAD * max(1, usable):
        yield Finding(
            what=f"the load is {state.load:.1f} on {usable} usable core{'s' * (usable != 1)}",
            why="programs beside the timed one take its caches, its memory bandwidth and its turn",
            do="stop them, or wait: `uptime` shows the load",
        )
    if "hypervisor" in descriptor.isa_flags:
        yield Finding(
            level=Level.NOTE,
            what="this host is a virtual machine",
            why="its real clock, governor, turbo and neighbours are hidden, and may change unseen",
            do="measure on the bare machine, or trust no difference below the noise of an A/A run",
        )
    if state.timing_lock is LockState.HELD:
        yield Finding(
            level=Level.NOTE,
            what="a fleet is timing on this host right now",
            why="one program is timed at a time, so a second fleet would slow both down",
            do="nothing, or wait until it is done: their timings do not disturb each other",
        )
    if state.timing_lock is LockState.REFUSED:
        yield Finding(
            level=Level.ERROR,
            what=f"the host's timing lock {state.timing_lock_path} cannot be used",
            why=f"nothing may be timed without it, and {state.timing_lock_fault}",
            do="have that user, or root, remove what has its name",
        )


def _cores(descriptor: Descriptor, timing: set[int], state: HostState) -> Iterable[Finding]:
    usable = descriptor.usable_cores
    if len(usable) < 2:
        yield Finding(
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
            what=f"logical CPU {names} shares a physical core with a timing core and would build programs",
            why="a busy SMT sibling takes up to half of the timed core",
            do=f"start with `taskset -c {keep}`, or switch SMT off (/sys/devices/system/cpu/smt/control)",
        )
    if state.cpu_quota < len(usable):
        yield Finding(
            what=f"the container may use {state.cpu_quota:.2g} CPUs' worth of time on {len(usable)} cores",
            why="once it is spent the kernel stops every process, in the middle of a timing too",
            do="pin the container to whole cores (docker --cpuset-cpus) instead of --cpus",
        )


def _gpus(descriptor: Descriptor, state: HostState) -> Iterable[Finding]:
    cards = {int(card["index"]): card for card in map(dict, descriptor.cuda_devices)}
    for index, readings in state.gpus:
        card = cards.get(index, {})
        name, place = f"CUDA device {index}", card.get("pci_bus_id", str(index))
        slowdowns = sorted(_GPU_SLOWDOWNS & set(readings.get("throttle_reasons", ())))
        if slowdowns:
            yield Finding(
                what=f"{name} slows down: {', '.join(slowdowns)}",
                why="heat or power lowers its clock, and timings with it",
                do=f"cool it or raise its power limit: nvidia-smi -i {place} -q -d PERFORMANCE,POWER",
            )
        if readings.get("utilisation", 0) >= _GPU_BUSY_PER_CENT:
            yield Finding(
                what=f"{name} is busy for {readings['utilisation']} % of the time",
                why="a program beside the timed one takes its turn, its caches and its memory bandwidth",
                do=f"stop it, or wait: nvidia-smi -i {place} shows who it is",
            )
        if card.get("persistence_mode") == "off":
            yield Finding(
                level=Level.NOTE,
                what=f"{name} is not in persistence mode",
                why="its driver unloads between processes and forgets locked clocks",
                do=f"sudo nvidia-smi -i {place} -pm 1",
            )
        clock, most = float(readings.get("sm_clock_mhz", 0)), float(card.get("clock_max_mhz", 0))
        if 0 < clock < _GPU_IDLE_SHARE * most:
            yield Finding(
                level=Level.NOTE,
                what=f"{name} runs at {clock:.0f} of {most:.0f} MHz: its clock is not locked",
                why="it follows load and heat, so programs are timed at different clocks",
                do=f"sudo nvidia-smi -i {place} -lgc MHZ, with a clock that it holds under load",
            )
