"""What a worker process says while it measures, checked before anything of it is believed.

A candidate runs in that process and may have written over its memory. Called by `pool.py`; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from agents.errors import MessageError
from agents.records import Outcome, canonical_json
from agents.sandbox.stages import WorkerStage

#: Repeats, or warm-up runs, of one program at most.
_MOST_RUNS = 100_000
#: Characters of one text, and of the environment or the quality as JSON, at most: real ones take some 2,000.
_MOST_CHARS = 1 << 20


def _is_secs(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_many_secs(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_RUNS and all(map(_is_secs, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_CHARS


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    try:
        return isinstance(value, dict) and len(canonical_json(value)) <= _MOST_CHARS
    except (ValueError, RecursionError):  # numbers that are none, or lists within lists
        return False


def _is_one_of(words: type[StrEnum]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in set(words)


_Fields = dict[str, Callable[[Any], bool]]
_TIMES: _Fields = {"build_secs": _is_secs, "wait_secs": _is_secs}
#: Fields that an event must have, and those that it may have.
_MUST: dict[str, _Fields] = {
    "ready": {"pid": _is_count},
    "stage": {"job": _is_count, "stage": _is_one_of(WorkerStage)},
    "done": {"job": _is_count, "outcome": _is_one_of(Outcome), "error": _is_text},
    "retiming": {},
    "retimed": {
        "job": _is_count,
        "run_secs": _is_many_secs,
        "timing_secs": _is_secs,
        "left": _is_count,
    },
    "rested": {},
}
_MAY: dict[str, _Fields] = {
    "stage": _TIMES,
    "done": {
        **_TIMES,
        "run_secs": _is_many_secs,
        "warmup_secs": _is_many_secs,
        "timing_secs": _is_secs,
        "number": _is_count,
        "environment": _is_object,
        "quality": _is_object,
        **dict.fromkeys(("is_retiming", "is_kept", "broken", "device_lost"), _is_flag),
    },
}


def checked(message: dict[str, Any]) -> dict[str, Any]:
    """Give back a message that a sound worker process may send.

    Raises:
        MessageError: It is another one; the message says which field.
    """
    event = message.get("event")
    if not isinstance(event, str) or event not in _MUST:
        raise MessageError(f"a worker process sent the event {str(event)[:60]!r}, which there is not")
    must, may = _MUST[event], _MAY.get(event, {})
    for name in must.keys() - message.keys():
        raise MessageError(f"a worker process sent {event!r} without {name!r}")
    for name in message.keys() & (must.keys() | may.keys()):
        if not (must | may)[name](message[name]):
            raise MessageError(f"a worker process sent {event!r} with {name!r} = {str(message[name])[:60]}")
    return message


__all__ = ["checked"]
