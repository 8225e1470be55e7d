"""The state and its events as one: events go into both, and only then anything may follow from them.

`fleet.engine.coordinator` tells it events and gets instructions back once the events are durable. With them
goes what others have changed in the state file in the same turn, such as new candidates: one transaction, one
wait for the disk. It carries out nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from msgspec import ValidationError
from msgspec.structs import replace

from fleet.core.events import Event, Instruction, decode_events, encode_events
from fleet.core.leases import Leasing
from fleet.core.state import FleetState
from fleet.core.words import Limits
from fleet.errors import FleetError
from fleet.state.state_file import StateFile

#: Events that have grown by this much since the snapshot are worth a new one.
COMPACT_BYTES = 16 << 20


class EventLog:
    """A state that survives.

    Args:
        file: Where it is kept.
        limits: Rules for a file that has no events yet.
        clock: Gives the seconds of new events.
        compact_bytes: As `COMPACT_BYTES`.

    Raises:
        FleetError: The events are none that this version could have written in this order.

    Attributes:
        state: Not to be changed by others.
        size_bytes: Bytes of snapshot and events.
    """

    def __init__(
        self,
        file: StateFile,
        limits: Limits,
        clock: Callable[[], float],
        *,
        compact_bytes: int = COMPACT_BYTES,
    ) -> None:
        self._file, self._clock = file, clock
        self._compact_bytes = compact_bytes
        snapshot, groups = file.snapshot(), list(file.events())
        self._begun_bytes = len(snapshot or b"")
        self.size_bytes = self._begun_bytes + sum(map(len, groups))
        try:
            self.state = _replayed(snapshot, groups, limits)
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

    def append(self, *events: Event) -> None:
        """Note events of now for the next `commit`, which leaves out what changes nothing."""
        self._pending += [replace(event, at_secs=self._clock()) for event in events]

    def commit(self) -> tuple[list[Event], list[Instruction]]:
        """Apply what was told and keep it with all else of the turn, with one wait for the disk.

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

    def compact(self, *, now: bool = False) -> None:
        """Put a snapshot in place of many events; of few only `now`.

        Raises:
            StoreFull: No room; the file is as it was.
            StoreError: The disk failed.
        """
        is_long = self.size_bytes - self._begun_bytes > max(self._compact_bytes, self._begun_bytes)
        if (now or is_long) and not self.has_news:
            body = json.dumps({"state": self.state.to_json()}, separators=(",", ":")).encode()
            with self._file.turn() as turn:
                turn.put_snapshot(body)
            self.size_bytes = self._begun_bytes = len(body)

    def _keep(self, events: list[Event]) -> None:
        if not events:
            return
        body = encode_events(events)
        with self._file.turn() as turn:
            turn.add_events(body)
        self.size_bytes += len(body)


def _replayed(snapshot: bytes | None, groups: Iterable[bytes], limits: Limits) -> FleetState:
    """Apply what a file holds; nothing is carried out."""
    state = (
        FleetState(Leasing(limits))
        if snapshot is None
        else FleetState.from_json(json.loads(snapshot)["state"])
    )
    for group in groups:
        for event in decode_events(group):
            state.apply(event)
    return state
