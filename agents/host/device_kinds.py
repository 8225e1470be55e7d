"""Kinds of device: how each is checked, described and told apart, and how its programs are built and timed.

`KINDS` holds an object of every kind. Everything beside a device goes by it: the device worker, the choice of
cores, device files, `fleet init`, `fleet probe` and `fleet doctor`. Never imports TVM, but asks it in a
process of its own to judge a CPU name that `agents.host.cpu_features` does not list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from agents.host import cpu_features as isa
from agents.host.cuda import compiler_fault, reading_fault
from agents.host.llvm_features import LlvmSilentError, ask_llvm
from agents.host.probe import CUDA_DRIVER, LASTING_KEYS, remote_descriptor
from agents.host.rpc_tracker import host_and_port, served
from agents.records import (
    Descriptor,
    DeviceKind,
    DeviceSpec,
    Family,
    Protocol,
    canonical_json,
    content_hash,
)

# Fields of the protocol that change what a number means. The others decide when a candidate is given up,
# checked or repeated, not what one repeat measures.
_TIMING_FIELDS = ("repeat", "min_repeat_ms", "max_number", "warmup_ms", "cooldown_ms", "cache_flush")

#: So many visits add nothing to the hash. Ids did not tell visits apart at first, and nearly all records were
#: made with this number: their ids must stay, whatever the default becomes.
_UNMARKED_VISITS = 8

#: Worker processes of one device: compiling takes some four times as long as timing.
MOST_BUILDERS = 6
#: The same for a GPU: CUDA's compiler took 2 s a program on an H100's host, its timing .1 s.
_MOST_GPU_BUILDERS = 16
#: Memory of a GPU for each of them: a process that has timed keeps a context there, of about .5 GiB.
_GPU_BYTES_EACH = 2 << 30


#: LLVM orders the memory accesses of a block of code pair by pair while they are fewer than 1,000, which took
#: .3 s for a body that a schedule unrolled. Here it treats the earliest 90 as one whenever there are 100.
_LLVM_OPTIONS = ("-dag-maps-huge-region:uint=100", "-dag-maps-reduction-size:uint=90")


def compiled_target(target: Mapping[str, Any]) -> dict[str, Any]:
    """The TVM target that a device's programs are compiled for: its own, for LLVM with options of ours first.

    It is the same for candidates and libraries, so a user runs what was timed. It enters the environment id.
    """
    if target.get("kind") != "llvm":
        return dict(target)
    return {**target, "cl-opt": [*_LLVM_OPTIONS, *target.get("cl-opt", ())]}


class HostDevice:
    """A device of this host with memory and units of its own; other kinds override what differs.

    Attributes:
        targets: Kind of TVM target by family; only these families and targets may stand in its file.
        uses_host_cores: Whether the cores of its spec are logical CPUs of the host that reaches it.
        computes_on_host_cores: Whether those cores run the programs, so that nothing else may run there.
    """

    targets: ClassVar[Mapping[Family, str]] = {}
    uses_host_cores = True
    computes_on_host_cores = False

    def differences(self, spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
        """Sentences on what this host contradicts in its YAML: what was asked, what is there, what to do."""
        return _core_differences(spec, descriptor)

    def absence(self, spec: DeviceSpec) -> str:
        """What keeps a device that the host does not contradict from being measured now."""
        return ""

    def describe(self, spec: DeviceSpec, host_descriptor: Descriptor) -> Descriptor:
        """What the device is, by what the probe saw of this host."""
        return host_descriptor

    def environment(self, spec: DeviceSpec, descriptor: Descriptor) -> dict[str, Any]:
        """What a record's environment says of the device, over what it says of this host."""
        return {}

    def lasting(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Part of an environment without which two records of the device cannot be compared."""
        versions = {key: v for key, v in snapshot["versions"].items() if key != CUDA_DRIVER}
        settings = {"governor": sorted(set(snapshot.get("governor", ()))), "turbo": snapshot.get("turbo", "")}
        return {**{key: snapshot[key] for key in LASTING_KEYS}, "versions": versions, **settings}

    def address(self, spec: DeviceSpec) -> list[Any]:
        """Where the device is, beyond its index."""
        return []

    def lock_name(self, spec: DeviceSpec) -> str | None:
        """Name of the host's lock that a timing holds; None where the device is exclusive by other means."""
        return ""

    def most_builders(self, spec: DeviceSpec, descriptor: Descriptor) -> int:
        """Worker processes at most."""
        return MOST_BUILDERS


class LocalDevice(HostDevice):
    """One target on the CPU of this host."""

    targets: ClassVar[Mapping[Family, str]] = {Family.CPU: "llvm"}
    computes_on_host_cores = True

    def differences(self, spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
        """See `HostDevice.differences`."""
        return _isa_differences(spec, descriptor) + _core_differences(spec, descriptor)


class CudaDevice(HostDevice):
    """One of this host's CUDA devices; its programs are launched from its timing cores."""

    targets: ClassVar[Mapping[Family, str]] = {Family.GPU: "cuda"}

    def differences(self, spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
        """See `HostDevice.differences`."""
        return _cuda_differences(spec, descriptor) + _core_differences(spec, descriptor)

    def absence(self, spec: DeviceSpec) -> str:
        """See `HostDevice.absence`; CUDA's compiler is looked for."""
        return compiler_fault()

    def lasting(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """See `HostDevice.lasting`; the driver's version counts."""
        return {**super().lasting(snapshot), "versions": snapshot["versions"]}

    def lock_name(self, spec: DeviceSpec) -> str | None:
        """See `HostDevice.lock_name`."""
        return f"cuda-{spec.index}"

    def most_builders(self, spec: DeviceSpec, descriptor: Descriptor) -> int:
        """See `HostDevice.most_builders`; its memory bounds them."""
        cards = {int(card["index"]): card for card in map(dict, descriptor.cuda_devices)}
        memory = cards.get(spec.index, {}).get("memory_bytes", "")
        room = int(memory) // _GPU_BYTES_EACH if memory else MOST_BUILDERS
        return max(1, min(_MOST_GPU_BUILDERS, room))


class RpcDevice(HostDevice):
    """A board behind a TVM RPC tracker: this host builds for it, and only its address is checked here."""

    targets: ClassVar[Mapping[Family, str]] = {Family.CPU: "llvm", Family.GPU: "cuda"}
    uses_host_cores = False

    def differences(self, spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
        """See `HostDevice.differences`."""
        faults = []
        try:
            host_and_port(spec.tracker)
        except ValueError:
            faults.append(f"the address of its RPC tracker is {spec.tracker!r}: write tracker as host:port")
        if not spec.key:
            faults.append("its RPC key is missing: write the key that its server gives to the tracker")
        return faults

    def absence(self, spec: DeviceSpec) -> str:
        """See `HostDevice.absence`; the tracker is asked for a server with the key."""
        return served(spec.tracker, spec.key)

    def describe(self, spec: DeviceSpec, host_descriptor: Descriptor) -> Descriptor:
        """See `HostDevice.describe`; its file alone tells, until its server is asked."""
        return remote_descriptor(spec)

    def environment(self, spec: DeviceSpec, descriptor: Descriptor) -> dict[str, Any]:
        """See `HostDevice.environment`."""
        return {
            "arch": descriptor.arch,
            "cpu_model": descriptor.cpu_model,
            "cores": list(spec.cores),
            "affinity": list(spec.cores),
            "tracker": spec.tracker,
            "key": spec.key,
        }

    def lasting(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """See `HostDevice.lasting`; the snapshot's CPU is that of the host that builds."""
        return {"versions": super().lasting(snapshot)["versions"]}

    def address(self, spec: DeviceSpec) -> list[Any]:
        """See `HostDevice.address`."""
        return [spec.tracker, spec.key]

    def lock_name(self, spec: DeviceSpec) -> str | None:
        """See `HostDevice.lock_name`; its server takes one session at a time."""
        return None


class ReplayDevice(HostDevice):
    """A device that answers from records, so it is nowhere."""

    uses_host_cores = False

    def differences(self, spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
        """See `HostDevice.differences`."""
        return []

    def absence(self, spec: DeviceSpec) -> str:
        """See `HostDevice.absence`."""
        return "a device of kind replay is not timed: `agents.device.replay` answers for it from records"


#: What each kind of device does; the one list of kinds beside their names.
KINDS: Final[Mapping[DeviceKind, HostDevice]] = {
    DeviceKind.LOCAL: LocalDevice(),
    DeviceKind.CUDA: CudaDevice(),
    DeviceKind.RPC: RpcDevice(),
    DeviceKind.REPLAY: ReplayDevice(),
}


def differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    """Say what this host contradicts in a device's YAML; empty when the device can be measured from here.

    Returns:
        Sentences, each with what was asked, what is there and what to do.
    """
    return KINDS[spec.kind].differences(spec, descriptor)


def board_differences(spec: DeviceSpec, descriptor: Descriptor) -> list[str]:
    """Say which instructions of a CPU target the board of an RPC device lacks; nothing of other targets."""
    return _isa_differences(spec, descriptor) if spec.target.get("kind") == "llvm" else []


def environment_id(snapshot: Mapping[str, Any], spec: DeviceSpec, protocol: Protocol) -> str:
    """Hash the lasting part of an environment: two records under one value may be compared.

    What enters is what makes numbers incomparable (`HostDevice.lasting`).

    Args:
        snapshot: What `agents.host.probe.environment` returned.
        spec: The device; its compiled target, threads, cores, index and address enter the hash, its name and
            note do not.
        protocol: How candidates are timed; time-outs, early stop, checks and extra repeats do not enter.
            Visits enter for devices whose programs run on this host's cores: no others have more than one.

    Raises:
        KeyError: The snapshot lacks a key of `LASTING_KEYS`.
    """
    kind = KINDS[spec.kind]
    place = [spec.threads, list(spec.cores), spec.index, *kind.address(spec)]
    # As floats: a file's `10` and a default's `10.0` are the same protocol.
    timing = [float(getattr(protocol, name)) for name in _TIMING_FIELDS]
    if kind.computes_on_host_cores and protocol.visits != _UNMARKED_VISITS:
        timing.append(float(protocol.visits))
    return content_hash(
        canonical_json(kind.lasting(snapshot)),
        canonical_json(compiled_target(spec.target)),
        canonical_json(place),
        canonical_json(timing),
    )


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
        missing = reading_fault() or "look at `nvidia-smi`, and at CUDA_VISIBLE_DEVICES"
        cure = f"use an index below {count}" if count else missing
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
