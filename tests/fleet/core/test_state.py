"""Rules of the fleet's state, one by one; any order of events is tried in `test_state_properties.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import (
    Busy,
    DevicePolicy,
    Instruction,
    JobId,
    JobState,
    ReasonKind,
    TimeWindow,
    Verdict,
)
from fleet.core.state import FleetState
from fleet.core.state_core import StateError
from fleet.core.words import Limits
from tests.fleet_world import finished, job

A, B = DeviceId("a"), DeviceId("b")
#: Midnight UTC.
START = 1_700_006_400.0
#: The first agent is ended, and another one takes its place.
REPLACED = [
    ev.StopAgent(device_id=A, incarnation=1, kill=True),
    ev.StartAgent(device_id=A, incarnation=2),
]


class Fleet:
    """A state, told of events in few words; time stands still unless it is moved."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.state = FleetState(limits)
        self.now = START

    def tell(self, kind: type[Any], **fields: Any) -> list[Instruction]:
        return self.state.apply(kind(at_secs=self.now, **fields))

    def of_a(self, kind: type[Any], **fields: Any) -> list[Instruction]:
        return self.tell(kind, device_id=A, **fields)

    def wait(self, secs: float) -> list[Instruction]:
        self.now += secs
        return self.tell(ev.Tick)

    def show(self, device_id: DeviceId = A) -> dict[str, Any]:
        return self.state.describe(device_id)

    def up(self, policy: DevicePolicy | None = None, device_id: DeviceId = A) -> Fleet:
        self.tell(ev.DeviceAdded, device_id=device_id, family="cpu", policy=policy or DevicePolicy())
        self.passes(device_id)
        return self

    def passes(self, device_id: DeviceId = A, environment_id: str = "e") -> list[Instruction]:
        agent = {"device_id": device_id, "incarnation": self.show(device_id)["incarnation"]}
        self.tell(ev.AgentStarted, **agent)
        return self.tell(ev.ProbePassed, **agent, environment_id=environment_id)

    def submit(self, *names: str, expected_secs: float = 10.0) -> list[Instruction]:
        jobs = [job(name, A, expected_secs=expected_secs) for name in names]
        return [one for each in jobs for one in self.tell(ev.JobSubmitted, job=each)]

    def with_jobs(self, *names: str, expected_secs: float = 10.0) -> Fleet:
        self.submit(*names, expected_secs=expected_secs)
        return self

    def finish(self, name: str, fencing_token: int, device_secs: float = 10.0) -> list[Instruction]:
        told = {"incarnation": self.show()["incarnation"], "device_secs": device_secs}
        return self.state.apply(finished(self.now, A, name, fencing_token, **told))

    def heartbeat(
        self, fencing_token: int | None, done: int = 0, busy: Busy = Busy.TIMING, **fields: Any
    ) -> list[Instruction]:
        told = {"fencing_token": fencing_token, "done": done, "busy": busy, **fields}
        return self.of_a(ev.AgentHeartbeat, incarnation=self.show()["incarnation"], **told)

    def stalls(self, fencing_token: int) -> list[Instruction]:
        """The agent heartbeats on and gets no further, until that is enough."""
        made: list[Instruction] = []
        for _ in range(100):
            self.heartbeat(fencing_token)
            made += self.wait(10.0)
            if only(ev.StopAgent, made):
                return made
        raise AssertionError("nothing came of it")

    def stores(self, count: int) -> list[Instruction]:
        return self.of_a(ev.RecordsStored, count=count)

    def training_fails(self, **fields: Any) -> list[Instruction]:
        self.tell(ev.TrainingStarted, family="cpu")
        return self.tell(ev.TrainingFailed, family="cpu", reason="no memory", **fields)

    def dies(self) -> list[Instruction]:
        return self.of_a(ev.AgentDied, incarnation=self.show()["incarnation"], reason="killed by signal 9")

    def crashes(self, name: str, fencing_token: int, stderr_tail: str = "boom") -> list[Instruction]:
        told = {"fencing_token": fencing_token, "stderr_tail": stderr_tail}
        return self.of_a(ev.JobCrashed, job_id=JobId(name), **told)

    def leases(self) -> dict[str, int]:
        return {one["job_id"]: one["fencing_token"] for one in self.show()["leases"]}

    def verdict(self, name: str, fencing_token: int) -> Verdict:
        return self.state.verdict(A, JobId(name), fencing_token)

    def count(self, state: JobState) -> int:
        return self.state.job_counts()[state]


def granted(instructions: list[Instruction]) -> list[JobId]:
    """The jobs that are leased now."""
    return [one.job_id for one in only(ev.GrantLease, instructions)]


def only(kind: type[Any], instructions: list[Instruction]) -> list[Any]:
    return [one for one in instructions if isinstance(one, kind)]


# ---- devices and their agents ----


def test_a_device_is_started_probed_and_asks_for_jobs() -> None:
    fleet = Fleet(Limits(start_secs=100.0))
    assert fleet.of_a(ev.DeviceAdded, family="cpu") == [ev.StartAgent(device_id=A, incarnation=1)]
    assert fleet.show()["state"] == "probing"
    assert fleet.wait(99.0) == []
    assert fleet.wait(1.0) == REPLACED, "an agent that never passes its probe is replaced"
    assert fleet.of_a(ev.AgentStarted, incarnation=2) == []
    made = fleet.of_a(ev.ProbePassed, incarnation=2, environment_id="e")
    assert made == [ev.WantJobs(device_id=A, room=3 * 64)]
    assert fleet.show()["state"] == "idle"


def test_restarts_wait_longer_each_time_until_the_device_is_quarantined() -> None:
    fleet = Fleet().up()
    waits = []
    for _ in range(4):
        made = fleet.dies()
        before = fleet.now
        while not made:
            assert fleet.show()["state"] == "lost"
            made = fleet.wait(0.5)
        waits.append(fleet.now - before)
    assert waits == [0.0, 1.0, 2.0, 4.0]
    (shown,) = fleet.dies()
    assert (shown.device_id, shown.job_id) == (A, None)
    assert "5 failures in a row" in shown.reason
    assert "signal 9" in fleet.show()["reason"]
    assert fleet.show()["state"] == "quarantined"
    # The longest wait is a minute.
    fleet = Fleet(Limits(device_failures=100)).up()
    for _ in range(20):
        fleet.dies()
        fleet.wait(60.0)
    fleet.dies()
    assert fleet.show()["next_start_at"] == fleet.now + 60.0


def test_a_quarantined_device_is_probed_again_and_one_more_failure_sends_it_back() -> None:
    fleet = Fleet().up()
    for _ in range(5):
        fleet.dies()
        fleet.wait(10.0)
    assert fleet.show()["state"] == "quarantined"
    assert fleet.wait(500.0) == []
    assert only(ev.StartAgent, fleet.wait(100.0)) == [ev.StartAgent(device_id=A, incarnation=6)]
    assert "failures in a row" in fleet.show()["reason"]  # until it has shown that it is well
    (_, shown) = fleet.of_a(ev.ProbeRefused, incarnation=6, reason="no AVX-512")
    assert isinstance(shown, ev.Quarantine)
    assert "no AVX-512" in shown.reason


def test_a_finished_candidate_and_a_finished_job_end_a_row_of_failures() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2")
    for _ in range(7):
        fleet.dies()
        fleet.wait(10.0)
        fleet.passes()
        fencing_token = min(fleet.leases().values())
        fleet.heartbeat(fencing_token, done=1)
    assert fleet.show()["failures"] == 0
    fleet.dies()
    fleet.passes()
    fleet.finish(*min(fleet.leases().items()))
    assert fleet.show()["failures"] == 0


def test_a_zombie_is_ended_and_not_listened_to() -> None:
    fleet = Fleet().up()
    fleet.dies()
    fleet.passes()
    assert fleet.of_a(ev.AgentStarted, incarnation=1) == [ev.StopAgent(device_id=A, incarnation=1, kill=True)]
    assert fleet.of_a(ev.AgentDied, incarnation=1, reason="late news") == []
    assert fleet.of_a(ev.ProbeRefused, incarnation=1, reason="late news") == []
    beat = ev.AgentHeartbeat(at_secs=fleet.now, device_id=A, incarnation=1, fencing_token=1)
    assert not fleet.state.is_news(beat)
    assert fleet.show()["state"] == "idle"


def test_a_change_is_a_reason_to_try_a_device_again_that_was_given_up() -> None:
    fleet = Fleet(Limits(device_failures=1)).up()
    fleet.dies()
    assert fleet.show()["state"] == "quarantined"
    assert fleet.of_a(ev.DeviceChanged) == [ev.StartAgent(device_id=A, incarnation=2)]
    fleet.of_a(ev.DeviceRetired)
    assert fleet.of_a(ev.DeviceChanged) == []


def test_what_the_spool_of_a_retired_device_holds_is_not_late() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2", "j3")
    fleet.wait(60.0)  # expired: j1 and j2
    fleet.passes()
    assert fleet.leases() == {"j2": 3, "j3": 4}
    fleet.of_a(ev.DeviceRetired, reason="no file")
    fleet.of_a(ev.DeviceAdded, family="cpu")
    assert fleet.verdict("j2", 3) is fleet.verdict("j3", 4) is Verdict.REPEATED
    assert fleet.finish("j2", 3) == []
    assert fleet.count(JobState.DONE) == 0
    assert fleet.verdict("j1", 1) is fleet.verdict("j2", 2) is Verdict.LATE


# ---- leases ----


def test_progress_and_work_renew_all_leases_of_the_device() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2")
    fleet.now += 50.0
    fleet.heartbeat(1, done=0)
    assert [one["deadline"] for one in fleet.show()["leases"]] == [START + 110.0] * 2
    fleet.now += 50.0
    fleet.heartbeat(1, done=1, busy=Busy.IDLE)
    assert [one["deadline"] for one in fleet.show()["leases"]] == [START + 160.0] * 2


def test_an_idle_agent_does_not_renew_a_lease_that_it_seems_not_to_know() -> None:
    fleet = Fleet().up().with_jobs("j1")
    fleet.now += 50.0
    for fencing_token in (None, 1, 1):
        fleet.heartbeat(fencing_token, busy=Busy.IDLE)
    # The first heartbeat that names a lease counts as progress: it has reached the agent.
    assert only(ev.StopAgent, fleet.wait(59.0)) == []
    assert only(ev.StopAgent, fleet.wait(1.0))


def test_the_lease_at_work_is_blamed_for_a_stall_and_comes_last() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2", "j3")
    fleet.stalls(1)
    assert (fleet.show()["failures"], fleet.show()["outages"], fleet.show()["expiries"]) == (1, 0, 2)
    fleet.passes()
    assert list(fleet.leases()) == ["j2", "j3"]


def test_a_host_that_is_out_of_reach_blames_nobody() -> None:
    fleet = Fleet().up().with_jobs("j1")
    for times in range(1, 8):
        incarnation = fleet.show()["incarnation"]
        fleet.of_a(ev.AgentDied, incarnation=incarnation, reason="no living host", is_outage=True)
        assert (fleet.show()["failures"], fleet.show()["outages"]) == (0, times)
        fleet.wait(60.0)
        assert fleet.show()["incarnation"] == incarnation + 1
    fleet.passes()
    assert list(fleet.leases()) == ["j1"]


@pytest.mark.parametrize("rules", [ev.RULES - 1, ev.RULES + 1])
def test_events_and_snapshots_of_other_rules_are_refused(rules: int) -> None:
    fleet = Fleet()
    with pytest.raises(StateError, match=f"events of rules {rules}, this version reads {ev.RULES}"):
        fleet.state.apply(ev.CoordinatorStarted(at_secs=START, rules=rules))
    for key, version in (("rules", rules), ("schema", 1)):
        snapshot = fleet.state.to_json() | {key: version}
        with pytest.raises(StateError, match=f"snapshot has {key} {version}, this version reads"):
            FleetState.from_json(snapshot)


def test_results_of_a_released_lease_are_not_late_because_its_job_is_cancelled() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2")
    fleet.dies()
    fleet.of_a(ev.JobCancelled, job_id=JobId("j1"))  # its request has ended meanwhile
    assert fleet.verdict("j1", 1) is Verdict.REPEATED, "stored, for no job"
    fleet.passes()
    fleet.of_a(ev.JobCancelled, job_id=JobId("j2"))
    assert fleet.verdict("j2", 3) is Verdict.LATE, "its agent may measure on"


def test_what_was_begun_when_the_coordinator_stopped_counts_and_is_next() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2", "j3")
    fleet.tell(ev.CoordinatorStopping)
    fleet.now += 10.0
    for fencing_token, name in ((2, "j2"), (1, "j1")):
        made = fleet.of_a(ev.LeaseReturned, job_id=JobId(name), fencing_token=fencing_token, has_results=True)
        assert granted(made) == []
    assert fleet.leases() == {}
    assert fleet.verdict("j1", 1) is Verdict.COUNTS
    assert fleet.show()["budget"]["device_secs"] == 10.0
    assert fleet.show()["crashes"] == fleet.show()["failures"] == 0


# ---- jobs that kill ----


def test_a_job_that_kills_three_agents_is_quarantined_with_their_last_words() -> None:
    fleet = Fleet().up().with_jobs("bad")
    for time in (1, 2):
        made = fleet.crashes("bad", fleet.leases()["bad"])
        assert not only(ev.Quarantine, made)
        assert fleet.show()["state"] in ("probing", "lost")
        fleet.wait(10.0)
        fleet.passes()
        assert fleet.leases() == {"bad": time + 1}
    made = fleet.crashes("bad", 3, stderr_tail="SIGSEGV in kernel 7")
    [told] = only(ev.Quarantine, made)
    assert (told.job_id, told.reason) == ("bad", "SIGSEGV in kernel 7")
    assert fleet.count(JobState.QUARANTINED) == 1
    fleet.wait(10.0)
    fleet.passes()
    assert fleet.leases() == {}


def test_one_lease_is_one_crash_however_it_is_told() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2")
    fleet.dies()
    for _ in range(3):
        fleet.crashes("j1", 1)
    assert fleet.count(JobState.QUARANTINED) == 0
    fleet.passes()
    assert list(fleet.leases()) == ["j2", "j1"]  # the blamed one comes last
    fleet.crashes("j1", 4)
    fleet.of_a(ev.AgentDied, incarnation=2, reason="the same death")
    assert fleet.show()["crashes"] == 2


def test_a_job_that_wedges_its_agent_three_times_is_quarantined_before_the_device() -> None:
    fleet = Fleet().up().with_jobs("wedge", "good")
    made: list[Instruction] = []
    for _ in range(12):
        for name, fencing_token in sorted(fleet.leases().items()):
            if name == "good":
                fleet.finish(name, fencing_token)
        if "wedge" in fleet.leases():
            made += fleet.stalls(fleet.leases()["wedge"])
        made += fleet.wait(10.0)
        if fleet.show()["state"] == "probing":
            fleet.passes()
    assert [one.job_id for one in only(ev.Quarantine, made)] == ["wedge"]
    assert "expired" in only(ev.Quarantine, made)[0].reason
    assert fleet.count(JobState.DONE) == 1


# ---- budgets and other policies ----


def test_an_hour_without_budget_ends() -> None:
    fleet = Fleet().up(DevicePolicy(secs_per_hour=25.0)).with_jobs("j1", "j2", "j3", "j4")
    assert fleet.leases() == {"j1": 1, "j2": 2}  # twice 10 s fit into 25
    fleet.finish("j1", 1)
    assert fleet.leases() == {"j2": 2}  # a third might overspend by two
    assert fleet.finish("j2", 2, device_secs=16.0) == []
    assert fleet.leases() == {}
    assert fleet.show()["closed"] == "spent 26 of 25 device-seconds of this hour"
    assert fleet.wait(3599.0) == []
    assert granted(fleet.wait(1.0)) == ["j3", "j4"]
    assert fleet.show()["budget"]["hour_secs"] == 0.0
    assert fleet.show()["budget"]["device_secs"] == 26.0


def test_without_an_estimate_no_lease_waits_behind_another_under_a_budget() -> None:
    fleet = Fleet().up(DevicePolicy(secs_per_hour=1000.0)).with_jobs("j1", "j2", expected_secs=0.0)
    assert fleet.leases() == {"j1": 1}
    fleet.finish("j1", 1)
    assert fleet.leases() == {"j2": 2}


def test_a_day_is_the_hosts_own() -> None:
    fleet = Fleet()
    fleet.of_a(ev.DeviceAdded, family="cpu", policy=DevicePolicy(secs_per_day=5.0))
    fleet.of_a(ev.ProbePassed, incarnation=1, environment_id="e", utc_offset_secs=-3600.0)
    fleet.submit("j1", "j2")
    fleet.finish("j1", 1)
    assert fleet.show()["closed"].startswith("spent 10 of 5 device-seconds of this day")
    assert granted(fleet.wait(3600.0))


def test_a_lease_without_results_is_charged_for_its_work_and_not_twice() -> None:
    fleet = Fleet().up().with_jobs("j1", "j2")
    fleet.now += 30.0
    fleet.dies()
    assert fleet.show()["budget"]["device_secs"] == 30.0
    fleet.finish("j1", 1, device_secs=32.0)
    assert fleet.show()["budget"]["device_secs"] == 32.0
    fleet.finish("j2", 2, device_secs=1.0)
    assert fleet.show()["budget"]["device_secs"] == 33.0
    # Each lease of a job is charged.
    fleet = Fleet().up().with_jobs("j1")
    fleet.now += 30.0
    fleet.dies()
    fleet.passes()
    fleet.finish("j1", 2)
    assert fleet.show()["budget"]["device_secs"] == 40.0


@pytest.mark.parametrize(
    ("window", "opens"),
    [
        (TimeWindow(begin_secs=7200.0, end_secs=10800.0), 7200.0),
        (TimeWindow(begin_secs=79200.0, end_secs=0.0), 79200.0),
        (TimeWindow(begin_secs=79200.0, end_secs=3600.0), 0.0),
        (TimeWindow(begin_secs=7200.0, end_secs=7200.0), 0.0),
    ],
)
def test_windows(window: TimeWindow, opens: float) -> None:
    fleet = Fleet().up(DevicePolicy(windows=(window,))).with_jobs("j1")
    if opens:
        assert fleet.show()["closed"] == "outside of its time windows"
        assert fleet.wait(opens - 1.0) == []
        fleet.wait(1.0)
    assert fleet.leases() == {"j1": 1}


def test_an_idle_only_device_waits_for_its_host() -> None:
    fleet = Fleet().up(DevicePolicy(idle_only=True))
    assert fleet.submit("j1", "j2", "j3", "j4") == []
    assert fleet.show()["closed"] == "its host is in use"
    assert len(granted(fleet.heartbeat(None, busy=Busy.IDLE, is_host_idle=True))) == 2
    fleet.heartbeat(1, is_host_idle=False)
    assert granted(fleet.finish("j1", 1)) == []
    assert granted(fleet.heartbeat(2, is_host_idle=True))
    fleet.dies()
    assert granted(fleet.passes()) == [], "a new agent must say it again"
    # And a policy may change.
    made = fleet.of_a(ev.DeviceAdded, family="cpu")
    assert len(granted(made)) == 2


# ---- the coordinator's own troubles ----


#: A policy, and after how long its budget is there again.
BUDGETS = [(DevicePolicy(secs_per_hour=25.0), 3600.0), (DevicePolicy(secs_per_day=25.0), 86400.0)]


@pytest.mark.parametrize(("policy", "secs"), BUDGETS, ids=["an hour", "a day"])
@pytest.mark.parametrize("at_start", [False, True])
def test_budgets_go_by_the_wall_clock_and_wait_for_no_future(
    policy: DevicePolicy, secs: float, at_start: bool
) -> None:
    fleet = Fleet().up(policy).with_jobs("j1")
    fleet.finish("j1", 1, device_secs=30.0)
    fleet.submit("j2")
    assert fleet.show()["closed"].startswith("spent 30 of 25")
    grants = only(ev.GrantLease, fleet.tell(ev.ClockSet, wall_secs=fleet.now + secs))
    assert [one.job_id for one in grants] == ["j2"], "another hour"
    fleet.finish("j2", 2, device_secs=30.0)
    fleet.submit("j3")
    if at_start:
        fleet.tell(ev.CoordinatorStarted)
        fleet.passes()
    else:
        assert fleet.tell(ev.ClockSet, wall_secs=fleet.now) == []
    assert fleet.show()["closed"].startswith("spent 30 of 25"), "of the hour in which it is now"
    assert fleet.wait(secs - 1.0) == []
    assert granted(fleet.wait(1.0)) == ["j3"]


def test_only_beats_that_matter_are_news() -> None:
    fleet = Fleet().up().with_jobs("j1")
    fleet.heartbeat(1)

    def is_news(after: float, **fields: Any) -> bool:
        told = {"incarnation": 1, "fencing_token": 1, "busy": Busy.TIMING} | fields
        return fleet.state.is_news(ev.AgentHeartbeat(at_secs=fleet.now + after, device_id=A, **told))

    assert not is_news(1.0)
    assert not is_news(14.0, done=1)
    assert is_news(15.0)
    assert is_news(15.0, busy=Busy.IDLE), "a sign of life, although it renews nothing"
    assert not is_news(15.0, fencing_token=None)
    assert is_news(1.0, is_host_idle=False)
    assert is_news(1.0, utc_offset_secs=3600.0)


# ---- trainings ----


def trained(fleet: Fleet, records: int = 1000) -> Fleet:
    """A device with a champion and so many records in it."""
    assert only(ev.StartTraining, fleet.of_a(ev.RecordsStored, count=records, ok=records))
    fleet.tell(ev.TrainingStarted, family="cpu")
    fleet.tell(ev.TrainingFinished, family="cpu", version="v1")
    fleet.tell(ev.ModelPublished, version="v1", device_ids=(A, DeviceId("elsewhere")))
    fleet.now += 300.0
    assert fleet.show()["champion"] == "v1"
    return fleet


def kinds(instructions: list[Instruction]) -> list[list[ReasonKind]]:
    return [[r.kind for r in one.reasons] for one in only(ev.StartTraining, instructions)]


def test_a_new_device_asks_for_a_head_and_enough_new_records_for_a_training() -> None:
    fleet = Fleet().up()
    assert fleet.stores(63) == []
    assert kinds(fleet.stores(1)) == [[ReasonKind.NEW_DEVICE]]
    fleet = trained(Fleet().up(), records=10_000)
    assert fleet.stores(1999) == []  # less than a fifth
    (asked,) = only(ev.StartTraining, fleet.stores(1))
    assert asked.reasons[0].kind is ReasonKind.NEW_RECORDS
    assert asked.reasons[0].text == "2000 new records after the 10000 of the last training"


def test_a_reason_waits_for_records_that_tell_of_it() -> None:
    fleet = trained(Fleet().up())
    for _ in range(2):
        assert fleet.of_a(ev.DriftAlarm, text="slower") == []
    fleet.up(device_id=B)
    assert fleet.tell(ev.RecordsStored, device_id=B, count=60) == []
    assert fleet.stores(63) == []
    assert kinds(fleet.stores(1)) == [[ReasonKind.DRIFT]]


def test_a_probe_that_finds_another_environment_asks_for_a_training() -> None:
    fleet = trained(Fleet().up())
    fleet.dies()
    fleet.passes(environment_id="f")
    assert kinds(fleet.stores(64)) == [[ReasonKind.NEW_ENVIRONMENT]]


def test_one_training_at_a_time_is_a_request_of_the_fleet_and_a_pause_follows() -> None:
    fleet = Fleet().up()
    assert only(ev.StartTraining, fleet.stores(600))
    [request_id] = fleet.state.request_ids()
    request = fleet.state.request(request_id)
    assert (request["kind"], request["state"]) == ("training", "queued")
    why = ["a has no head yet", "600 new records after the 0 of the last training"]
    assert request["arguments"] == {"family": "cpu", "reasons": why}
    assert fleet.state.open_requests()[0].is_own_training
    assert fleet.stores(600) == []
    fleet.tell(ev.TrainingStarted, family="cpu")
    assert fleet.state.request(request_id)["state"] == "running"
    assert fleet.stores(600) == []
    made = fleet.tell(ev.TrainingFinished, family="cpu", version="v1", serves={"a": "first"})
    assert only(ev.StartTraining, made) == []
    request = fleet.state.request(request_id)
    assert (request["state"], request["result"]["version"]) == ("succeeded", "v1")
    assert only(ev.StartTraining, fleet.wait(299.0)) == []
    assert kinds(fleet.wait(1.0)) == [[ReasonKind.NEW_RECORDS]]


def test_a_failed_training_is_tried_again_later_each_time_for_the_same_reasons() -> None:
    fleet = Fleet().up()
    asked = kinds(fleet.stores(600))
    assert asked == [[ReasonKind.NEW_DEVICE, ReasonKind.NEW_RECORDS]]
    for wait in (60.0, 120.0, 240.0):
        assert only(ev.StartTraining, fleet.training_fails()) == []
        assert only(ev.StartTraining, fleet.wait(wait - 1.0)) == []
        assert kinds(fleet.wait(1.0)) == asked
    assert fleet.state.training()["failures"] == {"cpu": 3}
    # A hopeless one needs new records.
    fleet.training_fails(is_hopeless=True)
    assert only(ev.StartTraining, fleet.wait(365 * 86_400.0)) == []
    assert kinds(fleet.stores(511)) == []
    assert kinds(fleet.stores(1)) == [[ReasonKind.NEW_RECORDS]]


def test_a_new_coordinator_asks_for_the_interrupted_training_again() -> None:
    fleet = Fleet().up()
    asked = kinds(fleet.stores(600))
    fleet.tell(ev.TrainingStarted, family="cpu")
    assert kinds(fleet.tell(ev.CoordinatorStarted)) == asked
    assert fleet.state.training()["state"] == "asked"
    fleet.training_fails()
    assert kinds(fleet.wait(60.0)) == asked, "its reasons stand"


def test_a_training_of_the_fleet_is_stopped_with_its_request_until_there_are_new_records() -> None:
    fleet = Fleet().up()
    fleet.stores(600)
    [request_id] = fleet.state.request_ids()
    fleet.tell(ev.TrainingStarted, family="cpu")
    stopped = fleet.tell(ev.RequestCancelled, request_id=request_id, reason="not now")
    assert only(ev.StopTraining, stopped) == [ev.StopTraining(family="cpu")]
    assert fleet.state.request(request_id)["state"] == "cancelled"
    assert only(ev.StartTraining, fleet.wait(86_400.0)) == []
    assert kinds(fleet.stores(512)) == [[ReasonKind.NEW_RECORDS]]


def test_where_nothing_trains_only_people_ask_for_trainings() -> None:
    fleet = Fleet(Limits(trains=False)).up()
    assert only(ev.StartTraining, fleet.stores(10_000)) == []
    assert fleet.state.request_ids() == []


# ---- what cannot be ----


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (ev.DeviceRetired(at_secs=START, device_id=DeviceId("z")), "never added"),
        (ev.AgentStarted(at_secs=START, device_id=A, incarnation=2), "incarnation 1"),
        (ev.AgentStarted(at_secs=START, device_id=A, incarnation=1), "had started"),
        (ev.ProbePassed(at_secs=START, device_id=A, incarnation=1, environment_id="e"), "had passed"),
        (ev.AgentHeartbeat(at_secs=START, device_id=A, incarnation=1, fencing_token=3), "fencing token 2"),
        (ev.JobSubmitted(at_secs=START, job=job("j1", "a")), "is there already"),
        (ev.JobCrashed(at_secs=START, device_id=A, job_id=JobId("j1"), fencing_token=3), "fencing token 2"),
        (ev.JobCrashed(at_secs=START, device_id=B, job_id=JobId("j1"), fencing_token=1), "belongs to a"),
        (ev.TrainingStarted(at_secs=START, family="cpu"), "training is idle"),
    ],
)
def test_an_impossible_event_names_the_last_ones_and_changes_nothing(event: ev.Event, why: str) -> None:
    fleet = Fleet().up()
    fleet.up(device_id=B)
    fleet.submit("j1", "j2")
    fleet.tell(ev.JobSubmitted, job=job("b1", "b"))
    before = fleet.state.to_json()
    with pytest.raises(StateError, match=why) as caught:
        fleet.state.apply(event)
    assert fleet.state.to_json() == before
    if getattr(event, "device_id", None) == A:
        assert "ProbePassed(" in str(caught.value)
        assert "JobSubmitted(" in str(caught.value)


def test_ended_jobs_leave_numbers_only() -> None:
    fleet = Fleet().up()
    sizes = []
    for place in range(600):
        fleet.now += 1.0
        fleet.submit(f"j{place}")
        fleet.finish(f"j{place}", place + 1)
        if place % 200 == 199:
            sizes.append(len(json.dumps(fleet.state.to_json())))
    assert fleet.count(JobState.DONE) == 600
    assert sizes[-1] - sizes[0] < 200  # longer numbers
