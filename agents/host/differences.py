"""What a host contradicts in a device's YAML.

Called by the device worker before it measures, by `fleet init`, `fleet probe` and `fleet doctor`. Never
imports TVM, but asks it in a process of its own to judge a CPU name that `agents.host.cpu_features` does not
list.
"""

from __future__ import annotations

from agents.host import cpu_features as isa
from agents.host.llvm_features import LlvmSilentError, ask_llvm
from agents.host.rpc_tracker import host_and_port
from agents.records import Descriptor, DeviceKind, DeviceSpec


def differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    """Say what this host contradicts in a device's YAML; empty when the device can be measured from here.

    A device of kind `rpc` is somewhere else: only whether its YAML says where is checked. One of kind
    `replay` is nowhere.

    Returns:
        Sentences, each with what was asked, what is there and what to do.
    """
    if spec.kind is DeviceKind.CUDA:
        return _cuda_differences(spec, descriptor) + _core_differences(spec, descriptor)
    if spec.kind is DeviceKind.LOCAL:
        return _isa_differences(spec, descriptor) + _core_differences(spec, descriptor)
    return _address_differences(spec) if spec.kind is DeviceKind.RPC else []


def board_differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    """Say which instructions of a CPU target the board of an RPC device lacks; nothing of other targets."""
    return _isa_differences(spec, descriptor) if spec.target.get("kind") == "llvm" else []


def _address_differences(spec: DeviceSpec) -> list[str]:
    faults = []
    try:
        host_and_port(spec.tracker)
    except ValueError:
        faults.append(f"the address of its RPC tracker is {spec.tracker!r}: write tracker as host:port")
    if not spec.key:
        faults.append("its RPC key is missing: write the key that its server gives to the tracker")
    return faults


def _isa_differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    target = spec.target
    needs = isa.requirement(target, descriptor.arch)
    requested = target.get("mcpu") or needs.arch
    if needs.arch != descriptor.arch:
        return [
            f"the target {requested!r} is for {needs.arch}, but this host is {descriptor.arch}: measure it "
            "on a host of that architecture, or remove its YAML"
        ]
    if target.get("mcpu") == "native":
        return [
            "target.mcpu is 'native', which LLVM builds for the oldest CPU of the architecture: write the "
            "CPU's own name or a level, as `fleet init` does"
        ]
    flags = needs.flags
    if needs.unlisted:
        try:
            flags, unknown = ask_llvm(target, descriptor.arch)
        except LlvmSilentError as error:
            return [f"{', '.join(needs.unlisted)} cannot be checked: {error}"]
        if unknown:
            return [
                f"the target asks for {', '.join(unknown)}, which TVM's LLVM does not know and would quietly "
                "build without: correct mcpu or mattr"
            ]
    missing = sorted(flags - set(descriptor.isa_flags))
    if not missing:
        return []
    levels = [level.mcpu for level in isa.runnable_levels(descriptor.arch, descriptor.isa_flags)]
    hint = f"set mcpu to {levels[-1]!r}, the highest level here" if levels else "use another host"
    name = descriptor.cpu_model or "this CPU"
    return [f"the target {requested!r} needs {' '.join(missing)}, which {name} does not offer: {hint}"]


def _core_differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    faults = []
    usable = descriptor.usable_cores
    offered = ", ".join(map(str, usable)) or "none"
    absent = [core for core in spec.cores if core not in usable]
    if absent:
        faults.append(
            f"timing is pinned to core {', '.join(map(str, absent))}, but this process may use {offered} of "
            f"{descriptor.logical_cores}: change cores, or start with a wider taskset or container"
        )
    if spec.threads > len(usable):
        faults.append(
            f"threads is {spec.threads}, but this process may use {len(usable)} cores ({offered}): lower "
            "threads and target.num-cores"
        )
    return faults


def _cuda_differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    count = len(descriptor.cuda_devices)
    if spec.index >= count:
        device_count = f"{count} CUDA device{'s' * (count != 1)}"
        cure = "check the driver with `nvidia-smi`, and CUDA_VISIBLE_DEVICES"
        if count:
            cure = f"use an index below {count}"
        return [f"CUDA device {spec.index} is asked for, but this host shows {device_count}: {cure}"]
    device = dict(descriptor.cuda_devices[spec.index])
    faults = []
    for key in ("arch", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"):
        requested, offered = spec.target.get(key), device.get(key)
        if requested is None or offered is None:
            continue
        # Code for an older architecture runs on a newer card too, but is another device; a limit below the
        # card's is a legal choice.
        fits = requested == offered if key == "arch" else int(requested) <= int(offered)
        if not fits:
            name = device.get("name", "the card")
            faults.append(f"target.{key} is {requested}, but {name} has {offered}: write {offered}")
    return faults
