"""`fleet doctor`: what on this host would spoil measurements or stop the program, and what to do about it.

`look` gathers the state of the host; `diagnose` judges it and is pure, so that other hosts can be judged in
tests. Called by the command line; changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from agents.host.device_kinds import differences
from agents.records import Descriptor, DeviceSpec
from fleet.doctor.confinement import confinement_findings
from fleet.doctor.timing import timing_findings
from fleet.doctor.words import TVM_VERSION, WANTED_MODULES, Finding, HostState, Level

# With tvm-ffi 0.1.15 and later, TVM 0.27 ends in a segmentation fault as soon as a module is saved to JSON.
_CRASHING_FFI = (0, 1, 15)
_GOOD_FFI = "0.1.14.post0"
# Two processes with TVM (0.4 GiB each), one with torch, and a large convolution's arrays fit into 2 GiB.
_LOW_MEMORY_BYTES = 2 << 30
# A day of one device is a few hundred MiB of records; with less than 256 MiB the store refuses appends.
_LOW_DISK_BYTES = 2 << 30
_FULL_DISK_BYTES = 256 << 20


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
        *timing_findings(descriptor, devices, state),
        *confinement_findings(state.confinement),
        *_room(state),
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
