"""The devices of a coordinator, and all that follows from what each is: one owner, whom the others ask.

Made by `fleet.engine.composition`. Whoever needs a mapping of devices holds one of these, which change while
a coordinator runs: devices come, change and leave. A device that left stays known, because the store has
records of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from agents.records import DeviceId, DeviceSpec, Family, Protocol
from agents.trust import is_live
from fleet.errors import FleetError
from fleet.planner.candidate_requests import sharing_names, space_of
from fleet.planner.plan_view import turn_of


class RosterError(FleetError):
    """A device that cannot join the others."""


class Roster:
    """Who belongs to the fleet.

    Attributes:
        specs: Devices that are looked after.
        all_specs: These, and those that left or that only the store knows, as they were last.
        families: Family of every known device.
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
        self._specs: dict[DeviceId, DeviceSpec] = {}
        self._all_specs = dict(stored)
        self._families = {device_id: str(spec.family) for device_id, spec in stored.items()}
        self._sharing: dict[DeviceId, str] = {}
        self._live_names: dict[str, Family] = {}
        self._protocols: dict[DeviceId, Protocol] = {}
        self._spaces: dict[DeviceId, str] = {}
        self._turns: dict[DeviceId, str] = {}
        self.specs, self.all_specs = MappingProxyType(self._specs), MappingProxyType(self._all_specs)
        self.families, self.sharing = MappingProxyType(self._families), MappingProxyType(self._sharing)
        self.live_names = MappingProxyType(self._live_names)
        self.protocols, self.spaces = MappingProxyType(self._protocols), MappingProxyType(self._spaces)
        self.turns = MappingProxyType(self._turns)
        for spec in specs.values():
            self._note(spec)
        self._share(self._all_specs)

    def put(self, spec: DeviceSpec) -> bool:
        """Look after a device from now on, or after the same one with another spec.

        Returns:
            Whether it is the first live one of its family: candidates are shared under other names now.

        Raises:
            RosterError: Replay devices of its family share candidates that must not run on it.
        """
        is_first = is_live(spec) and str(spec.family) not in self._live_names
        if is_first:
            replays = [device_id for device_id, other in self._specs.items() if other.family is spec.family]
            if replays:
                raise RosterError(
                    f"programs run on it, and {', '.join(replays)} of its family {spec.family} replay what "
                    "anybody may have recorded, and share it until now: start again with all of them"
                )
        self._note(spec)
        self._share(self._all_specs if is_first else {spec.device_id: spec})
        return is_first

    def retire(self, device_id: DeviceId) -> None:
        """Look after a device no longer."""
        del self._specs[device_id]

    def _note(self, spec: DeviceSpec) -> None:
        device_id, protocol = spec.device_id, spec.protocol(self._common)
        self._specs[device_id] = self._all_specs[device_id] = spec
        self._families[device_id] = str(spec.family)
        self._protocols[device_id] = self._equal.setdefault(protocol, protocol)
        self._spaces[device_id], self._turns[device_id] = space_of(spec), turn_of(spec)

    def _share(self, specs: Mapping[DeviceId, DeviceSpec]) -> None:
        # A family stays live when its last live device leaves: names that changed back would mix candidates.
        live = {
            spec.family for device_id, spec in specs.items() if device_id in self._specs and is_live(spec)
        }
        self._live_names.update({str(family): family for family in live})
        self._sharing.update(sharing_names(specs, set(self._live_names.values())))
