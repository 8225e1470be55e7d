"""The coordinator's side of the drivers of requests: starts them, does what they ask for, notes their ends.

A driver is a process that decides what is measured for one request, or reads logs for it
(`fleet.requests.session` is its side). What it asks for becomes questions to agents, and jobs like others:
with leases, journalled, stored by the same hands. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from agents.codec import record_to_json
from agents.device.messages import (
    AgentGone,
    AgentRefused,
    Asked,
    Failed,
    Message,
    Proposed,
    ProposeRequest,
    WorkloadsListed,
)
from agents.errors import AgentError
from agents.records import Candidate, CandidateId, DeviceId, Record, WorkloadId, as_json_dict
from agents.trust import is_live
from fleet.collection.batch_plan import BATCH_SIZE
from fleet.core import events as ev
from fleet.core.events import DeviceState, JobId, JobState
from fleet.core.request_words import Request, RequestId
from fleet.engine.composition import Composition
from fleet.engine.record_imports import OPS, take_import
from fleet.errors import FleetError, StoreFull
from fleet.requests.channel import ChannelClosedError, DriverChannel

#: Times that the driver of a request is started again after it ended without a word.
_MOST_STARTS = 3
#: Messages of one driver that are taken up in one turn.
_MOST_MESSAGES = 64
#: Starts of an agent in a row that may fail before whoever waits for its device is told.
_MOST_FAILURES = 2
_OUT = frozenset({DeviceState.QUARANTINED, DeviceState.RETIRED, DeviceState.ABSENT})
_UP = frozenset({DeviceState.IDLE, DeviceState.LEASED})


class Driver(Protocol):
    """A driver at work."""

    @property
    def channel(self) -> DriverChannel:
        """To it."""

    def stop(self) -> None:
        """End it soon; returns at once."""

    def failure(self) -> str:
        """How it ended, where it did so without a word."""


#: Starts the driver of a request; None for one that is none of this coordinator's business.
Launch = Callable[[Request], Driver | None]


@dataclass(slots=True)
class _Question:
    """What a driver waits for."""

    request_id: RequestId
    number: int
    op: str
    device_ids: tuple[DeviceId, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Life of the agent that was asked; None while there is none to ask.
    incarnation: int | None = None
    #: Jobs that are not over, the candidates of all of them with their origins, and the records that came.
    jobs: set[JobId] = field(default_factory=set)
    candidates: frozenset[CandidateId] = frozenset()
    origins: frozenset[str] = frozenset()
    records: list[Record] = field(default_factory=list)

    def is_about(self, record: Record) -> bool:
        """Whether a record is of what was asked for, or one that the agent has made beside it.

        The other half of an A/A run has the same candidates, and may run at the same time.
        """
        is_same = record.attempt == self.values["attempt"] or record.origin not in self.origins
        return is_same and record.candidate_id in self.candidates


class RequestDrivers:
    """All drivers of a coordinator.

    Args:
        parts: What a coordinator consists of.
        launch: Starts one.
    """

    def __init__(self, parts: Composition, launch: Launch) -> None:
        self._parts, self._launch = parts, launch
        self._drivers: dict[RequestId, Driver] = {}
        self._starts: dict[RequestId, int] = {}
        self._questions: dict[str, _Question] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a driver is at work, who wants its answers soon."""
        return bool(self._drivers)

    def start(self, request_id: RequestId) -> None:
        """Start the driver of a request; one that cannot be started ends it."""
        request = next(one for one in self._parts.state.open_requests() if one.request_id == request_id)
        self._starts[request_id] = self._starts.get(request_id, 0) + 1
        try:
            driver = self._launch(request)
            if driver is not None:
                self._drivers[request_id] = driver
        except (FleetError, OSError) as error:
            self._end(request_id, {}, f"its driver cannot be started: {error}")

    def stop(self, request_id: RequestId) -> None:
        """End the driver of a request that is not wanted any more."""
        if (driver := self._forget(request_id)) is not None:
            driver.stop()

    def close(self) -> None:
        """End all drivers; their requests go on with the next coordinator."""
        for request_id in list(self._drivers):
            self.stop(request_id)

    def serve(self) -> None:
        """Take up what drivers ask for, and ask agents that have come up."""
        self._cancel_orphans()
        for request_id in list(self._drivers):
            self._hear(request_id)
        for key, question in list(self._questions.items()):
            if question.op != "measure":
                self._pursue(key, question)
            elif (reason := self._out_of_order(question)) and not self._is_queued(question):
                self._answer(key, unusable=reason)

    def heard(self, message: Message) -> bool:
        """Take in what an agent said.

        Returns:
            Whether it answers a driver, and nobody else.
        """
        match message:
            case Proposed(request=request) if request.request_id in self._questions:
                candidates = [_pack(one) for one in message.candidates]
                answer = {"candidates": candidates, "refused": dict(message.refused)}
                self._answer(request.request_id, value=answer)
                return True
            case Failed(what=Asked.PROPOSE) if message.request_id in self._questions:
                self._answer(message.request_id, error=f"{message.device_id}: {message.error}")
                return True
            case WorkloadsListed():
                return self._listed(message)
            case Failed(what=Asked.WORKLOADS):
                for key in self._asking("workloads", message.device_id, message.incarnation):
                    self._answer(key, error=f"{message.device_id}: {message.error}")
            case AgentGone() | AgentRefused():
                for question in self._questions.values():
                    if message.device_id in question.device_ids:
                        question.incarnation = None
        return False

    def stored(self, fresh: Mapping[DeviceId, Sequence[Record]]) -> None:
        """Note records that the store has now."""
        for question in self._questions.values():
            if question.op == "measure":
                records = fresh.get(question.device_ids[0], ())
                question.records += [one for one in records if question.is_about(one)]

    def job_ended(self, job_id: JobId) -> None:
        """Note a job that brings nothing any more; that is durable."""
        for key, question in list(self._questions.items()):
            if job_id in question.jobs:
                question.jobs.discard(job_id)
                if not question.jobs:
                    self._answer(key, value=[record_to_json(one) for one in question.records])

    def without_jobs_of(self, ended: str) -> None:
        """Let go of the jobs that were cancelled with a request, or with a device that left."""
        queues, state = self._parts.planner.queues, self._parts.state
        for job in list(queues.jobs()):
            if ended in (job.request_id, job.device_id) and state.job_state(job.job_id) is None:
                queues.closed(job.job_id)
                self.job_ended(job.job_id)

    # ---- what drivers say ----

    def _hear(self, request_id: RequestId) -> None:
        channel = self._drivers[request_id].channel
        try:
            for _ in range(_MOST_MESSAGES):
                message = channel.get(0)
                if message is None:
                    return
                try:
                    self._take(request_id, message)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    self.stop(request_id)
                    self._end(request_id, {}, f"its driver says what cannot be understood: {error!r:.200}")
                if request_id not in self._drivers:
                    return
        except ChannelClosedError:
            self._gone(request_id)

    def _take(self, request_id: RequestId, message: Mapping[str, Any]) -> None:
        parts, now = self._parts, self._parts.clock()
        match message.get("op"):
            case "progress":
                event = ev.RequestProgressed(
                    at_secs=now,
                    request_id=request_id,
                    **{
                        name: message[name] for name in ("done", "of", "left_secs", "finding", "is_measuring")
                    },
                )
                parts.event_log.tell(event)
            case "say":
                parts.notices.say(f"{request_id}: {message['text']}")
            case "published" if parts.trainer is not None:
                pass  # who trains sees every change of champions
            case "published":
                names = tuple(DeviceId(one) for one in message["devices"])
                published = ev.ModelPublished(at_secs=now, version=message["version"], device_ids=names)
                parts.event_log.tell(published)
            case "end":
                driver = self._forget(request_id)
                self._end(request_id, message["result"], message["reason"])
                if driver is not None:
                    driver.channel.close()
            case _:
                self._ask(request_id, message)

    def _gone(self, request_id: RequestId) -> None:
        """A driver ended without a word: start it again, or end its request."""
        driver = self._forget(request_id)
        if driver is None:
            return
        driver.stop()
        failure = driver.failure()
        if self._starts[request_id] < _MOST_STARTS:
            self._parts.notices.say(f"{request_id}: its driver is started again: {failure}", style="red")
            self.start(request_id)
        else:
            self._end(request_id, {}, f"its driver ended {_MOST_STARTS} times; the last time {failure}")

    def _ask(self, request_id: RequestId, message: Mapping[str, Any]) -> None:
        parts, op, number = self._parts, str(message["op"]), int(message["id"])
        names = message.get("devices", [message["device"]] if "device" in message else [])
        device_ids = tuple(map(DeviceId, names))
        key = f"{request_id}/{number}"
        question = _Question(request_id, number, op, device_ids, message)
        self._questions[key] = question
        if unknown := [one for one in device_ids if one not in parts.roster.specs]:
            self._answer(key, unusable=f"{unknown[0]} is no device of the fleet just now")
        elif op == "flush":
            try:
                parts.intake.flush()
            except StoreFull as error:
                parts.disk.full(error)
                self._answer(key, error=str(error))
            else:
                self._answer(key, value=True)
        elif op in OPS:
            try:
                self._answer(key, value=take_import(parts, message))
            except (FleetError, AgentError, OSError, pa.ArrowInvalid) as error:
                if isinstance(error, StoreFull):
                    parts.disk.full(error)
                self._answer(key, error=str(error))
        elif op == "measure":
            self._measure(key, question)
        else:
            self._pursue(key, question)

    def _pursue(self, key: str, question: _Question) -> None:
        """Go on with what needs agents, as far as these are up."""
        if question.incarnation is not None:
            return
        if reason := self._out_of_order(question):
            self._answer(key, unusable=reason)
            return
        parts = self._parts
        found = [parts.state.describe(one) for one in question.device_ids]
        waits = [
            one
            for one, told in zip(question.device_ids, found, strict=True)
            if told["state"] not in _UP or one not in parts.agents.up or one in parts.agents.descriptors
        ]
        if waits:
            return
        if question.op == "ready":
            self._answer(key, value=True)
            return
        device_id = question.device_ids[0]
        if question.op == "environment":
            self._answer(key, value=found[0]["environment_id"])
            return
        question.incarnation = parts.agents.up[device_id]
        if question.op == "workloads":
            parts.transport.list_workloads(device_id, question.incarnation, question.values["networks"])
            return
        values = question.values
        workload = parts.modules.get(device_id, WorkloadId(values["workload"]))
        if workload is None:
            self._answer(
                key, error=f"the store has no module of workload {values['workload']} for {device_id}"
            )
            return
        request = ProposeRequest(
            request_id=key,
            workload=workload,
            count=int(values["count"]),
            seed=int(values["seed"]),
            parents=tuple(values.get("parents", ())),
            exclude=frozenset(map(CandidateId, values["exclude"])),
            foreign=tuple(values.get("foreign", ())),
        )
        parts.transport.propose(device_id, question.incarnation, request)

    def _listed(self, message: WorkloadsListed) -> bool:
        parts, device_id = self._parts, message.device_id
        keys = [
            key
            for key in self._asking("workloads", device_id, message.incarnation)
            if tuple(self._questions[key].values["networks"]) == message.networks
        ]
        if not keys:
            return False
        parts.intake.flush()
        parts.store.put_workloads(message.workloads, own=is_live(parts.roster.known[device_id]))
        parts.modules.put(device_id, message.workloads)
        # One list for one question: the fleet's own discovery may have asked for the same.
        self._answer(keys[0], value=[as_json_dict(one) for one in message.workloads])
        return True

    def _measure(self, key: str, question: _Question) -> None:
        """Make jobs of candidates, but of those that wait for this request, or are at work for another.

        What waits for others may not come: the background waits until this request is done, and another
        request may be cancelled. What they measure first is not measured again.
        """
        parts, values, device_id = self._parts, question.values, question.device_ids[0]
        family, attempt = parts.roster.sharing[device_id], int(values["attempt"])
        found = {one.candidate_id: one for one in map(_unpack, values["candidates"])}
        question.candidates, question.origins = (
            frozenset(found),
            frozenset(one.origin for one in found.values()),
        )
        waiting = {
            one: job.job_id
            for one, job in parts.planner.queues.jobs_of(device_id, found, attempt).items()
            if job.request_id == question.request_id or parts.state.job_state(job.job_id) is JobState.LEASED
        }
        question.jobs.update(waiting.values())
        fresh = [one for name, one in found.items() if name not in waiting]
        by_workload: dict[WorkloadId, list[Candidate]] = {}
        for one in fresh:
            by_workload.setdefault(one.workload_id, []).append(one)
        for workload_id, some in by_workload.items():
            parts.pools.add(family, workload_id, some)
        kind = next(one.kind for one in parts.state.open_requests() if one.request_id == question.request_id)
        for start in range(0, len(fresh), BATCH_SIZE):
            part = fresh[start : start + BATCH_SIZE]
            pairs = [(one.workload_id, one.candidate_id) for one in part]
            job = replace(
                parts.planner.job(device_id, pairs, part[0].origin, attempt, str(values["model_version"])),
                request_id=question.request_id,
                priority=kind.priority,
            )
            question.jobs.add(job.job_id)
            parts.planner.queues.opened(job)
            parts.event_log.tell(ev.JobSubmitted(at_secs=parts.clock(), job=job))
        if not question.jobs:
            self._answer(key, value=[])

    def _cancel_orphans(self) -> None:
        """Cancel jobs that wait though their request has ended: they were at work then, or just made."""
        parts = self._parts
        jobs = [one for one in parts.planner.queues.jobs() if one.request_id]
        wanted = {one.request_id for one in parts.state.open_requests()} if jobs else set()
        for job in jobs:
            if job.request_id not in wanted and parts.state.job_state(job.job_id) is JobState.QUEUED:
                reason = f"request {job.request_id} has ended"
                cancelled = ev.JobCancelled(
                    at_secs=parts.clock(), device_id=job.device_id, job_id=job.job_id, reason=reason
                )
                parts.event_log.tell(cancelled)

    # ---- small things ----

    def _out_of_order(self, question: _Question) -> str:
        """Why a device of a question cannot be waited for; empty where it can."""
        state = self._parts.state
        for device_id in question.device_ids:
            told = state.describe(device_id)
            # A job that kills its agent is put under quarantine before its device is.
            is_failing = question.op != "measure" and told["failures"] >= _MOST_FAILURES
            if told["state"] in _OUT or is_failing:
                return f"device {device_id}: {told['reason'] or told['state']}"
        return ""

    def _is_queued(self, question: _Question) -> bool:
        """Whether the jobs of a question may still be begun by an agent that is up."""
        told = self._parts.state.describe(question.device_ids[0])
        return told["state"] in _UP

    def _asking(self, op: str, device_id: DeviceId, incarnation: int) -> list[str]:
        return [
            key
            for key, one in self._questions.items()
            if one.op == op and one.device_ids == (device_id,) and one.incarnation == incarnation
        ]

    def _answer(self, key: str, **answer: Any) -> None:
        question = self._questions.pop(key, None)
        driver = self._drivers.get(question.request_id) if question is not None else None
        if driver is not None and question is not None:
            driver.channel.send({"id": question.number, **answer})

    def _forget(self, request_id: RequestId) -> Driver | None:
        self._questions = {key: one for key, one in self._questions.items() if one.request_id != request_id}
        return self._drivers.pop(request_id, None)

    def _end(self, request_id: RequestId, result: Mapping[str, Any], reason: str) -> None:
        self._starts.pop(request_id, None)
        ended = ev.RequestEnded(
            at_secs=self._parts.clock(), request_id=request_id, result=dict(result), reason=reason
        )
        self._parts.event_log.tell(ended)


def no_driver(request: Request) -> Driver:
    """Stands in where no requests but those for trainings are done."""
    raise FleetError(f"no {request.kind} is done here")


def _pack(one: Candidate) -> list[str]:
    return [one.workload_id, one.dialect, one.origin, one.trace]


def _unpack(value: Any) -> Candidate:
    workload_id, dialect, origin, trace = value
    return Candidate(workload_id=WorkloadId(workload_id), dialect=dialect, origin=origin, trace=trace)


__all__ = ["Driver", "Launch", "RequestDrivers", "no_driver"]
