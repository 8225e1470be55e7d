"""Jobs as the state knows them: queues by device, which lease of a job counts, crashes, counters. Pure.

Part of `state.py`, which alone changes it. Jobs that ended leave a number only, so that memory stays flat
over any number of them.
"""

from __future__ import annotations

from msgspec import Struct, field

from agents.records import DeviceId
from fleet.core.events import Job, JobId, JobState

#: Turns in a row of higher priorities after which a lower one has its turn: nothing starves.
PATIENCE = 15
#: Requests by device whose turns are remembered.
_SERVED_KEPT = 16
#: Quarantined jobs that are kept, for what spools still hold of them; of older ones the number is kept.
_QUARANTINED_KEPT = 1000


class Entry(Struct, forbid_unknown_fields=True):
    """A job that has not ended."""

    job: Job
    state: JobState = JobState.QUEUED
    #: Lease whose results count: the running one, or the last one if it was released; None before the first
    #: and after one that expired or was given back.
    fencing_token: int | None = None
    crashes: int = 0
    #: Fencing token of the last lease that counted as a crash: one lease counts as one crash.
    crashed_token: int = 0
    #: Device-seconds charged for the lease of `fencing_token` already.
    charged_secs: float = 0.0
    #: Why it was quarantined.
    reason: str = ""


class Jobs(Struct, forbid_unknown_fields=True):
    """All jobs that have not ended, and how many have."""

    entries: dict[JobId, Entry] = field(default_factory=dict)
    queues: dict[DeviceId, list[JobId]] = field(default_factory=dict)
    #: Jobs under quarantine, oldest first.
    quarantined: list[JobId] = field(default_factory=list)
    #: By device: the requests that had the last turns, the latest last; and turns in a row in which jobs of a
    #: lower priority waited.
    served: dict[DeviceId, list[str]] = field(default_factory=dict)
    overtaken: dict[DeviceId, int] = field(default_factory=dict)
    submitted: int = 0
    counts: dict[JobState, int] = field(default_factory=lambda: dict.fromkeys(JobState, 0))

    def get(self, job_id: JobId) -> Entry | None:
        """A job that is queued, leased or quarantined."""
        return self.entries.get(job_id)

    def queued(self, device_id: DeviceId) -> int:
        """Jobs that wait for a device."""
        return len(self.queues.get(device_id, ()))

    def next(self, device_id: DeviceId, least_priority: int = 0) -> Entry | None:
        """The job that a device gets next; None where there is none. Jobs below `least_priority` wait.

        Requests of one priority take turns, and after `PATIENCE` turns of higher ones a lower one has its
        turn.
        """
        waiting = [self.entries[job_id] for job_id in self.queues.get(device_id, ())]
        waiting = [entry for entry in waiting if entry.job.priority >= least_priority]
        highest = max((entry.job.priority for entry in waiting), default=0)
        if self.overtaken.get(device_id, 0) >= PATIENCE:
            lower = [entry.job.priority for entry in waiting if entry.job.priority < highest]
            highest = max(lower, default=highest)
        equals = [entry for entry in waiting if entry.job.priority == highest]
        if not equals:
            return None
        turns = {request_id: place for place, request_id in enumerate(self.served.get(device_id, ()))}
        return min(equals, key=lambda entry: turns.get(entry.job.request_id, -1))

    def of_request(self, request_id: str) -> list[Entry]:
        """Jobs of a request that wait for their device."""
        waiting = (entry for entry in self.entries.values() if entry.state is JobState.QUEUED)
        return [entry for entry in waiting if entry.job.request_id == request_id]

    def of_device(self, device_id: DeviceId) -> list[JobId]:
        """Queued and quarantined jobs of a device."""
        waiting = list(self.queues.get(device_id, ()))
        return waiting + [
            job_id for job_id in self.quarantined if self.entries[job_id].job.device_id == device_id
        ]

    def submit(self, job: Job) -> None:
        """Queue a new job."""
        self.entries[job.job_id] = Entry(job)
        self.submitted += 1
        self.counts[JobState.QUEUED] += 1
        self._queue(job.device_id).append(job.job_id)

    def lease(self, entry: Entry, fencing_token: int) -> None:
        """Note that a queued job is leased; results of its leases before no longer count."""
        self._note_turn(entry.job)
        self._leave(entry)
        self._enter(entry, JobState.LEASED)
        entry.fencing_token, entry.charged_secs = fencing_token, 0.0

    def requeue(self, entry: Entry, *, first: bool) -> None:
        """Queue a job again, before or after all others of its device."""
        self._leave(entry)
        self._enter(entry, JobState.QUEUED)
        queue = self._queue(entry.job.device_id)
        queue.insert(0 if first else len(queue), entry.job.job_id)

    def crash(self, entry: Entry, fencing_token: int, reason: str, limit: int) -> bool:
        """Count a crash, and queue the job again after all others; true if it is quarantined instead."""
        entry.crashes += 1
        entry.crashed_token = fencing_token
        if entry.crashes < limit:
            self.requeue(entry, first=False)
            return False
        self._leave(entry)
        self._enter(entry, JobState.QUARANTINED)
        entry.reason = reason
        self.quarantined.append(entry.job.job_id)
        if len(self.quarantined) > _QUARANTINED_KEPT:
            del self.entries[self.quarantined.pop(0)]  # its number stays among the quarantined
        return True

    def end(self, entry: Entry, state: JobState) -> None:
        """Count a job as `done` or `cancelled` and forget it."""
        self._leave(entry)
        self.counts[state] += 1
        del self.entries[entry.job.job_id]

    def _note_turn(self, job: Job) -> None:
        """Note whose turn it is on a device, while its job still waits."""
        waiting = (self.entries[job_id].job.priority for job_id in self.queues.get(job.device_id, ()))
        priorities = set(waiting)
        if priorities == {0} and not self.served.get(job.device_id):
            return  # the background alone: nobody shares the device
        served = [
            request_id for request_id in self.served.get(job.device_id, []) if request_id != job.request_id
        ]
        self.served[job.device_id] = [*served, job.request_id][-_SERVED_KEPT:]
        is_overtaking = min(priorities) < job.priority == max(priorities)
        self.overtaken[job.device_id] = self.overtaken.get(job.device_id, 0) + 1 if is_overtaking else 0

    def _queue(self, device_id: DeviceId) -> list[JobId]:
        return self.queues.setdefault(device_id, [])

    def _enter(self, entry: Entry, state: JobState) -> None:
        entry.state = state
        self.counts[state] += 1

    def _leave(self, entry: Entry) -> None:
        self.counts[entry.state] -= 1
        if entry.state is JobState.QUEUED:
            self._queue(entry.job.device_id).remove(entry.job.job_id)
        elif entry.state is JobState.QUARANTINED:
            self.quarantined.remove(entry.job.job_id)
