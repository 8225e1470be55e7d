"""Requests of people and programs, and what happens to them: words and events. Values only.

`fleet.core.events` gives the events out again. The rules are in `requests.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NewType

RequestId = NewType("RequestId", str)


class RequestKind(StrEnum):
    """What is asked for."""

    #: A refresh of the model of a family: `{"family": ...}`.
    TRAINING = "training"


class RequestState(StrEnum):
    """Where a request is in its life; the last three are ends."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        """Whether nothing follows any more."""
        return self not in (RequestState.QUEUED, RequestState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody asks for."""

    #: Of the client's making: sent twice, the request exists once.
    request_id: RequestId
    kind: RequestKind
    #: Plain JSON values by name, checked for the kind before it was submitted.
    arguments: Mapping[str, Any]
    #: Minutes that it may run; None sets no limit.
    minutes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSubmitted:
    """A request waits for its turn. Its id must be new."""

    at_secs: float
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProgressed:
    """A running request has come further."""

    at_secs: float
    request_id: RequestId
    #: Steps that are done, and of how many; 0 of 0 where nobody knows.
    done: int
    of: int
    #: Seconds that it will still take; None where nobody knows.
    left_secs: float | None = None
    #: What was found last, in one line.
    finding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancelled:
    """A request is not wanted any more; what works for it alone is stopped."""

    at_secs: float
    request_id: RequestId
    reason: str = ""


__all__ = [
    "Request",
    "RequestCancelled",
    "RequestId",
    "RequestKind",
    "RequestProgressed",
    "RequestState",
    "RequestSubmitted",
]
