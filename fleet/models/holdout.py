"""Which workloads no refresh ever learns from: the ground on which champion and challenger meet. Pure.

Used by training, onboarding and the refresh. The rule looks at the workloads alone, so that it says the same
on every host, after every restart and for every version of a model. A share is held out, and of a store of
some size at least as many as a judgement takes: whoever tunes three networks has forty workloads, and a
seventh part of them judges nobody. Why it is so: `docs/decisions/0017-champions-per-device.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from agents.records import Workload, WorkloadId, canonical_json, content_hash

#: Raise it when the rule changes: workloads change sides then, and what heads have learnt from alone keeps
#: comparisons honest.
RULE = 2
#: Share of the workloads that is held out.
SHARE = 0.15
#: With fewer workloads than this none is held out: too few would be left to learn from, and one or two judge
#: nothing.
LEAST_WORKLOADS = 10
#: From so many workloads on, at least so many are held out: those that the share would take first.
FLOOR_WORKLOADS, LEAST_HELD = 27, 9

#: Hexadecimal digits of the hash that the rule looks at.
_DIGITS = 8


def is_held_out(workload: Workload) -> bool:
    """Whether a workload is held out in every store, however many others there are."""
    return _place(workload) < SHARE


def _place(workload: Workload) -> float:
    """Where in [0, 1) the rule puts a workload; those below a bound are held out.

    Workloads of one operator with the same shapes go to one side: they differ in data types, strides or
    layout alone, and who learnt one of them has half seen the other.
    """
    shapes = [list(shape) for shape in workload.arg_shapes]
    key = canonical_json([workload.operator, shapes]) if shapes else workload.workload_id
    # The text of the first rule: what was held out by that one still is.
    digest = content_hash("holdout", "1", key)
    return int(digest[:_DIGITS], 16) / float(16**_DIGITS)


def held_out(workloads: Iterable[Workload]) -> frozenset[WorkloadId]:
    """The held-out ones among the workloads that a family has records of; none where these are few."""
    places = {workload.workload_id: _place(workload) for workload in workloads}
    if len(places) < LEAST_WORKLOADS:
        return frozenset()
    bound = SHARE
    if len(places) >= FLOOR_WORKLOADS:
        bound = max(bound, math.nextafter(sorted(places.values())[LEAST_HELD - 1], 1.0))
    return frozenset(workload_id for workload_id, place in places.items() if place < bound)
