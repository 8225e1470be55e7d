"""`fleet doctor`: what on this host would spoil measurements or stop the program, and what to do about it.

`look` gathers the state of the host; `diagnose` judges it and is pure, so that other hosts can be judged in
tests. Called by the command line; changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agents.host.device_kinds import differences
from agents.host.priority import Priority
from agents.records import Descriptor, DeviceKind, DeviceSpec
from fleet.doctor.words import (
    TVM_VERSION,
    WANTED_MODULES,
    Finding,
    HostState,
    Level,
    LockState,
    confinement_findings,
)

# With tvm-ffi 0.1.15 and later, TVM 0.27 ends in a segmentation fault as soon as a module is saved to JSON.
_CRASHING_FFI = (0, 1, 15)
_GOOD_FFI = "0.1.14.post0"
# Two processes with TVM (0.4 GiB each), one with torch, and a large convolution's arrays fit into 2 GiB.
_LOW_MEMORY_BYTES = 2 << 30
# A day of one device is a few hundred MiB of records; with less than 256 MiB the store refuses appends.
_LOW_DISK_BYTES = 2 << 30
_FULL_DISK_BYTES = 256 << 20
# The fleet itself keeps one core per process busy; a load well above what it needs is someone else's.
_QUIET_LOAD = 0.5
#: Canaries of one environment differ by this much between hours.
_CANARY_NOISE = 0.02
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
# NVML does not report whether clocks are locked, but a locked clock does not fall this far on an idle card.
_GPU_IDLE_SHARE = 0.5


def diagnose(descriptor: Descriptor, specs: Iterable[DeviceSpec], state: HostState) -> list[Finding]:
    """Judge a host.

    Args:
        descriptor: What the probe saw.
        specs: The devices that this host is to be; a difference from a file is a finding.
        state: What `look` gathered.

    Returns:
        Findings, the worst first. Errors stop the program or a device, warnings spoil measurements or let
        other users in.
    """
    devices = list(specs)
    findings = [
        *_software(descriptor, state),
        *_specs(descriptor, devices),
        *_remote(state),
        *_secrets(state),
        *_timing(descriptor, devices, state),
        *confinement_findings(state.confinement),
        *_room(state),
        *_records(state),
    ]
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level))


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
    if tvm and tvm != TVM_VERSION:
        yield Finding(
            what=f"apache-tvm {tvm} is installed",
            why=f"this project is tested with {TVM_VERSION}; TVM's Python interface changes between versions",
            do=f"pip install apache-tvm=={TVM_VERSION} apache-tvm-ffi=={_GOOD_FFI}",
        )
    for name in state.missing_modules:
        if name != "pynvml" or state.nvidia_driver:
            yield WANTED_MODULES[name]
    if descriptor.cuda_devices and state.cuda_compiler_fault:
        yield Finding(
            what="programs for CUDA cannot be compiled",
            why="the CUDA devices of this host cannot be measured",
            do=state.cuda_compiler_fault,
        )
    if state.nvidia_driver and not descriptor.cuda_devices:
        yield Finding(
            what="NVIDIA's driver is loaded, but no CUDA device is visible",
            why="its devices cannot be measured",
            do="look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES",
        )


def _specs(descriptor: Descriptor, devices: Iterable[DeviceSpec]) -> Iterable[Finding]:
    # The profiles of one host are often refused for one reason, such as a narrower taskset.
    refused: dict[str, list[str]] = {}
    for spec in devices:
        for difference in differences(spec, descriptor):
            refused.setdefault(difference, []).append(spec.device_id)
    for difference, names in refused.items():
        why, _, cure = difference.partition(": ")
        yield Finding(
            level=Level.NOTE,
            what=f"device{'s' * (len(names) > 1)} {', '.join(names)} cannot be measured here",
            why=why,
            do=cure or "change its file",
        )


def _remote(state: HostState) -> Iterable[Finding]:
    for device_id, reason in state.unserved:
        why, _, cure = reason.partition(": ")
        yield Finding(
            what=f"device {device_id} cannot be reached",
            why=why,
            do=cure or "look at its tracker and its server",
        )


def _records(state: HostState) -> Iterable[Finding]:
    for mixed in state.mixed_code:
        change = mixed.canary_change
        canaries = (
            "no canary was read under both" if change is None else f"its canaries differ by {change:.1%}"
        )
        is_same = change is not None and change <= _CANARY_NOISE
        yield Finding(
            level=Level.NOTE,
            what=f"records of {mixed.device_id} were measured by different code of this project; {canaries}",
            why="they count as one environment, although a change of the timing code can shift numbers",
            do=(
                "nothing: the canaries, which are the same programs under both, agree"
                if is_same
                else "see by how much candidates changed: fleet collect --remeasure 50"
            ),
        )


def _secrets(state: HostState) -> Iterable[Finding]:
    for path, fault, cure in state.exposed:
        yield Finding(
            what=f"{path}: {fault}",
            why="with Ray's token or sockets others run code as you; with the API's they see the fleet",
            do=cure,
        )


def _room(state: HostState) -> Iterable[Finding]:
    if state.temporary_fault:
        why, _, cure = state.temporary_fault.partition(": ")
        yield Finding(
            what=why, why="networks can be measured here, and no library of one can be run", do=cure
        )
    if 0 < state.memory_available_bytes < _LOW_MEMORY_BYTES:
        yield Finding(
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


def _timing(descriptor: Descriptor, devices: Sequence[DeviceSpec], state: HostState) -> list[Finding]:
    """How the host is set up for timings: clocks, cores, other fleets, GPUs.

    What comes and goes (heat, swapping, interrupts, stolen time) is not looked at: the first A/A run of a
    device measures what it does to the numbers. What is always there would be taken for the device.
    """
    local_specs = [spec for spec in devices if spec.kind in (DeviceKind.LOCAL, DeviceKind.CUDA)]
    timing = {core for spec in local_specs for core in spec.cores} & set(descriptor.usable_cores)
    return [
        *_clock(state),
        *_neighbours(descriptor, state),
        *_priority(state),
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
            why="other programs take caches, memory bandwidth and time from the measured one",
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


def _priority(state: HostState) -> Iterable[Finding]:
    if state.priority in (Priority.USUAL, Priority.NICE):
        yield Finding(
            level=Level.NOTE,
            what="timings may not have real-time priority",
            why="other programs take their core: repeats are disturbed and made again, records are suspect",
            do=(
                'echo "$USER - rtprio 1" | sudo tee /etc/security/limits.d/tensor-fleet.conf, '
                "and log in again; in a unit of systemd LimitRTPRIO=1; for a container --cap-add SYS_NICE"
            ),
        )
    if not state.counts_switches:
        yield Finding(
            level=Level.NOTE,
            what="this kernel does not count when it takes a core from a thread",
            why="only the processor time of a repeat tells whether another program took its core",
            do="measure outside of this sandbox or container runtime, if that is possible",
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
                why="another program takes time, caches and memory bandwidth from the measured one",
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
