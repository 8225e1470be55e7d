"""Workloads that requests measure, with their modules: from an agent's list or from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agents.records import DeviceId, DeviceSpec, Workload, WorkloadId
from agents.trust import is_live
from fleet.store.store import Store


class WorkloadModules:
    """What was listed for requests, or is stored.

    Args:
        store: Has the modules.
        known: Every known device.
    """

    def __init__(self, store: Store, known: Mapping[DeviceId, DeviceSpec]) -> None:
        self._store, self._known = store, known
        #: By whether they are our own, which a live device must have.
        self._found: dict[bool, dict[WorkloadId, Workload]] = {True: {}, False: {}}

    def put(self, device_id: DeviceId, workloads: Iterable[Workload]) -> None:
        """Note what the agent of a device has listed; the store has it."""
        self._of(device_id).update({one.workload_id: one for one in workloads})

    def get(self, device_id: DeviceId, workload_id: WorkloadId) -> Workload | None:
        """A workload as a device may be given it; None where the store lacks it."""
        found = self._of(device_id)
        if workload_id not in found:
            read = self._store.own_workloads if found is self._found[True] else self._store.workloads
            found.update(read())
        return found.get(workload_id)

    def _of(self, device_id: DeviceId) -> dict[WorkloadId, Workload]:
        return self._found[is_live(self._known[device_id])]
