"""Requests of people and programs, and what happens to them: words and events. Values only.

`fleet.core.events` gives the events out again. The rules are in `request_events.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NewType

from agents.records import DeviceId
from agents.values import Value
from fleet.core.event_words import Fact

RequestId = NewType("RequestId", str)


class RequestKind(StrEnum):
    """What is asked for."""

    #: A refresh of the model of a family: `{"family": ...}`.
    TRAINING = "training"
    #: Candidates of workloads, each measured once on every device that is asked for.
    COLLECTION = "collection"
    #: The reference programs of onboardings.
    FINGERPRINT = "fingerprint"
    #: A head for a device from few measured candidates.
    ONBOARDING = "onboarding"
    #: A search for fast programs on a device.
    TUNING = "tuning"
    #: Logs of other tools, read into the store; nothing is measured.
    IMPORT = "import"
    #: How well models rank candidates that they never saw; nothing is measured.
    EVALUATION = "evaluation"
    #: A device leaves the fleet; its records and its model stay.
    RETIREMENT = "retirement"

    @property
    def has_driver(self) -> bool:
        """Whether a driver does it, a process of its own: it measures, reads logs, or judges."""
        return self not in (RequestKind.TRAINING, RequestKind.RETIREMENT)

    @property
    def priority(self) -> int:
        """Which jobs a device does first: arrivals, then tuning, then collections; 0 is the background."""
        return _PRIORITIES.get(self, 0)


_PRIORITIES = {
    RequestKind.ONBOARDING: 3,
    RequestKind.TUNING: 2,
    RequestKind.COLLECTION: 1,
    RequestKind.FINGERPRINT: 1,
}


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


class Request(Value, frozen=True, kw_only=True):
    """What somebody asks for."""

    #: Of the client's making: sent twice, the request exists once.
    request_id: RequestId
    kind: RequestKind
    #: Plain JSON values by name, checked for the kind before it was submitted.
    arguments: Mapping[str, Any]
    #: Minutes that it may run; None sets no limit.
    minutes: float | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether its driver is in the command that asked for it, and ends with it."""
        return bool(self.arguments.get("embedded"))

    @property
    def is_own_training(self) -> bool:
        """Whether the fleet asked for this training by itself: nobody's request is refused because of it."""
        return self.kind is RequestKind.TRAINING and bool(self.arguments.get("reasons"))

    @property
    def is_background(self) -> bool:
        """Whether its jobs are of the background: it waits for every other request, and holds up none.

        A command that measures fingerprints inside of itself has no background.
        """
        return self.kind is RequestKind.FINGERPRINT and not self.is_embedded

    @property
    def priority(self) -> int:
        """Of its jobs."""
        return 0 if self.is_background else self.kind.priority

    @property
    def device_ids(self) -> frozenset[DeviceId]:
        """The devices that its driver measures on."""
        if not self.kind.has_driver or self.kind in (RequestKind.IMPORT, RequestKind.EVALUATION):
            return frozenset()
        named = self.arguments.get("devices") or [self.arguments.get("device", "")]
        return frozenset(map(DeviceId, named))

    @property
    def family(self) -> str:
        """The family whose model a request for a training is about."""
        assert self.kind is RequestKind.TRAINING
        return str(self.arguments.get("family", ""))


class RequestSubmitted(Fact, frozen=True, kw_only=True):
    """A request waits for its turn. Its id must be new."""

    request: Request


class RequestProgressed(Fact, frozen=True, kw_only=True):
    """A running request has come further."""

    request_id: RequestId
    #: Steps that are done, and of how many; 0 of 0 where nobody knows.
    done: int
    of: int
    #: Seconds that it will still take; None where nobody knows.
    left_secs: float | None = None
    #: The last finding, in one line.
    finding: str = ""
    #: Whether it still measures: the devices of a driver that only computes go on with the background.
    is_measuring: bool = True


class RequestEnded(Fact, frozen=True, kw_only=True):
    """The driver of a request has ended."""

    request_id: RequestId
    #: The request's result, plain JSON values by name.
    result: Mapping[str, Any]
    #: Why it failed; empty where it succeeded.
    reason: str = ""


class RequestCancelled(Fact, frozen=True, kw_only=True):
    """A request is not wanted any more; what works for it alone is stopped."""

    request_id: RequestId
    reason: str = ""
