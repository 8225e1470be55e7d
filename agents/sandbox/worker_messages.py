"""Messages of a worker process, from JSON to values: the border of trust. Pure.

A candidate runs in that process and may have written over its memory, so every field is checked here, once.
`pool.py` calls it; everything beyond handles values.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agents.errors import AgentError, MessageError
from agents.programs.gate import Repeats
from agents.records import Outcome, canonical_json
from agents.sandbox.job import MOST_CHARS, Count, Disturbances, JobResult, RunSecs, Seconds, Text
from agents.sandbox.stages import AT_WORK, WorkerStage
from agents.values import Value

#: Bytes of an event at most: the times of 100,000 warm-up runs beside a long error.
MOST_EVENT_BYTES = 4 << 20
#: Bytes of the answer to each question at most, and, if it is of traces, of each trace that is expected.
_MOST_ANSWER_BYTES = {"networks": 32 << 20, "canaries": 1 << 20, "board": 64 << 10}
_MOST_TRACE_BYTES, _MOST_TRACES_BYTES = 128 << 10, 32 << 20


class Ready(Value, frozen=True, kw_only=True, tag_field="event", tag="ready"):
    """The process takes jobs."""

    pid: Count


class StageBegan(Value, frozen=True, kw_only=True, tag_field="event", tag="stage"):
    """A job enters a stage; kept, it is where the job stands."""

    job: Count
    stage: WorkerStage
    #: Seconds that the job has taken so far to be built, and to wait for the device.
    build_secs: Seconds
    wait_secs: Seconds


class JobDone(JobResult, frozen=True, kw_only=True, tag_field="event", tag="done"):
    """A job was timed for the first time, or failed."""

    #: The process goes on with earlier programs.
    is_retiming: bool = False
    #: The program stays in the process, to be timed again.
    is_kept: bool = False
    #: It takes a slower level of the probe for the usual one now.
    has_new_level: bool = False
    #: The program has broken the device.
    is_broken: bool = False
    #: The device is out of reach.
    is_device_lost: bool = False


class RetimingBegan(Value, frozen=True, tag_field="event", tag="retiming"):
    """The process holds the device, to time earlier programs."""


class Retimed(Value, frozen=True, kw_only=True, tag_field="event", tag="retimed"):
    """A program was timed once more; `left` timings of it are to come."""

    job: Count
    run_secs: RunSecs
    disturbances: Disturbances = ()
    timing_secs: Seconds
    left: Count

    @property
    def repeats(self) -> Repeats:
        """The repeats of this timing."""
        return Repeats(self.run_secs, self.disturbances)


class Rested(Value, frozen=True, tag_field="event", tag="rested"):
    """The process has timed all earlier programs that were due."""


WorkerEvent = Ready | StageBegan | JobDone | RetimingBegan | Retimed | Rested


class _Quality(Value, frozen=True):
    """What a process may say of its number; all else is said of it by who does not run the candidate."""

    stopped_early: bool = False
    checked: bool = False


class _Refused(Value, frozen=True, tag_field="event", tag="refused"):
    error: Text


class _Proposed(Value, frozen=True, tag_field="event", tag="proposed"):
    traces: list[Text]
    #: Traces of others that nothing was derived from, by reason.
    refused: dict[Text, Count]


class _Workloads(Value, frozen=True, tag_field="event", tag="workloads"):
    workloads: list[dict[str, Any]]


class _Canary(Value, frozen=True):
    name: Text
    workload: dict[str, Any]
    trace: Text


class _Canaries(Value, frozen=True, tag_field="event", tag="canaries"):
    canaries: list[_Canary]


class _Board(Value, frozen=True, tag_field="event", tag="board"):
    descriptor: dict[str, Any]


#: The answers to questions (`handlers.py`).
_Answer = _Refused | _Proposed | _Workloads | _Canaries | _Board
#: Stages that a job is in, by the word of its process.
_JOB_STAGES = AT_WORK | {WorkerStage.REFERENCE, WorkerStage.WAITING}


def most_answer_bytes(question: dict[str, Any]) -> int:
    """Bytes that an honest answer to a question (`handlers.py`) stays below; a refusal stays below each."""
    if (most := _MOST_ANSWER_BYTES.get(question["op"])) is not None:
        return most
    expected = len(question.get("foreign", ())) or question.get("count", 0)
    return min(_MOST_TRACES_BYTES, MOST_CHARS + _MOST_TRACE_BYTES * expected)


def parse_event(message: dict[str, Any]) -> WorkerEvent:
    """Read what a worker process says while it measures.

    Raises:
        MessageError: No sound worker process says this; the message names the field.
    """
    event: WorkerEvent = _parsed(message.get("event"), message, WorkerEvent)
    if isinstance(event, StageBegan) and event.stage not in _JOB_STAGES:
        raise MessageError(f"a worker process sent the stage {event.stage}, which no job is in")
    if isinstance(event, JobDone | Retimed):
        gated, timed = len(event.disturbances), len(event.run_secs)
        if gated not in (0, timed):
            raise MessageError(f"a worker process sent {timed} 'run_secs' and {gated} 'disturbances'")
    if isinstance(event, JobDone):
        if "ended_at" in message:
            raise MessageError("a worker process sent 'ended_at', which is for its reader's clock to say")
        _check_done(event)
    return event


def _check_done(done: JobDone) -> None:
    """Refuse an end that contradicts itself: a job would have no latency, or no end at all."""
    is_ok = done.outcome is Outcome.OK
    is_sound = (bool(done.run_secs) or not is_ok) and (is_ok or not done.is_kept)
    if not is_sound or (done.is_device_lost and done.outcome is not Outcome.LOST):
        raise MessageError(
            f"a worker process sent 'done' with outcome {done.outcome}, {len(done.run_secs)} 'run_secs', "
            f"'is_kept' {done.is_kept} and 'is_device_lost' {done.is_device_lost}"
        )
    _parsed("quality", done.quality, _Quality)
    _check_size("environment", done.environment)


def parse_answer(message: dict[str, Any]) -> dict[str, Any]:
    """Read the answer of a worker process to a question: its fields, without `event`.

    Raises:
        MessageError: No sound worker process gives this answer.
        AgentError: The process refuses the question.
    """
    answer = _parsed(message.get("event"), message, _Answer)
    if isinstance(answer, _Refused):
        raise AgentError(answer.error)
    if isinstance(answer, _Board):
        _check_size("descriptor", answer.descriptor)
    values: dict[str, Any] = msgspec.to_builtins(answer)
    del values["event"]
    return values


def _check_size(name: str, value: dict[str, Any]) -> None:
    """Refuse numbers that are none, and what is long or nested too deeply."""
    try:
        is_short = len(canonical_json(value)) <= MOST_CHARS
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a worker process sent {name!r} that is no JSON ({error})") from None
    if not is_short:
        raise MessageError(f"a worker process sent {name!r} of more than {MOST_CHARS:,} characters")


def _parsed(what: object, value: dict[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise MessageError(f"a worker process sent {str(what)[:60]!r} as none does: {error}") from None
