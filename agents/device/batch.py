"""A batch of candidates and the parts that it is measured in. Called by the workers and by who asks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agents.records import Candidate, Protocol, Record, Workload, WorkloadId
from agents.values import Value

#: A part takes about this long. A dead agent costs that, and the programs that wait to be timed again.
PART_SECS = 15.0


class Batch(Value, frozen=True, kw_only=True):
    """Candidates to measure on one device, and how."""

    candidates: tuple[Candidate, ...]
    #: Every workload that the candidates name.
    workloads: Mapping[WorkloadId, Workload]
    protocol: Protocol
    #: Counted up for a measurement of the same candidate in the same environment.
    attempt: int = 0
    #: Candidates within this fraction of the best of their workload are measured once more, seconds later:
    #: they decide what is chosen, and a neighbour on the host slows a program for seconds. 0: none.
    confirm_within: float = 0.05
    model_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of a batch gave."""

    records: list[Record]
    #: Seconds that it took.
    device_secs: float
    #: The batch is done.
    is_last: bool
