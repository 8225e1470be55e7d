"""How unsure the champion of a device is of each workload: by what it was judged on before it was published.

The plan asks (`fleet.planner.plan_view`). A champion was judged on workloads that it never learnt from, so
its errors there are honest ones; of the others of the same operator it is taken to be as unsure. Reads the
file of champions only, again whenever it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.records import DeviceId, Workload, WorkloadId
from fleet.errors import FleetError
from fleet.models.registry_reader import RegistryReader


class Uncertainty:
    """Knows what the champions of a registry were judged to be."""

    def __init__(self, registry: RegistryReader) -> None:
        self._registry = registry
        self._widths: dict[DeviceId, tuple[Any, int, dict[WorkloadId, float]]] = {}

    def of(self, device_id: DeviceId, workloads: Mapping[WorkloadId, Workload]) -> Mapping[WorkloadId, float]:
        """Say how wide the interval of a device's head is on each workload.

        Args:
            device_id: The device.
            workloads: What it measures; the same object as long as it does not change.

        Returns:
            Width of the 90 % interval of the share of pairs that it puts right, 0 to 1. A workload that it
            was not judged on has the mean of its operator, or that of all where no other of the operator was
            judged. Empty where there is no champion, or it was not judged.
        """
        try:
            champion = self._registry.state().champions.get(device_id)
        except (FleetError, OSError):
            # Readers of models report the damage; the plan does without the scores.
            return {}
        if champion is None or not champion.judged:
            return {}
        cached = self._widths.get(device_id)
        if cached is None or cached[0] is not champion or cached[1] != id(workloads):
            widths = spread(champion.judged.get("by_workload", {}), workloads)
            cached = self._widths[device_id] = champion, id(workloads), widths
        return cached[2]


def spread(
    judged: Mapping[str, Mapping[str, Any]], workloads: Mapping[WorkloadId, Workload]
) -> dict[WorkloadId, float]:
    """Widths of all workloads from those of the judged ones (`fleet.models.judge.by_workload`)."""
    by_operator: dict[str, list[float]] = {}
    for scores in judged.values():
        by_operator.setdefault(str(scores["operator"]), []).append(float(scores["width"]))
    every = [width for widths in by_operator.values() for width in widths]
    if not every:
        return {}
    width_by_workload: dict[WorkloadId, float] = {}
    for workload_id, workload in workloads.items():
        own = judged.get(workload_id)
        alike = [float(own["width"])] if own is not None else by_operator.get(workload.operator, every)
        width_by_workload[workload_id] = sum(alike) / len(alike)
    return width_by_workload
