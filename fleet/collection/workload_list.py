"""Lists of workloads for people: filtered, and counted by operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.records import Workload, WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFilter:
    """Which workloads are wanted."""

    #: Part of the name, operator, id or network, in any case.
    text: str = ""
    #: Operators; any when empty.
    operators: tuple[str, ...] = ()
    min_flops: float = 0.0
    max_flops: float = float("inf")

    def fits(self, workload: Workload) -> bool:
        """Whether a workload is wanted."""
        words = [
            workload.name,
            workload.operator,
            workload.workload_id,
            *(name for name, _ in workload.networks),
        ]
        return (
            self.min_flops <= workload.flops <= self.max_flops
            and (not self.operators or workload.operator in self.operators)
            and self.text.lower() in " ".join(words).lower()
        )


def described(workload: Workload, records: Mapping[WorkloadId, int]) -> dict[str, Any]:
    """A workload as `fleet workloads --json` tells of it."""
    return {
        "workload": workload.name,
        "workload_id": workload.workload_id,
        "operator": workload.operator,
        "flops": workload.flops,
        "arg_shapes": [list(shape) for shape in workload.arg_shapes],
        "networks": dict(workload.networks),
        "records": records.get(workload.workload_id, 0),
    }


def counts_by_operator(workloads: Iterable[Workload]) -> dict[str, dict[str, float]]:
    """Of each operator: `workloads`, `networks` that run them, least and most FLOPs; most common first."""
    groups: dict[str, list[Workload]] = {}
    for one in workloads:
        groups.setdefault(one.operator, []).append(one)
    return {
        operator: {
            "workloads": len(group),
            "networks": len({name for one in group for name, _ in one.networks}),
            "min_flops": min(one.flops for one in group),
            "max_flops": max(one.flops for one in group),
        }
        for operator, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    }
