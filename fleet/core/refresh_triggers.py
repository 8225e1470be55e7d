"""When a family's model is trained again, and that only one training runs. Pure; part of `state.py`.

A training is asked for by enough new records of the family, or by a device that drifted, is new or changed
its environment, as soon as there are records that tell of it, or at once by a request. How to train and
judge is for `fleet.refresh.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field, to_builtins

from agents.records import DeviceId
from fleet.core.events import ReasonKind, StartTraining, StopTraining, TrainingReason
from fleet.core.words import Limits


class Phase(StrEnum):
    """What the one training is at."""

    IDLE = "idle"
    ASKED = "asked"
    RUNNING = "running"


class Pending(Struct, forbid_unknown_fields=True):
    """A reason that waits for records of its device."""

    reason: TrainingReason
    missing: int


class FamilyTriggers(Struct, forbid_unknown_fields=True):
    """What speaks for a training of one family."""

    family: str
    records: int = 0
    #: Records when the last training began, and when the one before it did (for a training that fails).
    base: int = 0
    base_before: int = 0
    #: By kind and device: with a thousand new devices nothing may look through all of them.
    pending: dict[str, Pending] = field(default_factory=dict)
    due: dict[str, TrainingReason] = field(default_factory=dict)
    #: Those of requests, by request: whoever asks for a training waits for no pause.
    requested: dict[str, TrainingReason] = field(default_factory=dict)
    #: Failed trainings in a row, and the time before which none is asked for.
    failures: int = 0
    not_before: float = 0.0

    def enough(self, limits: Limits) -> int:
        """New records that ask for a training by themselves."""
        return max(limits.training_records, int(limits.training_share * self.base))

    def ripen(self, pending: Pending) -> None:
        """Let a reason ask for a training, if its device has enough records now."""
        if pending.missing <= 0:
            del self.pending[_key_of(pending.reason)]
            self.add_due(pending.reason)

    def add_due(self, reason: TrainingReason) -> None:
        """Let a reason ask for a training now."""
        if reason.kind is ReasonKind.REQUEST:
            self.requested[reason.request_id] = reason
        else:
            self.due[_key_of(reason)] = reason

    def wants(self, limits: Limits) -> bool:
        """Whether anything asks for a training."""
        return bool(self.due or self.requested) or self.records - self.base >= self.enough(limits)

    def is_ready(self, now: float, limits: Limits) -> bool:
        """Whether a training is to begin now."""
        return bool(self.requested) or (limits.trains and self.wants(limits) and self.not_before <= now)


class Triggers(Struct, forbid_unknown_fields=True):
    """The triggers of all families and the one training."""

    families: dict[str, FamilyTriggers] = field(default_factory=dict)
    phase: Phase = Phase.IDLE
    family: str = ""
    reasons: tuple[TrainingReason, ...] = ()
    since: float = 0.0
    #: How the last training ended, for people.
    last: str = ""

    def stored(self, family: str, device_id: DeviceId, count: int) -> None:
        """Count new records of a device."""
        triggers = self._of(family)
        triggers.records += count
        for kind in ReasonKind:
            if (pending := triggers.pending.get(_key(kind, device_id))) is not None:
                pending.missing -= count
                triggers.ripen(pending)

    def set_records(self, records: Mapping[str, int]) -> None:
        """Set the records of each family to what the store has."""
        for family, count in records.items():
            triggers = self._of(family)
            triggers.records = count
            # A store that was moved or pruned has fewer than a training once saw.
            triggers.base, triggers.base_before = min(triggers.base, count), min(triggers.base_before, count)

    def expect(self, family: str, reason: TrainingReason, missing: int) -> None:
        """Train for a reason as soon as its device has so many more records; a repeat changes nothing."""
        triggers = self._of(family)
        key = _key_of(reason)
        if not (key in triggers.pending or key in triggers.due or reason.request_id in triggers.requested):
            triggers.pending[key] = Pending(reason, missing)
            triggers.ripen(triggers.pending[key])

    def drop(self, device_id: DeviceId, kinds: frozenset[ReasonKind] = frozenset(ReasonKind)) -> None:
        """Forget reasons of a device."""
        for triggers in self.families.values():
            for kind in kinds:
                triggers.pending.pop(_key(kind, device_id), None)
                triggers.due.pop(_key(kind, device_id), None)

    def drop_request(self, family: str, request_id: str, now: float) -> list[StopTraining]:
        """Forget a request; a training that nothing else asked for is stopped."""
        self._of(family).requested.pop(request_id, None)
        reasons = tuple(reason for reason in self.reasons if reason.request_id != request_id)
        if reasons == self.reasons or reasons:
            self.reasons = reasons
            return []
        stopped, triggers = StopTraining(family=self.family), self._of(self.family)
        if self.phase is Phase.RUNNING:
            triggers.base = triggers.base_before
        self._end(now, "stopped: nobody asks for it any more")
        return [stopped]

    def stop_own(self, now: float, limits: Limits) -> list[StopTraining]:
        """Stop a training that the fleet asked for by itself; its reasons are over, only new ones count."""
        stopped, triggers = StopTraining(family=self.family), self._of(self.family)
        if self.phase is Phase.ASKED:
            triggers.base = triggers.records
        triggers.not_before = now + limits.training_pause_secs
        self._end(now, "stopped: its request was cancelled")
        return [stopped]

    def ask(self, now: float, limits: Limits) -> list[StartTraining]:
        """Ask for a training if there is a reason and none is under way."""
        ready = self._ready(now, limits)
        if not ready:
            return []
        # The family that has waited longest, so that one with many records does not starve the other.
        triggers = min(ready, key=lambda family: (not family.requested, family.not_before, family.family))
        new = triggers.records - triggers.base
        reasons = [*triggers.requested.values(), *triggers.due.values()]
        if new >= triggers.enough(limits):
            text = f"{new} new records after the {triggers.base} of the last training"
            reasons.append(TrainingReason(kind=ReasonKind.NEW_RECORDS, text=text))
        triggers.due, triggers.requested = {}, {}
        self.phase, self.family, self.reasons, self.since = Phase.ASKED, triggers.family, tuple(reasons), now
        return [StartTraining(family=triggers.family, reasons=self.reasons)]

    def ask_again(self, now: float) -> list[StartTraining]:
        """A coordinator took over: the training that was under way is asked for again; it can resume."""
        if self.phase is Phase.IDLE:
            return []
        if self.phase is Phase.RUNNING:
            triggers = self._of(self.family)
            triggers.base = triggers.base_before
        self.phase, self.since = Phase.ASKED, now
        return [StartTraining(family=self.family, reasons=self.reasons)]

    def set_back(self, ahead_secs: float, now: float) -> None:
        """The clock was ahead: what waits, waits no longer for that."""
        self.since = min(self.since, now)
        for triggers in self.families.values():
            triggers.not_before -= ahead_secs

    def started(self, now: float) -> None:
        """The training runs: it will have seen the records that there are now."""
        triggers = self._of(self.family)
        triggers.base_before, triggers.base = triggers.base, triggers.records
        self.phase, self.since = Phase.RUNNING, now

    def finished(self, now: float, text: str, limits: Limits) -> None:
        """The training ended, with or without a better model."""
        triggers = self._of(self.family)
        if self.phase is Phase.ASKED:
            triggers.base = triggers.records
        triggers.failures, triggers.not_before = 0, now + limits.training_pause_secs
        self._end(now, text)

    def failed(self, now: float, text: str, limits: Limits, *, is_hopeless: bool = False) -> None:
        """The training failed: its reasons stand, and it is tried again after a while.

        A hopeless one has seen its records and its reasons: only new ones ask for the next.
        """
        triggers = self._of(self.family)
        if is_hopeless:
            self.reasons = ()
            triggers.base = triggers.records if self.phase is Phase.ASKED else triggers.base
        elif self.phase is Phase.RUNNING:
            triggers.base = triggers.base_before
        wait = limits.training_retry_secs * 2.0 ** min(triggers.failures, 30)
        triggers.failures += 1
        triggers.not_before = now + min(limits.training_retry_most_secs, wait)
        once = (ReasonKind.NEW_RECORDS, ReasonKind.REQUEST)
        back = {_key_of(reason): reason for reason in self.reasons if reason.kind not in once}
        triggers.due = {key: reason for key, reason in back.items() if key not in triggers.due} | triggers.due
        self._end(now, text)

    def is_ready(self, now: float, limits: Limits) -> bool:
        """Whether `ask` has something to say."""
        return bool(self._ready(now, limits))

    def _ready(self, now: float, limits: Limits) -> list[FamilyTriggers]:
        if self.phase is not Phase.IDLE:
            return []
        return [family for family in self.families.values() if family.is_ready(now, limits)]

    def describe(self, wall_ahead_secs: float) -> dict[str, Any]:
        """What status and API show; JSON-ready. Times in Unix seconds."""
        return {
            "state": self.phase.value,
            "since": self.since and self.since + wall_ahead_secs,
            "family": self.family,
            "reasons": to_builtins(self.reasons),
            "last": self.last,
            "failures": {triggers.family: triggers.failures for triggers in self.families.values()},
        }

    def _of(self, family: str) -> FamilyTriggers:
        return self.families.setdefault(family, FamilyTriggers(family))

    def _end(self, now: float, text: str) -> None:
        self.phase, self.family, self.reasons, self.since, self.last = Phase.IDLE, "", (), now, text


def _key(kind: ReasonKind, name: str) -> str:
    """Names a reason; the name is that of a device or a request."""
    return f"{kind}/{name}"


def _key_of(reason: TrainingReason) -> str:
    return _key(reason.kind, reason.request_id or reason.device_id)
