"""`fleet init`: turn what a host is into device files, without ever overwriting what a person wrote.

One file for each instruction-set profile that this host can really execute, and one for each CUDA device
that it shows. Called by the command line, and by `fleet.config.device_files` where no folder of device files
exists.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from agents.files import write_durably
from agents.host import cpu_features as isa
from agents.host.probe import core_groups, probe
from agents.records import (
    Descriptor,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Protocol,
    canonical_json,
)
from fleet.config.device_files import device_schema
from fleet.errors import FleetError

#: Schema of device files beside them; an editor finds it by the first line of each file.
SCHEMA_FILE = "device.schema.json"
_WIDTH = 108
#: Cards need some tens of milliseconds of load to reach their clock.
_GPU_WARMUP_MS = 100.0
_WHAT_CPU = (
    "What it is: an instruction-set profile of a host's CPU. Programs are really built for it and really "
    "timed, so its latencies are measurements. The profiles of one box share its clock, caches and memory, "
    "though: they are less unlike than separate machines, and results across them say less about a new board."
)
_CHECKED_CPU = (
    "How it is checked: the CPU flags that the profile needs are compared with /proc/cpuinfo before anything "
    "is measured; a host that lacks one refuses the device."
)
_WHAT_CUDA = "What it is: one CUDA device of a host, by its number in PCI bus order."
_CHECKED_CUDA = (
    "How it is checked: architecture and limits are compared with what the driver shows before anything is "
    "measured."
)
_PROFILE_WORDS = {
    "x86-64": "the oldest 64-bit x86 code: SSE2, 16-byte vectors, no fused multiply-add",
    "x86-64-v2": "x86-64 level 2 (2008 on): SSE4.2, 16-byte vectors, no fused multiply-add",
    "sandybridge": "between x86-64 levels 2 and 3 (2011 on): AVX, 32-byte vectors, no fused multiply-add",
    "x86-64-v3": "x86-64 level 3 (2013 on): AVX2, 32-byte vectors, fused multiply-add",
    "x86-64-v4": "x86-64 level 4 (2017 on): AVX-512 with masks and 32 vector registers",
    "aarch64-generic": "64-bit Arm as every such CPU has it: Armv8.0 with NEON, 16-byte vectors",
    "aarch64-native": "64-bit Arm with the features of one CPU; `fleet init` on a board lists its own",
}
_AARCH64_TRIPLE = "aarch64-linux-gnu"


class Action(StrEnum):
    """What happened to one device file."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A device that a host can be, and the comment at the head of its file."""

    spec: DeviceSpec
    #: Paragraphs without the comment sign.
    header: tuple[str, ...]


def timing_cores(usable: Sequence[int], groups: Sequence[Sequence[int]], threads: int = 1) -> tuple[int, ...]:
    """Choose the logical CPUs that time: the lowest usable one of each of the first `threads` physical cores.

    All profiles of a host time on the same cores, one timing at a time, so that their numbers compare; the
    other cores build. The lowest cores are taken because every host has a core 0: a file written on one
    host fits the next.

    Args:
        usable: Logical CPUs this process may use.
        groups: Logical CPUs by physical core; empty if unknown.
        threads: Threads of a measured program.

    Raises:
        FleetError: There are not so many physical cores, or none would be left to build on.
    """
    inside = [tuple(cpu for cpu in group if cpu in usable) for group in groups]
    grouped = {cpu for group in inside for cpu in group}
    physical = sorted([group for group in inside if group] + [(cpu,) for cpu in usable if cpu not in grouped])
    # A host of one core must both time and build on it.
    most = max(len(physical) - 1, min(len(physical), 1))
    if not 1 <= threads <= most:
        raise FleetError(
            f"{threads} threads are asked for, but this process may use {len(physical)} physical cores and "
            f"one must stay free to build programs: use 1 to {most} threads"
        )
    return tuple(group[0] for group in physical[:threads])


def host_profiles(threads: int = 1) -> tuple[Profile, ...]:
    """List the devices that this host can be: its instruction-set profiles, then its CUDA devices.

    Raises:
        FleetError: The host's architecture has no profile, or there are too few cores for `threads`.
    """
    descriptor = probe()
    cores = timing_cores(descriptor.usable_cores, core_groups(), threads)
    profiles = cpu_profiles(descriptor, cores) + cuda_profiles(descriptor, cores)
    if not profiles:
        raise FleetError(
            f"no profile fits this host ({descriptor.arch}, {descriptor.cpu_model or 'unknown CPU'}): x86-64 "
            "and 64-bit Arm are known; write a device file by hand"
        )
    return profiles


def cpu_profiles(descriptor: Descriptor, cores: tuple[int, ...]) -> tuple[Profile, ...]:
    """List the instruction-set profiles that a host can execute, weakest first; one thread on each core."""
    targets: dict[str, dict[str, Any]] = {}
    for level in isa.runnable_levels(descriptor.arch, descriptor.isa_flags):
        targets[level.name] = {"kind": "llvm", "mcpu": level.mcpu}
        if level.arch == isa.AARCH64:
            # TVM finds its Arm schedules by the triple.
            targets[level.name]["mtriple"] = _AARCH64_TRIPLE
    features = [f"+{feature}" for feature in isa.tensor_features(descriptor.isa_flags)]
    if "aarch64-generic" in targets and len(features) > 1:
        targets["aarch64-native"] = {**targets["aarch64-generic"], "mattr": features}
    return tuple(_cpu_profile(name, target, cores) for name, target in targets.items())


def cuda_profiles(descriptor: Descriptor, cores: tuple[int, ...]) -> tuple[Profile, ...]:
    """List the CUDA devices of a host whose architecture its driver tells; the first core starts kernels."""
    profiles = []
    for pairs in descriptor.cuda_devices:
        device = dict(pairs)
        if "arch" not in device:
            continue
        limits = ("max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")
        target = {"kind": "cuda", "arch": device["arch"], **{key: int(device[key]) for key in limits}}
        index = int(device["index"])
        spec = DeviceSpec(
            device_id=DeviceId(f"cuda-{index}"),
            kind=DeviceKind.CUDA,
            family=Family.GPU,
            target_json=canonical_json(target),
            threads=1,
            cores=cores[:1],
            index=index,
            protocol_changes=(("warmup_ms", _GPU_WARMUP_MS),),
            note=device.get("name", ""),
        )
        start = f"Cores: core {cores[0]} starts and times the kernels."
        warm = "Protocol: a GPU raises its clock only under load, so each program runs for a while first."
        profiles.append(Profile(spec=spec, header=(_WHAT_CUDA, _CHECKED_CUDA, start, warm)))
    return tuple(profiles)


def render(profile: Profile) -> str:
    """Write the text of a device file; equal profiles give equal text."""
    spec = profile.spec
    title = f"{spec.device_id}: {spec.note}." if spec.note else f"{spec.device_id}."
    lines = [f"yaml-language-server: $schema={SCHEMA_FILE}", title, ""]
    for paragraph in (*profile.header, f"How to try it: fleet probe --device {spec.device_id}"):
        lines.extend(textwrap.wrap(paragraph, _WIDTH, subsequent_indent="  ", break_on_hyphens=False))
    target = spec.target
    first = [key for key in ("kind", "mcpu", "mtriple", "arch") if key in target]
    # In the types of the protocol's fields, as a file must give them.
    protocol = spec.protocol(Protocol())
    protocol_changes = {name: getattr(protocol, name) for name, _ in spec.protocol_changes}
    fields = {
        "schema": 1,
        "device_id": str(spec.device_id),
        "kind": str(spec.kind),
        "family": str(spec.family),
        "target": {key: target[key] for key in [*first, *sorted(target.keys() - first)]},
        "threads": spec.threads,
        "cores": list(spec.cores),
        "index": spec.index,
        # Only where they say something: most devices are on this host and keep to the fleet's protocol.
        **{key: value for key, value in (("tracker", spec.tracker), ("key", spec.key)) if value},
        **({"protocol": protocol_changes} if protocol_changes else {}),
        "note": spec.note,
    }
    # Leaf collections go on one line: a device is easier to compare with the next one so.
    body = yaml.safe_dump(fields, default_flow_style=None, sort_keys=False, allow_unicode=True, width=10_000)
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + body


def write_profiles(folder: Path, profiles: Iterable[Profile], force: bool = False) -> dict[Path, Action]:
    """Write one file a profile, and their schema; one that differs is kept without `force`. Makes the folder.

    Returns:
        What became of each file; it is named for its device.

    Raises:
        FleetError: The folder or a file cannot be written; each file is either whole or untouched.
    """
    done: dict[Path, Action] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(
            folder / SCHEMA_FILE, f"{json.dumps(device_schema(), indent=2, sort_keys=True)}\n".encode()
        )
        for profile in profiles:
            path = folder / f"{profile.spec.device_id}.yaml"
            text = render(profile)
            done[path] = _action(path, text, force)
            if done[path] in (Action.WRITTEN, Action.REPLACED):
                write_durably(path, text.encode())
    except OSError as error:
        where = error.filename or folder
        raise FleetError(
            f"{where}: cannot be written: {error.strerror or error}: choose another --folder"
        ) from error
    return done


def _cpu_profile(name: str, target: dict[str, Any], cores: tuple[int, ...]) -> Profile:
    spec = DeviceSpec(
        device_id=DeviceId(name),
        kind=DeviceKind.LOCAL,
        family=Family.CPU,
        target_json=canonical_json({**target, "num-cores": len(cores)}),
        threads=len(cores),
        cores=cores,
        note=_PROFILE_WORDS[name],
    )
    numbers = ", ".join(map(str, cores))
    pinned = f"Cores: timing is pinned to core {numbers}; the host's other cores build programs meanwhile."
    return Profile(spec=spec, header=(_WHAT_CPU, _CHECKED_CPU, pinned))


def _action(path: Path, text: str, force: bool) -> Action:
    if not path.exists():
        return Action.WRITTEN
    if path.read_bytes() == text.encode():
        return Action.UNCHANGED
    return Action.REPLACED if force else Action.KEPT
