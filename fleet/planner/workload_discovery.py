"""Finds out what the devices measure: from what was kept, else from the first agent that is up.

`fleet.engine.coordinator` reports agents and their lists. To list the operators of networks takes an agent
some seconds, so the choice is kept in the state file and a restart begins at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.records import (
    IMPORTED,
    DeviceId,
    DeviceSpec,
    Workload,
    WorkloadId,
    canonical_json,
    content_hash,
    is_live,
)
from fleet.config.sections import WorkloadsSection
from fleet.planner.job_planner import JobPlanner
from fleet.planner.planner_context import PlannerContext
from fleet.planner.selection import choose_configured
from fleet.state.state_file import StateFile
from fleet.store.store import Store
from fleet.transport.transport import AgentTransport

#: Name of the note about chosen workloads.
CHOSEN = "chosen_workloads"
#: The group of devices that answer from records.
REPLAYED = "replay"


def choice_key(choice: WorkloadsSection, specs: Sequence[DeviceSpec]) -> str:
    """Differs where the choice, or what replay devices were recorded from, differs."""
    sources = {(spec.replay.records, spec.replay.device) for spec in specs if spec.replay is not None}
    bounds = {name: repr(getattr(choice, name)) for name in ("count", "min_flops", "max_flops")}
    bounds["networks"] = repr(tuple(map(_content_of, choice.networks)))
    return content_hash(canonical_json(bounds), canonical_json(sorted(sources)))


def _content_of(network: str) -> str:
    """The name of a network; of a file one that changes with its content."""
    try:
        return read_network_name(network).label()
    except NetworkRefusedError:  # whoever reads it says so
        return network


def group_of(spec: DeviceSpec) -> str:
    """Devices of one group choose from one list: programs are the same for all devices that time them."""
    return "live" if is_live(spec) else REPLAYED


class KeptChoices:
    """Chosen workloads by group, in a note of the state file."""

    def __init__(self, state: StateFile) -> None:
        self._state = state
        body = state.note(CHOSEN)
        self._groups: dict[str, dict[str, Any]] = {} if body is None else json.loads(body)

    def get(self, group: str, key: str) -> list[WorkloadId] | None:
        """What was chosen for a group; None where nothing was, or by other settings."""
        entry = self._groups.get(group)
        return entry["ids"] if entry is not None and entry["key"] == key else None

    def put(self, group: str, key: str, chosen: Sequence[Workload]) -> None:
        """Keep a choice; it is durable with the next turn."""
        self._groups[group] = {"key": key, "ids": [workload.workload_id for workload in chosen]}
        body = canonical_json(self._groups).encode()
        self._state.change(lambda turn: turn.put_note(CHOSEN, body))


class WorkloadDiscovery:
    """Workloads of the devices, by group.

    Args:
        specs: The devices of now; none where nothing is measured but for requests.
    """

    def __init__(
        self,
        choice: WorkloadsSection,
        store: Store,
        context: PlannerContext,
        planner: JobPlanner,
        transport: AgentTransport,
        specs: Mapping[DeviceId, DeviceSpec],
    ) -> None:
        self._choice, self._kept_choices, self._store = choice, KeptChoices(store.state), store
        self._coverage, self._imports, self._thread = context.coverage, context.imports, context.thread
        self._planner, self._transport, self._specs = planner, transport, specs
        #: Devices that were asked, by group.
        self._asked_devices: dict[str, DeviceId] = {}
        self._chosen: dict[str, Sequence[Workload]] = {}
        for group in dict.fromkeys(map(group_of, specs.values())):
            self._use_kept(group)
        self.load()

    @property
    def is_waiting(self) -> bool:
        """Whether an agent was asked and has not answered."""
        return bool(self._asked_devices)

    def joined(self, spec: DeviceSpec) -> None:
        """Have a device that came measure what its group does, as far as that is known."""
        group = group_of(spec)
        if group in self._chosen:
            self._use(group, self._chosen[group])
        elif self._use_kept(group):
            self.load()

    def agent_up(self, spec: DeviceSpec, incarnation: int) -> None:
        """Ask an agent, if nobody has told yet what the devices of its group measure."""
        group = group_of(spec)
        if spec.device_id in self._specs and group not in self._chosen and group not in self._asked_devices:
            self._asked_devices[group] = spec.device_id
            self._transport.list_workloads(spec.device_id, incarnation, self._choice.networks)

    def agent_gone(self, device_id: DeviceId) -> None:
        """Note that an agent will not answer; the next one that comes up is asked."""
        self._asked_devices = {
            group: asked_device
            for group, asked_device in self._asked_devices.items()
            if asked_device != device_id
        }

    def listed(self, spec: DeviceSpec, workloads: Sequence[Workload]) -> list[DeviceId]:
        """Choose from an agent's list.

        Returns:
            Devices that can be given work now.

        Raises:
            FleetError: None of the workloads will do, or the disk is full.
        """
        group = group_of(spec)
        self._asked_devices.pop(group, None)
        if group in self._chosen:
            return []
        chosen = choose_configured(workloads, self._choice)
        members = self._members(group)
        self._store.put_workloads(chosen, own=group != REPLAYED)
        self._kept_choices.put(group, choice_key(self._choice, members), chosen)
        self._use(group, chosen)
        self.load()
        return [member.device_id for member in members]

    def load(self) -> None:
        """Read what is known of the chosen workloads: measured candidates, and those that wait for it."""
        if not self._chosen:
            return
        self._store.settle()
        self._coverage.load()
        self.find_imported()

    def find_imported(self) -> None:
        """Look in the store for imported candidates that wait to be derived; a thread reads."""
        devices = self._store.state.devices_with(IMPORTED)
        search = self._imports.search(self._coverage.workload_ids, devices)
        self._thread.ask(search, lambda candidate_ids: self._imports.add(candidate_ids or {}))

    def _members(self, group: str) -> list[DeviceSpec]:
        return [spec for spec in self._specs.values() if group_of(spec) == group]

    def _use_kept(self, group: str) -> bool:
        """Take what was chosen before; false where nothing was, or for others."""
        # Live devices get modules of our own only: what is kept of others is listed again.
        read = self._store.workloads if group == REPLAYED else self._store.own_workloads
        ids = self._kept_choices.get(group, choice_key(self._choice, self._members(group)))
        workloads = read(ids) if ids is not None else {}
        if ids is None or not all(workload_id in workloads for workload_id in ids):
            return False
        self._use(group, [workloads[workload_id] for workload_id in ids])
        return True

    def _use(self, group: str, chosen: Sequence[Workload]) -> None:
        self._coverage.want(workload.workload_id for workload in chosen)
        self._planner.set_workloads([member.device_id for member in self._members(group)], chosen)
        self._chosen[group] = chosen


class WorkloadModules:
    """What was listed for requests, or is stored."""

    def __init__(self, store: Store, specs: Mapping[DeviceId, DeviceSpec]) -> None:
        self._store, self._specs = store, specs
        #: By whether they are our own, which a live device must have.
        self._modules: dict[bool, dict[WorkloadId, Workload]] = {True: {}, False: {}}

    def put(self, device_id: DeviceId, workloads: Iterable[Workload]) -> None:
        """Note what the agent of a device has listed; the store has it."""
        self._of(device_id).update({workload.workload_id: workload for workload in workloads})

    def get(self, device_id: DeviceId, workload_id: WorkloadId) -> Workload | None:
        """A workload as a device may be given it; None where the store lacks it."""
        modules = self._of(device_id)
        if workload_id not in modules:
            read = self._store.own_workloads if modules is self._modules[True] else self._store.workloads
            modules.update(read())
        return modules.get(workload_id)

    def _of(self, device_id: DeviceId) -> dict[WorkloadId, Workload]:
        return self._modules[is_live(self._specs[device_id])]
