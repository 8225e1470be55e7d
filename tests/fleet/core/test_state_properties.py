"""Whatever happens, in whatever order: each job is in one place, counts once, and all can be replayed."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import Busy, DevicePolicy, GrantLease, JobId, TimeWindow
from fleet.core.state import FleetState
from fleet.core.words import Request, RequestId, RequestKind, RequestState
from tests.fleet_world import LIMITS, World, job, reopened, shown

DEVICES = st.sampled_from(["a", "b"])
ANY_DEVICE = st.sampled_from(["a", "a", "a", "b", "b", "b", "stranger"])
#: Mostly the agent of now, sometimes a zombie, seldom one that cannot be.
BEHIND = st.sampled_from([0, 0, 0, 0, 0, 1, 2, -1])
POLICIES = st.sampled_from(
    [
        DevicePolicy(),
        DevicePolicy(),
        DevicePolicy(secs_per_hour=60.0, secs_per_day=90.0),
        DevicePolicy(idle_only=True),
        DevicePolicy(windows=(TimeWindow(begin_secs=3600.0, end_secs=7200.0),)),
    ]
)
#: How leases end, the usual way most often.
ENDS = [*["finished"] * 6, "crashed", "crashed", "died", "expired"]
#: What happens seldom in life, and would leave little to happen if it came as often as the rest.
SELDOM = st.sampled_from([True, False, False, False, False])
#: Requests that have a driver, and all.
DRIVEN = st.integers(0, 4).map(lambda number: RequestId(f"d{number}"))
ANY_REQUEST = DRIVEN | st.integers(0, 6).map(lambda number: RequestId(f"r{number}"))
STEPS = st.sampled_from([-5.0, 0.0, 0.5, 2.0, 20.0, 61.0, 250.0, 5000.0])


#: Kinds that a person asks for; fingerprints are of the background, and the state asks for them by itself.
DRIVEN_KINDS = [kind for kind in RequestKind if kind.has_driver and kind is not RequestKind.FINGERPRINT]


TRAININGS = [ev.TrainingStarted, ev.TrainingFinished, ev.TrainingFailed]


class Fleet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.jobs = 0
        self.marks: dict[str, tuple[int, int]] = {}
        #: Requests as they were when they had ended.
        self.ended: dict[RequestId, dict[str, Any]] = {}
        #: A snapshot on the way, and how much of the journal lay before it.
        self.snapshot: tuple[str, int] | None = None

    def at(self, step: float = 0.0) -> float:
        # A wait that was never begun is 0: time itself stays above.
        self.world.now = max(0.0, self.world.now + step)
        return self.world.now

    def tell(self, kind: type[Any], device: str, **values: Any) -> None:
        """An event of a device, now."""
        self.world.tell(kind(at_secs=self.at(), device_id=DeviceId(device), **values))

    def incarnation(self, name: str, behind: int) -> int:
        known = DeviceId(name) in self.world.state.device_ids()
        return (self.world.device(name)["incarnation"] if known else 1) - behind

    @initialize(limits=st.sampled_from([None, LIMITS]))
    def begin(self, limits: Any) -> None:
        self.world.tell(ev.CoordinatorStarted(at_secs=self.at(), limits=limits))
        for name in ("a", "b"):
            self.tell(ev.DeviceAdded, name, family="cpu")
            self.passed(name, 0, "e1")
            self.submitted(name, 3)

    @rule(device=DEVICES, policy=POLICIES, family=st.sampled_from(["cpu", "gpu"]))
    def added(self, device: str, policy: DevicePolicy, family: str) -> None:
        self.tell(ev.DeviceAdded, device, family=family, policy=policy)

    @rule(device=ANY_DEVICE, now=SELDOM, event=st.sampled_from([ev.DeviceLeftOut, ev.DeviceChanged]))
    def changed(self, device: str, now: bool, event: Any) -> None:
        if now:
            self.tell(event, device, reason="its file")

    @rule(device=ANY_DEVICE, now=SELDOM)
    def retired(self, device: str, now: bool) -> None:
        if now:
            self.tell(ev.DeviceRetired, device)

    @rule(device=ANY_DEVICE, behind=BEHIND)
    def started(self, device: str, behind: int) -> None:
        self.tell(ev.AgentStarted, device, incarnation=self.incarnation(device, behind))

    @rule(device=ANY_DEVICE, behind=BEHIND, environment=st.sampled_from(["e1", "e1", "e2"]))
    def passed(self, device: str, behind: int, environment: str) -> None:
        incarnation = self.incarnation(device, behind)
        self.tell(ev.ProbePassed, device, incarnation=incarnation, environment_id=environment)

    @rule(device=DEVICES)
    def comes_up(self, device: str) -> None:
        """The usual way to leases, so that the others find some."""
        self.tick(61.0)
        self.started(device, 0)
        self.passed(device, 0, "e1")

    @rule(device=ANY_DEVICE, behind=BEHIND, event=st.sampled_from([ev.ProbeRefused, ev.AgentDied]))
    def fails(self, device: str, behind: int, event: Any) -> None:
        self.tell(event, device, incarnation=self.incarnation(device, behind), reason="killed")

    @rule(
        device=ANY_DEVICE,
        behind=BEHIND,
        lease=st.integers(-1, 3),
        done=st.integers(0, 2),
        busy=st.sampled_from(Busy),
        idle=st.sampled_from([None, True, True, False]),
        step=STEPS,
    )
    def heartbeat(
        self, device: str, behind: int, lease: int, done: int, busy: Busy, idle: bool | None, step: float
    ) -> None:
        known = DeviceId(device) in self.world.state.device_ids()
        fencing_token = self.world.device(device)["fencing_token"] - lease if known else 1
        self.at(step)
        lease_told = {"fencing_token": None if fencing_token <= 0 else fencing_token, "done": done}
        told = {"incarnation": self.incarnation(device, behind), "busy": busy, "is_host_idle": idle}
        self.tell(ev.AgentHeartbeat, device, **lease_told, **told)

    @rule(device=ANY_DEVICE, count=st.integers(1, 3))
    def submitted(self, device: str, count: int) -> None:
        for _ in range(count):
            self.jobs += 1
            self.world.tell(ev.JobSubmitted(at_secs=self.at(), job=job(f"j{self.jobs}", device)))

    @rule(data=st.data(), device=DEVICES, is_cancelled=st.booleans())
    def submitted_again_or_cancelled(self, data: st.DataObject, device: str, is_cancelled: bool) -> None:
        if self.world.submitted:
            name = data.draw(st.sampled_from(sorted(self.world.submitted)))
            if is_cancelled:
                self.tell(ev.JobCancelled, device, job_id=JobId(name))
            else:
                self.world.tell(ev.JobSubmitted(at_secs=self.at(), job=job(name, device)))

    def draw_grant(self, data: st.DataObject) -> GrantLease | None:
        """Mostly one of the last leases, sometimes any: results may come at any time, and again."""
        if not self.world.grants:
            return None
        newest_first = list(reversed(self.world.grants))
        return data.draw(st.sampled_from(newest_first[:3]) | st.sampled_from(newest_first))

    @rule(data=st.data(), secs=st.floats(0, 30), astray=st.sampled_from([0, 0, 0, 0, 1, 5]))
    def finished(self, data: st.DataObject, secs: float, astray: int) -> None:
        grant = self.draw_grant(data)
        if grant is not None:
            leased = {"job_id": grant.job_id, "fencing_token": grant.fencing_token + astray}
            told = {"outcomes": {"ok": 1, "run_failed": 1}, "device_secs": secs}
            self.tell(ev.JobFinished, grant.device_id, incarnation=grant.incarnation, **leased, **told)

    @rule(device=DEVICES, kinds=st.lists(st.sampled_from(ENDS), min_size=1, max_size=5))
    def leases_end(self, device: str, kinds: list[str]) -> None:
        """What happens to running leases; random events seldom meet one."""
        for kind in kinds:
            lease = self.world.state.at_work(DeviceId(device))
            if lease is None:
                self.comes_up(device)
                self.submitted(device, 2)
            else:
                self.lease_ends(device, kind, *lease)

    def lease_ends(self, device: str, kind: str, job_id: JobId, fencing_token: int) -> None:
        leased = {"job_id": job_id, "fencing_token": fencing_token}
        if kind == "died":
            self.fails(device, 0, ev.AgentDied)
        elif kind == "expired":
            self.tick(61.0)
        elif kind == "crashed":
            self.at(5.0)
            self.tell(ev.JobCrashed, device, **leased)
        else:
            self.at(5.0)
            told = {"incarnation": self.incarnation(device, 0), "outcomes": {"ok": 2}, "device_secs": 20.0}
            self.tell(ev.JobFinished, device, **leased, **told)

    @rule(data=st.data(), is_late=st.booleans())
    def crashed_or_late(self, data: st.DataObject, is_late: bool) -> None:
        grant = self.draw_grant(data)
        if grant is not None:
            leased = {"job_id": grant.job_id, "fencing_token": grant.fencing_token}
            late = {"incarnation": grant.incarnation, "count": 1} if is_late else {}
            self.tell(ev.ResultArrivedLate if is_late else ev.JobCrashed, grant.device_id, **leased, **late)

    @rule(device=DEVICES, place=st.integers(0, 1))
    def returned(self, device: str, place: int) -> None:
        leases = self.world.device(device)["leases"]
        for lease in leases[place : place + 1]:
            self.tell(ev.LeaseReturned, device, job_id=lease["job_id"], fencing_token=lease["fencing_token"])

    @rule(step=STEPS)
    def tick(self, step: float) -> None:
        self.world.tell(ev.Tick(at_secs=self.at(step)))

    @rule(step=st.sampled_from([0.0, 90.0, 86_400.0, 6e5, -3600.0, -86_400.0]))
    def clock_set(self, step: float) -> None:
        at_secs = self.at()
        self.world.tell(ev.ClockSet(at_secs=at_secs, wall_secs=max(0.0, at_secs + step)))

    @rule(event=st.sampled_from([*[ev.DiskFreed] * 8, ev.CoordinatorStopping, ev.DiskFull]))
    def trouble(self, event: Any) -> None:
        self.world.tell(event(at_secs=self.at()))

    @rule(
        records=st.dictionaries(DEVICES, st.integers(0, 500), max_size=2),
        step=STEPS | st.sampled_from([-1e5, 1e6, -1e6]),
        limits=st.sampled_from([None, LIMITS, replace(LIMITS, drivers=1), replace(LIMITS, drivers=9)]),
    )
    def coordinator(self, records: dict[str, int], step: float, limits: Any) -> None:
        counts = {DeviceId(name): count for name, count in records.items()}
        started = ev.CoordinatorStarted(at_secs=self.at(step), records=counts, limits=limits)
        self.world.tell(started)

    @rule(device=ANY_DEVICE, count=st.integers(1, 150))
    def stored(self, device: str, count: int) -> None:
        self.tell(ev.RecordsStored, device, count=count)

    @rule(device=ANY_DEVICE, event=st.sampled_from([ev.DriftAlarm, ev.DriftEnded]))
    def drifted(self, device: str, event: Any) -> None:
        self.tell(event, device)

    @rule(event=st.sampled_from(TRAININGS), family=st.sampled_from(["cpu", "cpu", "cpu", "gpu"]))
    def trained(self, event: Any, family: str) -> None:
        reason = {"reason": "no memory"} if event is ev.TrainingFailed else {}
        family = self.world.state.training()["family"] or family
        self.world.tell(event(at_secs=self.at(), family=family, **reason))

    @rule()
    def published(self) -> None:
        self.world.tell(ev.ModelPublished(at_secs=self.at(), version="v", device_ids=(DeviceId("a"),)))

    @rule(
        number=st.integers(0, 5),
        family=st.sampled_from(["cpu", "cpu", "gpu"]),
        minutes=st.sampled_from([None, None, 1.0, 60.0]),
    )
    def requested(self, number: int, family: str, minutes: float | None) -> None:
        self.ask(RequestId(f"r{number}"), RequestKind.TRAINING, {"family": family}, minutes)

    def ask(
        self, request_id: RequestId, kind: RequestKind, arguments: dict[str, Any], minutes: float | None
    ) -> None:
        made = Request(request_id=request_id, kind=kind, arguments=arguments, minutes=minutes)
        at_secs = self.at()
        if request_id not in self.world.state.request_ids():
            self.ended.pop(request_id, None)  # it was so long ago that it is not kept
        self.world.tell(ev.RequestSubmitted(at_secs=at_secs, request=made))

    @rule(
        request_id=DRIVEN,
        kind=st.sampled_from(DRIVEN_KINDS),
        devices=st.sets(DEVICES, min_size=1),
        minutes=st.sampled_from([None, None, 1.0, 60.0]),
    )
    def driver_requested(
        self, request_id: RequestId, kind: RequestKind, devices: set[str], minutes: float | None
    ) -> None:
        several = kind is RequestKind.COLLECTION
        named = {"devices": sorted(devices)} if several else {"device": min(devices)}
        self.ask(request_id, kind, named, minutes)

    @rule(request_id=DRIVEN, count=st.integers(1, 3))
    def job_of_a_request(self, request_id: RequestId, count: int) -> None:
        """A driver has jobs made, mostly while it is at work; its last ones may come too late."""
        asked = [one for one in self.world.state.open_requests() if one.request_id == request_id]
        for one in asked:
            for device_id in sorted(one.device_ids):
                for _ in range(count):
                    self.jobs += 1
                    made = replace(
                        job(f"j{self.jobs}", device_id), request_id=request_id, priority=one.kind.priority
                    )
                    self.world.tell(ev.JobSubmitted(at_secs=self.at(), job=made))

    @rule(request_id=DRIVEN, reason=st.sampled_from(["", "", "it broke"]))
    def driver_ended(self, request_id: RequestId, reason: str) -> None:
        ended = ev.RequestEnded(at_secs=self.at(), request_id=request_id, result={"n": 1}, reason=reason)
        self.world.tell(ended)

    @rule(request_id=DRIVEN, is_cancelled=st.booleans())
    def request_ends_with_work_left(self, request_id: RequestId, is_cancelled: bool) -> None:
        """The usual way of a request that is given up; random events seldom meet one."""
        self.driver_requested(request_id, RequestKind.COLLECTION, {"a", "b"}, None)
        self.job_of_a_request(request_id, 3)
        if is_cancelled:
            self.request_cancelled(request_id, True)
        else:
            self.driver_ended(request_id, "it broke")

    @rule(request_id=ANY_REQUEST, now=SELDOM)
    def request_cancelled(self, request_id: RequestId, now: bool) -> None:
        if now:
            self.world.tell(ev.RequestCancelled(at_secs=self.at(), request_id=request_id))

    @rule(request_id=ANY_REQUEST, done=st.integers(0, 3), is_measuring=st.booleans())
    def request_progressed(self, request_id: RequestId, done: int, is_measuring: bool) -> None:
        told = {"done": done, "of": 3, "left_secs": 1.0, "is_measuring": is_measuring}
        self.world.tell(ev.RequestProgressed(at_secs=self.at(), request_id=request_id, **told))

    @rule()
    def snapshots(self) -> None:
        written = self.world.state.to_json()
        assert reopened(self.world.state).to_json() == written
        self.snapshot = json.dumps(written), len(self.world.journal)

    @invariant()
    def numbers_never_go_back(self) -> None:
        for name in self.world.state.device_ids():
            shown = self.world.state.describe(name)
            mark = shown["fencing_token"], shown["incarnation"]
            before = self.marks.get(name, (0, 0))
            assert mark[0] >= before[0]
            assert mark[1] >= before[1]
            self.marks[name] = mark

    @invariant()
    def nothing_waits_for_a_time_out_of_sight(self) -> None:
        """Also where the clock was ahead and a coordinator starts at the right time."""
        state = self.world.state.to_json()
        limits, now = self.world.state.limits, state["leasing"]["now"]
        for device in state["leasing"]["devices"].values():
            waits = [device["start_at"], device["probe_by"]]
            longest = max(limits.quarantine_secs, limits.start_secs, limits.restart_wait_secs)
            assert all(at_secs <= now + longest for at_secs in waits if at_secs is not None)
            wall = now + self.world.state.wall_ahead_secs
            assert device["budget"]["hour"] <= wall // 3600
            assert device["budget"]["day"] <= wall // 86400
        for family in state["triggers"]["families"].values():
            assert family["not_before"] <= now + limits.training_retry_most_secs

    @invariant()
    def a_request_runs_with_its_training_and_keeps_its_end(self) -> None:
        state = self.world.state
        training = state.training()
        own = {request.request_id for request in state.open_requests() if request.is_own_training}
        assert len(own) <= (training["state"] != "idle")
        at_work = {*own, *(reason["request_id"] for reason in training["reasons"])} - {""}
        times = {"submitted_at": None, "started_at": None, "ended_at": None}
        for request_id in state.request_ids():
            shown = state.request(request_id)
            is_over = RequestState(shown["state"]).is_end
            assert (shown["ended_at"] is not None) is is_over
            has_driver = RequestKind(shown["kind"]).has_driver
            if shown["state"] == RequestState.RUNNING and not has_driver:
                assert request_id in at_work
                assert training["family"] == shown["arguments"]["family"]
            assert not (has_driver and request_id in at_work)
            if is_over:
                assert request_id not in at_work
                assert bool(shown["reason"]) is (shown["state"] == RequestState.FAILED)
                assert self.ended.setdefault(request_id, shown) | times == shown | times

    def teardown(self) -> None:
        now = self.world.state.to_json()
        assert reopened(self.world.state).to_json() == now
        assert self.world.replayed().to_json() == now
        if self.snapshot:
            text, done = self.snapshot
            state = FleetState.from_json(json.loads(text))
            for line in self.world.journal[done:]:
                state.apply(*ev.decode_events(line))
            assert state.to_json() == now
        self.all_requests_come_to_an_end()

    def all_requests_come_to_an_end(self) -> None:
        """Once every driver has ended and every training that is asked for has run, nothing is left open."""
        self.world.tell(ev.CoordinatorStarted(at_secs=self.at(2e6)))
        for _ in range(30):
            for one in self.world.state.open_requests():
                if one.kind.has_driver and shown(self.world.state, one.request_id)["state"] == "running":
                    self.driver_ended(one.request_id, "")
            self.trained(ev.TrainingStarted, "cpu")
            self.trained(ev.TrainingFinished, "cpu")
            self.tick(1e6)
        assert self.world.state.open_requests() == []


TestFleet = pytest.mark.timeout(600)(Fleet.TestCase)  # a failure is made small for five minutes at most
TestFleet.settings = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
