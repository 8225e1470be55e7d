"""The devices that a coordinator knows against the files of now: what came, changed, left, or is wrong. Pure.

`fleet.engine.device_updates` asks it whenever files changed. Device files are a desired state: this says what
is to be done to get there, and how it is done is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.records import DeviceId, DeviceKind, DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFiles:
    """What the files say that a start looks after."""

    #: Devices that can be measured.
    specs: Mapping[DeviceId, DeviceSpec]
    #: Files that cannot be used, by the device that each is named for: why, with file and key. The empty id
    #: stands for the folder as a whole.
    faults: Mapping[DeviceId, str] = field(default_factory=dict)
    #: Devices that are described well and not part of this start: why.
    left_out: Mapping[DeviceId, str] = field(default_factory=dict)
    #: The devices that the start was asked for; empty where it was asked for all that there are.
    selection: frozenset[DeviceId] = frozenset()

    def why_not(self, device_id: DeviceId) -> str:
        """Why a device is no part of this start; empty where it can only lack its file."""
        if self.selection and device_id not in self.selection:
            return "not part of this run: other devices were asked for"
        if device_id in self.faults:
            return "its file cannot be used"
        return self.left_out.get(device_id, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChanges:
    """What is to be done."""

    added: Mapping[DeviceId, DeviceSpec]
    #: The same devices with other specs.
    changed: Mapping[DeviceId, DeviceSpec]
    #: Devices without a file.
    retired: tuple[DeviceId, ...]
    #: Files that change nothing until they are mended, as in `DeviceFiles`.
    faults: Mapping[DeviceId, str]
    #: Devices whose agents build programs on a core that another device times on from now: why.
    disturbing: Mapping[DeviceId, str]


def compare(active: Mapping[DeviceId, DeviceSpec], files: DeviceFiles) -> DeviceChanges:
    """Say what came, changed, left or is wrong.

    A device whose file is wrong stays as it was. So does one whose file describes another device now: of
    another kind or family, or one that this start cannot measure.
    """
    faults = dict(files.faults)
    faults |= {device_id: why for device_id, why in files.left_out.items() if device_id in active}
    changed: dict[DeviceId, DeviceSpec] = {}
    for device_id, spec in files.specs.items():
        before = active.get(device_id)
        if before is None or before == spec or device_id in faults:
            continue
        if why := _other_device(before, spec):
            faults[device_id] = why
        else:
            changed[device_id] = spec
    added = {
        device_id: spec
        for device_id, spec in files.specs.items()
        if device_id not in active and device_id not in faults
    }
    # Where nobody can say what the folder holds, nothing has left it.
    listable = {} if DeviceId("") in faults else active
    retired = tuple(
        device_id for device_id in listable if device_id not in files.specs and device_id not in faults
    )
    return DeviceChanges(
        added=added,
        changed=changed,
        retired=retired,
        faults=faults,
        disturbing=_disturbing(active, retired, added | changed),
    )


def _other_device(before: DeviceSpec, spec: DeviceSpec) -> str:
    for key, was, now in (("kind", before.kind, spec.kind), ("family", before.family, spec.family)):
        if was is not now:
            return (
                f"{key}: was {was.value!r} and is {now.value!r} now, which is another device: give it an id "
                "of its own, or take the change back"
            )
    return ""


def _disturbing(
    active: Mapping[DeviceId, DeviceSpec], retired: tuple[DeviceId, ...], new: Mapping[DeviceId, DeviceSpec]
) -> dict[DeviceId, str]:
    """Agents are told at their start which cores must stay quiet; these were told of too few."""
    stay = {
        device_id: spec
        for device_id, spec in active.items()
        if device_id not in retired and device_id not in new
    }
    quiet_cores = {core for spec in active.values() for core in _timing_cores(spec)}
    fresh = {
        core: device_id
        for device_id, spec in new.items()
        for core in _timing_cores(spec)
        if core not in quiet_cores
    }
    if not fresh:
        return {}
    cores, names = ", ".join(map(str, sorted(fresh))), ", ".join(sorted(set(fresh.values())))
    why = f"{names} times on core {cores} now, so nothing is built there any more"
    return {device_id: why for device_id, spec in stay.items() if spec.kind is not DeviceKind.REPLAY}


def _timing_cores(spec: DeviceSpec) -> tuple[int, ...]:
    return spec.cores if spec.kind is DeviceKind.LOCAL else ()
