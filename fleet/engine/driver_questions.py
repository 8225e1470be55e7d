"""What the drivers of requests ask for: jobs, agents' answers, the store. Nothing here waits.

`fleet.engine.request_drivers` hands each message of a driver over. A message becomes a question to agents, or
jobs like others: with leases, logged, stored by the same hands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from agents.codec import device_from_json, record_to_json, workload_from_json
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
from agents.records import (
    REPEATS,
    Candidate,
    CandidateId,
    DeviceId,
    Record,
    WorkloadId,
    as_json_dict,
    is_live,
)
from fleet.core import events as ev
from fleet.core.device_state import USABLE
from fleet.core.events import DeviceState, JobId, JobState
from fleet.core.words import RequestId
from fleet.drivers.session import pack_candidate, unpack_candidate
from fleet.engine.context import Composition
from fleet.errors import FleetError, StoreFull, is_full
from fleet.planner.batch_plan import cut

#: Starts of an agent in a row that may fail before whoever waits for its device is told.
_MOST_FAILURES = 2
#: What is raised by a message that is no question; nothing else of it may end the coordinator.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError)
_OUT = frozenset({DeviceState.QUARANTINED, DeviceState.RETIRED, DeviceState.ABSENT})
#: Questions that need no agent: for the table as it is now, and for a place for what a driver has read.
_STORE_OPS = frozenset({"flush", "import_workloads", "import_device", "import_rows", "import_end"})


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


class DriverQuestions:
    """Questions of drivers that have no answer yet."""

    def __init__(self, parts: Composition, send: Callable[[RequestId, Mapping[str, Any]], None]) -> None:
        self._parts, self._send = parts, send
        self._questions: dict[str, _Question] = {}

    def ask(self, request_id: RequestId, message: Mapping[str, Any]) -> None:
        """Take up what a driver asks.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: It is no question (`MALFORMED`).
        """
        parts, op, number = self._parts, str(message["op"]), int(message["id"])
        names = message.get("devices", [message["device"]] if "device" in message else [])
        device_ids = tuple(map(DeviceId, names))
        key = f"{request_id}/{number}"
        question = _Question(request_id, number, op, device_ids, message)
        self._questions[key] = question
        if unknown := [device_id for device_id in device_ids if device_id not in parts.roster.specs]:
            self._answer(key, unusable=f"{unknown[0]} is no device of the fleet just now")
        elif op == "measure":
            self._measure(key, question)
        else:
            self._go_on(key, question)

    def pursue_all(self) -> None:
        """Ask agents that have come up, and answer where a device cannot be waited for, or there is room."""
        for key, question in list(self._questions.items()):
            try:
                if question.op == "measure":
                    if reason := self._out_of_order(question):
                        self._answer(key, unusable=reason)
                elif self._parts.disk.may_try or question.op not in _STORE_OPS:
                    self._go_on(key, question)
            except MALFORMED as error:
                self._answer(key, error=f"what was asked cannot be understood: {error!r:.200}")

    def forget(self, request_id: RequestId) -> None:
        """Let go of what a driver asked that is gone."""
        self._questions = {
            key: question for key, question in self._questions.items() if question.request_id != request_id
        }

    def heard(self, message: Message) -> bool:
        """Take in what an agent said.

        Returns:
            Whether it answers a driver, and nobody else.
        """
        match message:
            case Proposed(request=request) if request.request_id in self._questions:
                candidates = list(map(pack_candidate, message.candidates))
                answer = {"candidates": candidates, "refused": dict(message.refused)}
                self._answer(request.request_id, value=answer)
                return True
            case Failed(what=Asked.PROPOSE) if message.request_id in self._questions:
                self._answer(message.request_id, error=f"{message.device_id}: {message.error}")
                return True
            case WorkloadsListed():
                return self._listed(message)
            case Failed(what=Asked.WORKLOADS):
                for key in self._listing(message.device_id, message.incarnation):
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
                question.records += [record for record in records if question.is_about(record)]

    def job_ended(self, job_id: JobId) -> None:
        """Note a job that brings nothing any more; that is durable."""
        for key, question in list(self._questions.items()):
            if job_id in question.jobs:
                question.jobs.discard(job_id)
                if not question.jobs:
                    self._answer(key, value=[record_to_json(record) for record in question.records])

    def _go_on(self, key: str, question: _Question) -> None:
        if question.op in _STORE_OPS:
            self._change_store(key, question)
        else:
            self._pursue(key, question)

    def _change_store(self, key: str, question: _Question) -> None:
        """Bring into the store what was measured or what an import hands on; on a full disk that waits."""
        try:
            value = _change_store(self._parts, question.values)
        except (FleetError, AgentError, OSError, pa.ArrowInvalid) as error:
            if is_full(error):
                self._parts.disk.full(error)
            else:
                self._answer(key, error=str(error))
        else:
            self._answer(key, value=value)

    def _pursue(self, key: str, question: _Question) -> None:
        """Go on with what needs agents, as far as these are up."""
        if question.incarnation is not None:
            return
        if reason := self._out_of_order(question):
            self._answer(key, unusable=reason)
            return
        parts = self._parts
        statuses = [parts.state.describe(device_id) for device_id in question.device_ids]
        if any(
            status["state"] not in USABLE or device_id not in parts.up or device_id in parts.descriptors
            for device_id, status in zip(question.device_ids, statuses, strict=True)
        ):
            return
        if question.op == "ready":
            self._answer(key, value=[status["environment_id"] for status in statuses])
            return
        device_id = question.device_ids[0]
        question.incarnation = parts.up[device_id]
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
        parts.planner.requests.propose(device_id, request)

    def _listed(self, message: WorkloadsListed) -> bool:
        parts, device_id = self._parts, message.device_id
        keys = [
            key
            for key in self._listing(device_id, message.incarnation)
            if tuple(self._questions[key].values["networks"]) == message.networks
        ]
        if not keys:
            return False
        try:
            parts.store.put_workloads(message.workloads, own=is_live(parts.roster.all_specs[device_id]))
        except StoreFull:
            # The driver waits for it: the agent is asked again, until there is room.
            self._questions[keys[0]].incarnation = None
            raise
        parts.modules.put(device_id, message.workloads)
        # One list answers one question; the fleet's own discovery may have asked for the same list.
        self._answer(keys[0], value=[as_json_dict(workload) for workload in message.workloads])
        return True

    def _measure(self, key: str, question: _Question) -> None:
        """Make jobs of candidates, but of those that wait for this request, or are at work for another.

        What waits for others may not come: the background waits until this request is done, and another
        request may be cancelled. What they measure first is not measured again.
        """
        parts, values, device_id = self._parts, question.values, question.device_ids[0]
        request = parts.state.open_request(question.request_id)
        if request is None:
            self._answer(key, error=f"request {question.request_id} has ended")
            return
        family, attempt = parts.roster.sharing[device_id], int(values["attempt"])
        candidates = {
            candidate.candidate_id: candidate for candidate in map(unpack_candidate, values["candidates"])
        }
        question.candidates, question.origins = (
            frozenset(candidates),
            frozenset(candidate.origin for candidate in candidates.values()),
        )
        waiting = {
            candidate_id: job.job_id
            for candidate_id, job in parts.planner.queues.jobs_of(device_id, candidates, attempt).items()
            if job.request_id == question.request_id or parts.state.job_state(job.job_id) is JobState.LEASED
        }
        question.jobs.update(waiting.values())
        fresh = [candidate for name, candidate in candidates.items() if name not in waiting]
        by_workload: dict[WorkloadId, list[Candidate]] = {}
        for candidate in fresh:
            by_workload.setdefault(candidate.workload_id, []).append(candidate)
        for workload_id, some in by_workload.items():
            parts.coverage.candidates.add((family, workload_id), some)
        for part in _parts(fresh):
            pairs = [(candidate.workload_id, candidate.candidate_id) for candidate in part]
            job = replace(
                parts.planner.factory.job(
                    device_id, pairs, part[0].origin, attempt, str(values["model_version"])
                ),
                request_id=question.request_id,
                priority=request.priority,
            )
            question.jobs.add(job.job_id)
            parts.planner.submit(job)
        if not question.jobs:
            self._answer(key, value=[])

    def _out_of_order(self, question: _Question) -> str:
        """Why a device of a question cannot be waited for; empty where it can."""
        state = self._parts.state
        for device_id in question.device_ids:
            status = state.describe(device_id)
            # A job that kills its agent is put under quarantine before its device is.
            is_failing = question.op != "measure" and status["failures"] >= _MOST_FAILURES
            if status["state"] in _OUT or is_failing:
                return f"device {device_id}: {status['reason'] or status['state']}"
        return ""

    def _listing(self, device_id: DeviceId, incarnation: int) -> list[str]:
        """Questions for the workloads that an agent was asked to list."""
        listed = (device_id,), incarnation
        return [
            key
            for key, question in self._questions.items()
            if question.op == "workloads" and (question.device_ids, question.incarnation) == listed
        ]

    def _answer(self, key: str, **answer: Any) -> None:
        question = self._questions.pop(key, None)
        if question is not None:
            self._send(question.request_id, {"id": question.number, **answer})


def _parts(candidates: Iterable[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Cut candidates into jobs: one that measures again gives its own origin to all that it has."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.origin if candidate.origin in REPEATS else "", []).append(candidate)
    for some in groups.values():
        yield from cut(some)


def _change_store(parts: Composition, question: Mapping[str, Any]) -> Any:
    """Do what a driver asks for that needs no agent.

    Returns:
        The answer, JSON-ready.

    Raises:
        StoreFull: No room; what was taken in before stays.
        StoreError: What came is nothing that the store can keep, or the disk failed.
    """
    match question["op"]:
        case "flush":  # for whoever reads the table
            parts.store.flush()
            return True
        case "import_workloads":
            lines = Path(question["file"]).read_text().splitlines()
            return parts.store.put_workloads(workload_from_json(json.loads(line)) for line in lines)
        case "import_device":
            return parts.store.put_device(*device_from_json(question["spec"], question["descriptor"]))
        case "import_rows":
            return _take_rows(parts, DeviceId(question["of"]), Path(question["file"]))
        case _:
            parts.discovery.find_imported()
            return True


def _take_rows(parts: Composition, device_id: DeviceId, path: Path) -> dict[str, int]:
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        done = parts.store.append_table(device_id, table)
    if done.appended:
        parts.coverage.refresh(device_id)
    if device_id in parts.roster.specs and done.appended:
        parts.event_log.append(ev.RecordsStored(device_id=device_id, count=done.appended, ok=done.ok))
    return {"appended": done.appended, "duplicates": done.duplicates, "table_version": done.table_version}
