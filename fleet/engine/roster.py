"""The devices of a coordinator, and all that follows from what each is: one owner, whom the others ask.

Made by `fleet.engine.context`. Whoever needs a mapping of devices holds one of these, which change while
a coordinator runs: devices come, change and leave. A device that left stays known, because the store has
records of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from agents.records import DeviceId, DeviceSpec, Family, Protocol, is_live
from fleet.errors import FleetError
from fleet.planner.candidate_requests import sharing_names, space_of
from fleet.planner.job_queues import turn_of


class RosterError(FleetError):
    """A device that cannot join the others."""


class Roster:
    """Who belongs to the fleet. Its mappings are changed here alone.

    Attributes:
        specs: Devices that are looked after.
        all_specs: These, and those that left or that only the store knows, as they were last.
        sharing: Name under which every known device shares candidates (`sharing_names`).
        live_names: Families with live devices, by the name under which these share candidates.
        protocols: How each device is timed; equal ones are one object, which goes over the wire once.
        spaces: What each device draws from (`space_of`).
        turns: What each device takes turns for with its neighbours (`turn_of`).
    """

    def __init__(
        self, stored: Mapping[DeviceId, DeviceSpec], specs: Mapping[DeviceId, DeviceSpec], protocol: Protocol
    ) -> None:
        self._common = protocol
        self._equal: dict[Protocol, Protocol] = {}
        self.specs: dict[DeviceId, DeviceSpec] = {}
        self.all_specs = dict(stored)
        self.sharing: dict[DeviceId, str] = {}
        self.live_names: dict[str, Family] = {}
        self.protocols: dict[DeviceId, Protocol] = {}
        self.spaces: dict[DeviceId, str] = {}
        self.turns: dict[DeviceId, str] = {}
        for spec in specs.values():
            self._note(spec)
        self._share(self.all_specs)

    def put(self, spec: DeviceSpec) -> bool:
        """Look after a device from now on, or after the same one with another spec.

        Returns:
            Whether it is the first live one of its family: candidates are shared under other names now.

        Raises:
            RosterError: Replay devices of its family share candidates that must not run on it.
        """
        is_first = is_live(spec) and str(spec.family) not in self.live_names
        if is_first:
            replays = [device_id for device_id, other in self.specs.items() if other.family is spec.family]
            if replays:
                raise RosterError(
                    f"programs run on it, and {', '.join(replays)} of its family {spec.family} replay what "
                    "anybody may have recorded, and share it until now: start again with all of them"
                )
        self._note(spec)
        self._share(self.all_specs if is_first else {spec.device_id: spec})
        return is_first

    def retire(self, device_id: DeviceId) -> None:
        """Look after a device no longer."""
        del self.specs[device_id]

    def _note(self, spec: DeviceSpec) -> None:
        device_id, protocol = spec.device_id, spec.protocol(self._common)
        self.specs[device_id] = self.all_specs[device_id] = spec
        self.protocols[device_id] = self._equal.setdefault(protocol, protocol)
        self.spaces[device_id], self.turns[device_id] = space_of(spec), turn_of(spec)

    def _share(self, specs: Mapping[DeviceId, DeviceSpec]) -> None:
        # A family stays live when its last live device leaves: names that changed back would mix candidates.
        live = {spec.family for device_id, spec in specs.items() if device_id in self.specs and is_live(spec)}
        self.live_names.update({str(family): family for family in live})
        self.sharing.update(sharing_names(specs, set(self.live_names.values())))
