"""Which workloads no refresh ever learns from: the ground on which champion and challenger meet. Pure.

Used by training, onboarding and the refresh. The rule looks at the workload alone, so that it says the same
on every host, after every restart and for every version of a model, and the held-out part grows with the
store. Why it is so: `docs/decisions/0017-champions-per-device.md`.
"""

from __future__ import annotations

from collections.abc import Iterable

from agents.records import Workload, WorkloadId, canonical_json, content_hash

#: Raise it when the rule changes: workloads change sides then, and what heads have learnt from alone keeps
#: comparisons honest.
RULE = 1
#: Share of the workloads that is held out.
SHARE = 0.15
#: With fewer workloads than this none is held out: too few would be left to learn from, and one or two judge
#: nothing.
LEAST_WORKLOADS = 10

#: Hexadecimal digits of the hash that the rule looks at.
_DIGITS = 8


def is_held_out(workload: Workload) -> bool:
    """Whether the rule puts a workload on the held-out side.

    Workloads of one operator with the same shapes go to one side: they differ in data types, strides or
    layout alone, and who learnt one of them has half seen the other.
    """
    shapes = [list(shape) for shape in workload.arg_shapes]
    key = canonical_json([workload.operator, shapes]) if shapes else workload.workload_id
    digest = content_hash("holdout", str(RULE), key)
    return int(digest[:_DIGITS], 16) < int(SHARE * 16**_DIGITS)


def held_out(workloads: Iterable[Workload]) -> frozenset[WorkloadId]:
    """The held-out ones among the workloads that a family has records of; none where these are few."""
    recorded = list(workloads)
    if len(recorded) < LEAST_WORKLOADS:
        return frozenset()
    return frozenset(workload.workload_id for workload in recorded if is_held_out(workload))
