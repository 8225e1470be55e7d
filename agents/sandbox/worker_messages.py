"""Messages of a worker process, from JSON to values: the border of trust. Pure.

A candidate runs in that process and may have written over its memory, so every field is checked here, once.
`pool.py` calls it; everything beyond handles values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agents.errors import AgentError, MessageError
from agents.records import Outcome, canonical_json
from agents.sandbox.job import JobResult
from agents.sandbox.stages import AT_WORK, WorkerStage

#: No clock of a job gives more seconds: sums of such numbers stay finite, and fit into the files of records.
_MOST_SECS = 1e12
#: Repeats, or warm-up runs, of one program at most.
_MOST_RUNS = 100_000
#: Characters of one text, and of the environment or the quality as JSON, at most: real ones take some 2,000.
_MOST_CHARS = 1 << 20
#: Bytes of an event at most: the times of `_MOST_RUNS` warm-up runs beside a long error.
MOST_EVENT_BYTES = 4 << 20
#: Bytes of the answer to each question at most, and, if it is of traces, of each trace that is expected.
_MOST_ANSWER_BYTES = {"networks": 32 << 20, "canaries": 1 << 20, "board": 64 << 10}
_MOST_TRACE_BYTES, _MOST_TRACES_BYTES = 128 << 10, 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The process takes jobs."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBegan:
    """A job enters a stage; kept, it is where the job stands."""

    job: int
    stage: WorkerStage
    #: Seconds that the job has taken so far to be built, and to wait for the device.
    build_secs: float
    wait_secs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone(JobResult):
    """A job was timed for the first time, or failed."""

    #: The process goes on with earlier programs.
    is_retiming: bool = False
    #: The program stays in the process, to be timed again.
    is_kept: bool = False
    #: The program has broken the device.
    is_broken: bool = False
    #: The device is out of reach.
    is_device_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetimingBegan:
    """The process holds the device, to time earlier programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retimed:
    """A program was timed once more; `left` timings of it are to come."""

    job: int
    run_secs: tuple[float, ...]
    timing_secs: float
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rested:
    """The process has timed all earlier programs that were due."""


WorkerEvent = Ready | StageBegan | JobDone | RetimingBegan | Retimed | Rested
_Reader = Callable[[Any], Any]


def _secs(value: Any) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not 0 <= value <= _MOST_SECS:
        raise ValueError
    return value


def _many_secs(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > _MOST_RUNS:
        raise ValueError
    return tuple(map(_secs, value))


def _repeats(value: Any) -> tuple[float, ...]:
    found = _many_secs(value)
    if not all(found):  # no program takes no time
        raise ValueError
    return found


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARS:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _object(value: Any) -> dict[str, Any]:
    # Refuses numbers that are none, and lists within lists.
    if not isinstance(value, dict) or len(canonical_json(value)) > _MOST_CHARS:
        raise ValueError
    return value


def _quality(value: Any) -> dict[str, Any]:
    """What a process may say of its number; all else is said of it by who does not run the candidate."""
    return {key: _QUALITY[key](one) for key, one in _object(value).items()}


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError
    return list(map(_text, value))


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError
    return value


def _canary_programs(value: Any) -> list[dict[str, Any]]:
    for one in _objects(value):
        if not {"name", "workload", "trace"} <= one.keys():
            raise ValueError
        _text(one["name"]), _text(one["trace"])
    return value  # type: ignore[no-any-return]


def _counts(value: Any) -> dict[str, int]:
    return {_text(key): _count(number) for key, number in _object(value).items()}


def _one_of(words: type[StrEnum]) -> _Reader:
    return lambda value: words(_text(value))


def _job_stage(value: Any) -> WorkerStage:
    found = WorkerStage(_text(value))
    if found not in _JOB_STAGES:
        raise ValueError
    return found


_QUALITY: dict[str, _Reader] = {"interval": _secs, "stopped_early": _flag, "checked": _flag}
#: Stages that a job is in, by the word of its process.
_JOB_STAGES = AT_WORK | {WorkerStage.REFERENCE, WorkerStage.WAITING}
_TIMES: dict[str, _Reader] = {"build_secs": _secs, "wait_secs": _secs}
_NO_FIELDS: dict[str, _Reader] = {}
#: Each event: its value, the fields that it must have, and those that it may have.
_EVENTS: dict[str, tuple[type[WorkerEvent], dict[str, _Reader], dict[str, _Reader]]] = {
    "ready": (Ready, {"pid": _count}, _NO_FIELDS),
    "stage": (StageBegan, {"job": _count, "stage": _job_stage, **_TIMES}, _NO_FIELDS),
    "done": (
        JobDone,
        {"job": _count, "outcome": _one_of(Outcome), "error": _text, **_TIMES},
        {
            "run_secs": _repeats,
            "warmup_secs": _many_secs,
            "timing_secs": _secs,
            "number": _count,
            "environment": _object,
            "quality": _quality,
            **dict.fromkeys(("is_retiming", "is_kept", "is_broken", "is_device_lost"), _flag),
        },
    ),
    "retiming": (RetimingBegan, _NO_FIELDS, _NO_FIELDS),
    "retimed": (
        Retimed,
        {"job": _count, "run_secs": _repeats, "timing_secs": _secs, "left": _count},
        _NO_FIELDS,
    ),
    "rested": (Rested, _NO_FIELDS, _NO_FIELDS),
}
#: Each answer to a question (`handlers.py`), and its fields.
_ANSWERS: dict[str, dict[str, _Reader]] = {
    "refused": {"error": _text},
    "proposed": {"traces": _texts},
    "derived": {"traces": _texts, "refused": _counts},
    "workloads": {"workloads": _objects},
    "canaries": {"canaries": _canary_programs},
    "board": {"descriptor": _object},
}


def most_answer_bytes(question: dict[str, Any]) -> int:
    """Bytes that an honest answer to a question (`handlers.py`) stays below; a refusal stays below each."""
    if (most := _MOST_ANSWER_BYTES.get(question["op"])) is not None:
        return most
    expected = question["count"] if "count" in question else len(question.get("traces", ()))
    return min(_MOST_TRACES_BYTES, _MOST_CHARS + _MOST_TRACE_BYTES * expected)


def parse_event(message: dict[str, Any]) -> WorkerEvent:
    """Read what a worker process says while it measures.

    Raises:
        MessageError: No sound worker process says this; the message names the field.
    """
    event = _event_of(message, _EVENTS.keys())
    kind, must, may = _EVENTS[event]
    present = {name: read for name, read in may.items() if name in message}
    found = kind(**_fields(event, message, must | present))
    if isinstance(found, JobDone):
        _check_done(found)
    return found


def _check_done(done: JobDone) -> None:
    """Refuse an end that contradicts itself: a job would have no latency, or no end at all."""
    is_ok = done.outcome is Outcome.OK
    is_sound = (bool(done.run_secs) or not is_ok) and (is_ok or not done.is_kept)
    if not is_sound or (done.is_device_lost and done.outcome is not Outcome.LOST):
        raise MessageError(
            f"a worker process sent 'done' with outcome {done.outcome}, {len(done.run_secs)} 'run_secs', "
            f"'is_kept' {done.is_kept} and 'is_device_lost' {done.is_device_lost}"
        )


def parse_answer(message: dict[str, Any]) -> dict[str, Any]:
    """Read the answer of a worker process to a question: its fields, without `event`.

    Raises:
        MessageError: No sound worker process gives this answer.
        AgentError: The process refuses the question.
    """
    event = _event_of(message, _ANSWERS.keys())
    found = _fields(event, message, _ANSWERS[event])
    if event == "refused":
        raise AgentError(found["error"])
    return found


def _event_of(message: dict[str, Any], known: Any) -> str:
    event = message.get("event")
    if not isinstance(event, str) or event not in known:
        raise MessageError(f"a worker process sent the event {str(event)[:60]!r}, which there is not")
    return event


def _fields(event: str, message: dict[str, Any], readers: dict[str, _Reader]) -> dict[str, Any]:
    found = {}
    for name, read in readers.items():
        if name not in message:
            raise MessageError(f"a worker process sent {event!r} without {name!r}")
        try:
            found[name] = read(message[name])
        except (LookupError, ValueError, RecursionError):
            raise MessageError(
                f"a worker process sent {event!r} with {name!r} = {str(message[name])[:60]}"
            ) from None
    return found
