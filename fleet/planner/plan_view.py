"""What the plan sees of the fleet: counts of the devices that ask, and of those that they may wait for.

`fleet.planner.job_planner` has one and asks it for a view before each plan (`fleet.core.scheduling`). It
decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agents.records import DeviceId, DeviceKind, DeviceSpec, Workload, WorkloadId
from fleet.core.scheduling import NEW_RECORDS, Cell, DeviceView, FleetView
from fleet.coverage.coverage import Coverage
from fleet.planner.job_queues import Queues

#: How unsure the head of a device is of some workloads (`fleet.planner.candidate_ranker.Uncertainty.of`).
UncertaintyOf = Callable[[DeviceId, Mapping[WorkloadId, Workload]], Mapping[WorkloadId, float]]


def turn_of(spec: DeviceSpec) -> str:
    """What a device takes turns for with others of its host; empty where it shares nothing with any."""
    if spec.kind is DeviceKind.LOCAL:
        return "cores"
    return f"cuda-{spec.index}" if spec.kind is DeviceKind.CUDA else ""


class PlanViews:
    """Makes the views.

    Args:
        turns: What each device takes turns for (`turn_of`); one that is missing shares nothing.
        is_open: Whether the policy of a device lets it measure now: nobody waits for one that may not.
        uncertainty: How unsure heads are; without it no workload is preferred for that.
        waiting: Imported candidates of a workload that may be derived for a device.

    Attributes:
        hosts: Host of each device that is up.
        heads: Devices with a head of the champion.
    """

    def __init__(
        self,
        coverage: Coverage,
        queues: Queues,
        *,
        turns: Mapping[DeviceId, str] | None = None,
        is_open: Callable[[DeviceId], bool] = lambda _: True,
        uncertainty: UncertaintyOf | None = None,
        waiting: Callable[[DeviceId, WorkloadId], int] = lambda *_: 0,
    ) -> None:
        self._coverage, self._queues, self._waiting = coverage, queues, waiting
        self._turns = turns or {}
        self._is_open, self._uncertainty = is_open, uncertainty
        self.hosts: dict[DeviceId, str] = {}
        self.heads: set[DeviceId] = set()

    def view(
        self,
        device_ids: Iterable[DeviceId],
        workloads_of: Mapping[DeviceId, Mapping[WorkloadId, Workload]],
    ) -> FleetView:
        """Draw the view for devices that ask, all of which measure the same workloads.

        Returns:
            With the new devices that share timing cores with any of them.
        """
        asking = list(device_ids)
        workloads = workloads_of[asking[0]] if asking else {}
        devices = {device_id: self._device(device_id, workloads) for device_id in asking}
        shared = {device.host for device in devices.values()} - {""}
        for device_id in self._turns if shared else ():
            is_alike = workloads_of.get(device_id) is workloads and self._place(device_id) in shared
            # Nobody waits for one that has enough records, so its counts are not needed.
            if is_alike and device_id not in devices and self._coverage.records(device_id) < NEW_RECORDS:
                devices[device_id] = self._device(device_id, workloads)
        weighted = {workload.workload_id: workload.weight * workload.flops for workload in workloads.values()}
        return FleetView(devices=devices, workloads=weighted)

    def _place(self, device_id: DeviceId) -> str:
        """What it takes turns for, and where; empty where it shares nothing, or has no agent."""
        host, turn = self.hosts.get(device_id), self._turns.get(device_id)
        return f"{host} {turn}" if host and turn else ""

    def _device(self, device_id: DeviceId, workloads: Mapping[WorkloadId, Workload]) -> DeviceView:
        has_head = device_id in self.heads
        unsure = self._uncertainty(device_id, workloads) if has_head and self._uncertainty is not None else {}
        records = self._coverage.records(device_id)
        # Only new ones are waited for, and only where there is something to share.
        place = self._place(device_id)
        is_up = device_id in self.hosts and (not place or records >= NEW_RECORDS or self._is_open(device_id))
        return DeviceView(
            device_id=device_id,
            records=records,
            has_head=has_head,
            host=place,
            is_up=is_up,
            cells=self._cells(device_id, workloads, unsure),
        )

    def _cells(
        self, device_id: DeviceId, workloads: Iterable[WorkloadId], unsure: Mapping[WorkloadId, float]
    ) -> dict[WorkloadId, Cell]:
        cells: dict[WorkloadId, Cell] = {}
        for workload_id, measured, gaps, is_exhausted in self._coverage.counts(device_id, workloads):
            queued = self._queues.waiting(device_id, workload_id)
            cells[workload_id] = Cell(
                measured=measured,
                queued=queued,
                unpaired=max(0, gaps - queued) + self._waiting(device_id, workload_id),
                interval=unsure.get(workload_id),
                is_exhausted=is_exhausted,
            )
        return cells
