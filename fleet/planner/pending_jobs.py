"""Jobs in the making, and what may be asked for to make them: between `job_planner.py` and who calls it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agents.device.messages import ProposeRequest
from agents.records import Candidate, CandidateId, DeviceId, Workload, WorkloadId
from fleet.core.events import Job


class JobSink(Protocol):
    """What a planner may ask for; nothing of it waits."""

    def propose(self, device_id: DeviceId, request: ProposeRequest) -> None:
        """Ask the agent of a device for candidates; `JobPlanner.proposed` or `JobPlanner.failed` follows."""

    def search(self, device_id: DeviceId, request_id: str, candidate_ids: Sequence[CandidateId]) -> None:
        """Look for traces in the store, put what is found into the pools, then call `JobPlanner.searched`."""

    def search_imported(
        self, device_id: DeviceId, request_id: str, candidate_ids: Sequence[CandidateId]
    ) -> None:
        """Look for traces of imported candidates in the store; `JobPlanner.found_imported` follows."""

    def underived(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """Tell people that imported candidates are not measured: how many, by reason."""

    def rank(
        self, device_id: DeviceId, request_id: str, workload: Workload, candidates: Sequence[Candidate]
    ) -> None:
        """Put candidates in the order of the device's head; `JobPlanner.ranked` follows."""

    def submit(self, job: Job) -> None:
        """Hand in a job."""


@dataclass(slots=True)
class PendingJob:
    """Jobs of one device in the making."""

    #: Candidates that were chosen so far, with their workloads.
    chosen: dict[CandidateId, WorkloadId] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    #: Requests that have no answer yet.
    waiting: set[str] = field(default_factory=set)
    #: Candidates that a head chose, and the version that did.
    versions: dict[CandidateId, str] = field(default_factory=dict)
