"""A fleet state under test with what an outsider knows of it: every event, every instruction, every job."""

from __future__ import annotations

from typing import Any

from msgspec import convert
from msgspec.json import decode, encode

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.core import events as ev
from fleet.core.events import DeviceState, Event, Instruction, Job, JobId, JobState, Verdict
from fleet.core.job_state import PATIENCE
from fleet.core.leases import Leasing
from fleet.core.state import FleetState
from fleet.core.state_core import StateError
from fleet.core.words import Limits, Request, RequestId, RequestKind, RequestState

#: Small enough that a few steps reach every rule.
LIMITS = Limits(
    lease_secs=60.0,
    stall_secs=200.0,
    start_secs=120.0,
    device_failures=4,
    job_crashes=2,
    queued_jobs=2,
    training_records=100,
    reason_records=10,
)


def job(name: str, device: str) -> Job:
    return Job(
        job_id=JobId(name),
        device_id=DeviceId(device),
        workload_ids=(WorkloadId("w"),),
        candidate_ids=(CandidateId(f"{name}/0"), CandidateId(f"{name}/1")),
        origin="random",
        expected_secs=10.0,
    )


def request_of(entry: dict[str, Any]) -> Request:
    """The request of an entry of a written state."""
    return convert(entry["request"], Request)


def reopened(state: FleetState) -> FleetState:
    """The state as a snapshot gives it back."""
    return FleetState.from_json(decode(encode(state.to_json())))


def shown(state: FleetState, request_id: str) -> dict[str, Any]:
    """A request that is kept, as its clients see it."""
    found = state.request(RequestId(request_id))
    assert found is not None
    return found


class World:
    """Applies events as the coordinator does, and keeps books of its own."""

    def __init__(self) -> None:
        self.state = FleetState(Leasing(LIMITS))
        self.now = 1_000_000.0
        #: What the journal would hold.
        self.journal: list[bytes] = []
        self.submitted: set[JobId] = set()
        #: How many grants there were when the job of an id was submitted; ids may be used again.
        self.born: dict[JobId, int] = {}
        #: Grants of a device since a job was preferred to one of a higher priority.
        self.overtaking: dict[DeviceId, int] = {}
        #: All leases that were ever granted, in order, and those that expired or were given back.
        self.grants: list[ev.GrantLease] = []
        self.expired: set[tuple[DeviceId, int]] = set()
        self.counted: set[tuple[JobId, int]] = set()
        self.is_training = False
        #: Requests whose driver was started, and not ended since.
        self.driven: set[RequestId] = set()

    def tell(self, event: Event) -> None:
        """Journal and apply an event if it is news; an impossible one must leave the state as it was."""
        if not self.state.is_news(event):
            return
        before = self.state.to_json()
        overdue = self._overdue(event)
        verdict = self._verdict(event)
        refusal = ""
        try:
            made = self.state.apply(event)
        except StateError as error:
            refusal = str(error)
        if refusal:
            assert "Last events" in refusal
            assert self.state.to_json() == before
            return
        self.journal.append(ev.encode_events([event]))
        self._note(event, made, overdue, before)
        if isinstance(event, ev.JobFinished):
            self._check_count(event, before, verdict)
        self._note_drivers(event, made)
        self.check()

    def replayed(self) -> FleetState:
        """The state that a coordinator gets from the journal."""
        state = FleetState(Leasing(LIMITS))
        for line in self.journal:
            state.apply(*ev.decode_events(line))
        return state

    def device(self, name: str) -> dict[str, Any]:
        return self.state.describe(DeviceId(name))

    def _verdict(self, event: Event) -> Verdict | None:
        """What the state says of results before they are told."""
        if not isinstance(event, ev.JobFinished):
            return None
        return self.state.verdict(event.device_id, event.job_id, event.fencing_token)

    def _overdue(self, event: Event) -> set[tuple[DeviceId, int]]:
        leasing = self.state.to_json()["leasing"]
        if not isinstance(event, ev.Tick) or leasing["is_full"]:
            return set()
        now = max(event.at_secs, leasing["now"])
        return {
            (DeviceId(device["device_id"]), lease["fencing_token"])
            for device in leasing["devices"].values()
            for lease in device["leases"]
            if lease["deadline_secs"] <= now
        }

    def _note(
        self,
        event: Event,
        made: list[Instruction],
        overdue: set[tuple[DeviceId, int]],
        before: dict[str, Any],
    ) -> None:
        self.expired |= overdue
        assert not self._overdue(event)
        if isinstance(event, ev.JobSubmitted):
            assert event.job.job_id not in self.submitted or not self._is_there(before, event.job.job_id)
            self.submitted.add(event.job.job_id)
            self.born[event.job.job_id] = len(self.grants)
        if isinstance(event, ev.LeaseReturned):
            self.expired.add((event.device_id, event.fencing_token))
            assert self._blame(self.state.to_json()) == self._blame(before)
        if isinstance(event, ev.ClockSet):
            assert self._blame(self.state.to_json()) == self._blame(before)
            assert all(isinstance(one, ev.GrantLease | ev.WantJobs) for one in made)
        if isinstance(event, ev.Tick):
            self._check_silence(before)
        if isinstance(event, ev.TrainingFinished | ev.TrainingFailed):
            self.is_training = False
        for one in made:
            if isinstance(one, ev.StopTraining):
                assert self.is_training
                self.is_training = False
            if isinstance(one, ev.StartTraining):
                assert not self.is_training or isinstance(event, ev.CoordinatorStarted)
                self.is_training = True
            if isinstance(one, ev.GrantLease):
                self._check_grant(one)
                self.grants.append(one)

    def _note_drivers(self, event: Event, made: list[Instruction]) -> None:
        """Drivers are started once and stopped once, no more than there may be, and leave no job behind."""
        if isinstance(event, ev.CoordinatorStarted):
            self.driven.clear()  # they ended with the one before
        for one in made:
            if isinstance(one, ev.StopDriver):
                assert one.request_id in self.driven
                self.driven.remove(one.request_id)
                self._check_no_job(one.request_id)
        if isinstance(event, ev.RequestEnded) and event.request_id in self.driven:
            self.driven.remove(event.request_id)
            self._check_no_job(event.request_id)
        for one in made:
            if isinstance(one, ev.StartDriver):
                assert one.request_id not in self.driven
                self.driven.add(one.request_id)
        running = {
            request_id
            for request_id in self.state.request_ids()
            if self._kind(request_id).has_driver
            and shown(self.state, request_id)["state"] == RequestState.RUNNING
        }
        assert self.driven == running
        # Fingerprints are the background's, and wait for no driver; an onboarding waits for onboardings only.
        running = {one for one in running if self._kind(one) is not RequestKind.FINGERPRINT}
        arrivals = {one for one in running if self._kind(one) is RequestKind.ONBOARDING}
        assert len(running - arrivals) <= self.state.limits.drivers
        assert len(running) <= max(1, self.state.limits.drivers) + 1

    def _check_no_job(self, request_id: RequestId) -> None:
        """None waits; what was at work when its request ended may come back, and is cancelled then."""
        entries = self.state.to_json()["leasing"]["jobs"]["entries"]
        states = {one["state"] for one in entries.values() if one["job"]["request_id"] == request_id}
        assert JobState.QUEUED not in states

    def _kind(self, request_id: RequestId) -> RequestKind:
        return RequestKind(shown(self.state, request_id)["kind"])

    def reserved(self) -> set[DeviceId]:
        """Devices that the driver of a running request measures on."""
        values = self.state.to_json()["requests"]["entries"].values()
        return {
            device_id
            for one in values
            if one["state"] == RequestState.RUNNING
            and (one["is_measuring"] or request_of(one).kind is RequestKind.ONBOARDING)
            for device_id in request_of(one).device_ids
        }

    @staticmethod
    def _is_there(values: dict[str, Any], job_id: JobId) -> bool:
        return job_id in values["leasing"]["jobs"]["entries"]

    def _check_silence(self, before: dict[str, Any]) -> None:
        """Time alone counts nothing against whoever was not heard lately, nor against the job there."""
        values = self.state.to_json()
        now, crashes, counted = values["leasing"], self._crashes(values), self._crashes(before)
        for name, device in before["leasing"]["devices"].items():
            is_silent = device["heard_secs"] < now["now"] - LIMITS.lease_secs / 2
            if device["leases"] and is_silent:
                assert now["devices"][name]["failures"] == device["failures"]
                for lease in device["leases"]:
                    # A job goes with its lease where its request had ended meanwhile.
                    job_id = lease["job_id"]
                    assert crashes.get(job_id, counted[job_id]) == counted[job_id]

    @staticmethod
    def _crashes(values: dict[str, Any]) -> dict[str, int]:
        entries = values["leasing"]["jobs"]["entries"]
        return {job_id: entry["crashes"] for job_id, entry in entries.items()}

    def _blame(self, values: dict[str, Any]) -> list[Any]:
        """What was counted against devices and jobs, and what devices were charged."""
        devices = values["leasing"]["devices"].values()
        counted = [(device["crashes"], device["failures"], device["device_secs"]) for device in devices]
        return [counted, self._crashes(values)]

    def _check_count(self, event: ev.JobFinished, before: dict[str, Any], verdict: Verdict | None) -> None:
        """Results count if their lease is the last of a job that has not ended, and did not expire."""
        since = self.grants[self.born.get(event.job_id, 0) :]
        latest = [g for g in since if (g.job_id, g.device_id) == (event.job_id, event.device_id)][-1:]
        should = (
            bool(latest)
            and latest[0].fencing_token == event.fencing_token
            and (event.device_id, event.fencing_token) not in self.expired
            and self._is_there(before, event.job_id)
        )
        was = before["leasing"]["jobs"]["counts"][JobState.DONE]
        assert (self.state.job_counts()[JobState.DONE] == was + 1) is should
        assert (verdict is Verdict.COUNTS) is should
        if should:
            assert (event.job_id, event.fencing_token) not in self.counted
            self.counted.add((event.job_id, event.fencing_token))

    def _check_grant(self, grant: ev.GrantLease) -> None:
        earlier = [one.fencing_token for one in self.grants if one.device_id == grant.device_id]
        assert grant.fencing_token == max(earlier, default=0) + 1
        told = self.state.describe(grant.device_id)
        assert (told["incarnation"], told["state"]) == (grant.incarnation, DeviceState.LEASED)
        assert self.state.job_state(grant.job_id) is JobState.LEASED
        granted = self.state.job(grant.job_id)
        assert granted is not None
        assert granted.priority > 0 or grant.device_id not in self.reserved()
        waiting = self.state.to_json()["leasing"]["jobs"]["queues"].get(grant.device_id, [])
        others = [one for one in map(self.state.job, waiting) if one is not None]
        highest = max((one.priority for one in others), default=0)
        if granted.priority >= highest:
            self.overtaking[grant.device_id] = self.overtaking.get(grant.device_id, 0) + 1
        else:
            assert self.overtaking.pop(grant.device_id, 0) >= PATIENCE, "nobody waited so long"

    def check(self) -> None:
        """What must hold at any time."""
        leasing = self.state.to_json()["leasing"]
        jobs = leasing["jobs"]
        entries = jobs["entries"]
        self._check_accounts(jobs, entries)
        leased = [lease["job_id"] for device in leasing["devices"].values() for lease in device["leases"]]
        assert sorted(leased) == sorted(key for key, entry in entries.items() if entry["state"] == "leased")
        queued = [job_id for queue in jobs["queues"].values() for job_id in queue]
        assert sorted(queued) == sorted(key for key, entry in entries.items() if entry["state"] == "queued")
        for device in leasing["devices"].values():
            assert bool(device["leases"]) == (device["state"] == "leased")
            assert len(device["leases"]) <= LIMITS.leases
            for lease in device["leases"]:
                entry = entries[lease["job_id"]]
                assert entry["job"]["device_id"] == device["device_id"]
                assert entry["fencing_token"] == lease["fencing_token"] <= device["fencing_token"]
        for entry in entries.values():
            is_over = entry["crashes"] >= LIMITS.job_crashes
            assert is_over == (entry["state"] == "quarantined")

    def _check_accounts(self, jobs: dict[str, Any], entries: dict[str, Any]) -> None:
        counts = jobs["counts"]
        assert sum(counts.values()) == jobs["submitted"] == self.state.jobs_submitted
        for name in ("queued", "leased", "quarantined"):
            assert counts[name] == sum(entry["state"] == name for entry in entries.values())
        assert set(entries) <= self.submitted
        assert counts["done"] == len(self.counted)
