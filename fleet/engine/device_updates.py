"""Devices that come, change and leave while a coordinator runs.

`fleet.engine.coordinator` calls it at its start and at chore time. `fleet.config.device_changes` says what is
to be done; here it is done, in an order that leaves no part of the coordinator with a device that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agents.records import DeviceId, DeviceSpec
from fleet.config.device_changes import DeviceFiles, compare
from fleet.core import events as ev
from fleet.core.events import DeviceState
from fleet.engine.context import Composition
from fleet.engine.roster import RosterError


class DeviceUpdates:
    """Keeps the coordinator's devices as they are described."""

    def __init__(self, parts: Composition) -> None:
        self._parts, self._source = parts, parts.source
        #: What could not be followed to the end, for want of room on the disk.
        self._unapplied: DeviceFiles | None = None
        #: Faults that are told, by device.
        self._faults: dict[DeviceId, str] = {}

    def begin(self) -> None:
        """Tell the state of devices that it knows and this start has not, then of faulty files."""
        self._part_with_others(frozenset())
        self._tell_faults(self._source.files.faults)

    def added(self, device_id: DeviceId) -> ev.DeviceAdded:
        """The event that brings a device in."""
        parts = self._parts
        return ev.DeviceAdded(
            device_id=device_id,
            family=str(parts.roster.specs[device_id].family),
            policy=parts.settings.policy_of(device_id),
            neighbourhood=parts.roster.turns[device_id],
        )

    def look(self) -> None:
        """Follow the files, if they changed.

        Raises:
            StoreFull: No room; the next call goes on.
            FleetError: The disk failed.
        """
        files = self._unapplied = self._source.look() or self._unapplied
        if files is None:
            return
        changes = compare(self._parts.roster.specs, files)
        refused: dict[DeviceId, str] = {}
        # First those that leave: one that takes a name or a core over may come in the same moment.
        for device_id in changes.retired:
            self._retire(device_id)
        for device_id, spec in changes.added.items():
            try:
                self._add(spec)
            except RosterError as error:
                refused[device_id] = str(error)
        for device_id, spec in changes.changed.items():
            self._parts.roster.put(spec)
            self._start_anew(device_id, "its file changed")
        for device_id, why in changes.disturbing.items():
            self._start_anew(device_id, why)
        # A device that cannot join has a file, and waits as it did.
        self._part_with_others({*changes.retired, *refused})
        self._tell_faults({**changes.faults, **refused})
        self._unapplied = None

    def _add(self, spec: DeviceSpec) -> None:
        parts, device_id = self._parts, spec.device_id
        is_stranger = device_id not in parts.roster.all_specs and parts.store.state.tallies(device_id)
        is_first = parts.roster.put(spec)
        if is_first or is_stranger:
            # The facts about the store were read for other devices, or under other names.
            parts.discovery.load()
        if device_id in parts.state.device_ids():
            # An agent that was told to end may be at its last batch and still hold the spool.
            incarnation = parts.state.describe(device_id)["incarnation"]
            parts.transport.stop(device_id, incarnation, kill=True)
        parts.discovery.joined(spec)
        parts.event_log.append(self.added(device_id))
        parts.notices.log(f"{device_id}: joins the fleet", kind="joined", style="green")

    def _retire(self, device_id: DeviceId) -> None:
        """Forget a device, then tell the state, which takes no job of one that is retired."""
        parts, reason = self._parts, "it has no device file now"
        parts.roster.retire(device_id)
        parts.planner.forget(device_id)
        parts.transport.forget(device_id)
        parts.event_log.append(ev.DeviceRetired(device_id=device_id, reason=reason))
        text = f"{device_id}: leaves the fleet, for {reason}; its records and its model stay"
        parts.notices.log(text, kind="retired")

    def _start_anew(self, device_id: DeviceId, reason: str) -> None:
        parts = self._parts
        parts.event_log.append(ev.DeviceChanged(device_id=device_id, reason=reason))
        parts.notices.log(f"{device_id}: its agent is started anew: {reason}", kind="changed")

    def _part_with_others(self, handled: Collection[DeviceId]) -> None:
        """Leave devices out that this start was not asked for; retire those that have no file."""
        parts, files = self._parts, self._source.files
        for device_id in parts.state.device_ids():
            if device_id in parts.roster.specs or device_id in handled:
                continue
            status = parts.state.describe(device_id)
            reason = files.why_not(device_id)
            if status["state"] == DeviceState.RETIRED or (reason and status["reason"] == reason):
                continue
            if reason:
                parts.event_log.append(ev.DeviceLeftOut(device_id=device_id, reason=reason))
            else:
                reason = "it has no device file now"
                parts.event_log.append(ev.DeviceRetired(device_id=device_id, reason=reason))

    def _tell_faults(self, faults: Mapping[DeviceId, str]) -> None:
        notices = self._parts.notices
        for device_id, text in faults.items():
            if self._faults.get(device_id) != text:
                notices.hold_alarm(
                    f"device file {device_id}", device_id, f"its file cannot be used: {text}", "device_file"
                )
        for device_id in self._faults.keys() - faults.keys():
            notices.drop_alarm(f"device file {device_id}")
        self._faults = dict(faults)
