"""The state and its events as one: events go into both, and only then anything may follow from them.

`fleet.engine.coordinator` tells it events and gets instructions back once the events are durable. With them
go the parts that others have of the same turn, such as new candidates: one transaction, one wait for the
disk. It carries out nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Protocol

from msgspec import ValidationError

from fleet.core.events import (
    Event,
    Instruction,
    Job,
    JobId,
    JobSubmitted,
    decode_events,
    encode_events,
)
from fleet.core.limits import Limits
from fleet.core.state import FleetState
from fleet.errors import FleetError
from fleet.state.state_file import StateFile
from fleet.state.turn import Turn

#: Events that have grown by this much since the snapshot are worth a new one.
COMPACT_BYTES = 16 << 20


class TurnPart(Protocol):
    """Somebody who has a part of each turn to keep."""

    def write(self, turn: Turn) -> None:
        """Write what the disk lacks; the turn may still be taken back."""

    def confirm(self) -> None:
        """Take what was written last for durable."""


class EventLog:
    """A state that survives.

    Args:
        file: Where it is kept.
        limits: Rules for a file that has no events yet.
        compact_bytes: As `COMPACT_BYTES`.

    Raises:
        FleetError: The events are none that this version could have written in this order.

    Attributes:
        state: Not to be changed by others.
        jobs: Jobs that had not ended when the file was opened, in the order in which they were submitted.
        size_bytes: Bytes of snapshot and events.
        parts: Whoever writes a part of each turn.
    """

    def __init__(self, file: StateFile, limits: Limits, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self._file = file
        self._compact_bytes = compact_bytes
        self.parts: list[TurnPart] = []
        snapshot, groups = file.snapshot(), list(file.events())
        self._begun_bytes = len(snapshot or b"")
        self.size_bytes = self._begun_bytes + sum(map(len, groups))
        try:
            self.state, self.jobs = _replayed(snapshot, groups, limits)
        except (FleetError, ValidationError, KeyError, TypeError, ValueError) as error:
            raise FleetError(
                f"the events in {file.path} cannot be replayed: {error}. Start the version that wrote them,"
                " or move the file away: the table and the spools keep every measurement, only queues,"
                " candidates and counters begin anew"
            ) from error
        self._pending: list[Event] = []
        #: Applied, but not durable yet.
        self._events: list[Event] = []
        self._instructions: list[Instruction] = []

    @property
    def has_news(self) -> bool:
        """Whether anything was told since the last `commit`, or is not durable yet."""
        return bool(self._pending or self._events)

    @property
    def is_behind(self) -> bool:
        """Whether there was no room for events that the state knows: nothing may be told until there is."""
        return bool(self._events)

    def append(self, event: Event) -> None:
        """Note an event for the next `commit`, which leaves out heartbeats and ticks that change nothing."""
        self._pending.append(event)

    def commit(self) -> tuple[list[Event], list[Instruction]]:
        """Apply what was told and keep it with all parts of the turn, with one wait for the disk.

        Returns:
            Events that are durable now, and what is to be done because of them.

        Raises:
            StoreFull: No room: the state knows the events, the file does not. Call it again later.
            StateError: An event is impossible; it is not in the file.
            StoreError: The disk failed.
        """
        pending, self._pending = self._pending, []
        for event in pending:
            if self.state.is_news(event):
                self._instructions += self.state.apply(event)
                self._events.append(event)
        self._keep(self._events)
        done = self._events, self._instructions
        self._events, self._instructions = [], []
        return done

    def compact(self, jobs: Iterable[Job], *, now: bool = False) -> None:
        """Put a snapshot, with the jobs that have not ended, in place of many events; of few only `now`.

        Raises:
            StoreFull: No room; the file is as it was.
            StoreError: The disk failed.
        """
        is_long = self.size_bytes - self._begun_bytes > max(self._compact_bytes, self._begun_bytes)
        if (now or is_long) and not self.has_news:
            value = {"state": self.state.to_json(), "jobs": [job.job_id for job in jobs]}
            body = json.dumps(value, separators=(",", ":")).encode()
            with self._file.turn() as turn:
                self._write_parts(turn)
                turn.put_snapshot(body)
            self._confirm_parts()
            self.size_bytes = self._begun_bytes = len(body)

    def _keep(self, events: list[Event]) -> None:
        if not events:
            return
        body = encode_events(events)
        with self._file.turn() as turn:
            self._write_parts(turn)
            turn.add_events(body)
        self._confirm_parts()
        self.size_bytes += len(body)

    def _write_parts(self, turn: Turn) -> None:
        for part in self.parts:
            part.write(turn)

    def _confirm_parts(self) -> None:
        for part in self.parts:
            part.confirm()


def _replayed(
    snapshot: bytes | None, groups: Iterable[bytes], limits: Limits
) -> tuple[FleetState, list[Job]]:
    """Apply what a file holds; nothing is carried out."""
    value = {} if snapshot is None else json.loads(snapshot)
    state = FleetState.from_json(value["state"]) if value else FleetState(limits)
    names = dict.fromkeys(map(JobId, value.get("jobs", ())))
    for group in groups:
        for event in decode_events(group):
            state.apply(event)
            if isinstance(event, JobSubmitted):
                names[event.job.job_id] = None
    return state, [job for name in names if (job := state.job(name)) is not None]
