"""The state and its journal as one: events go into both, and only then anything may follow from them.

`fleet.engine.coordinator` tells it events and gets instructions back once the events are durable. It waits
for the disk only, and carries out nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fleet.core.event_json import event_from_json, event_to_json
from fleet.core.events import Event, Instruction, Job, JobId, JobSubmitted
from fleet.core.limits import Limits
from fleet.core.state import FleetState
from fleet.errors import FleetError
from fleet.journal.journal import Journal


class EventLog:
    """A state that survives.

    Args:
        folder: Folder of the journal.
        limits: Rules for a journal that has none yet.

    Raises:
        FleetError: The events in the journal are none that this version could have written in this order.

    Attributes:
        state: Not to be changed by others.
        journal: Not to be changed by others.
        jobs: Jobs that had not ended when the journal was opened, in the order in which they were submitted.
        notes: What had to be mended in the journal, one line each.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.journal = Journal(folder)
        self.notes = tuple(self.journal.notes)
        try:
            self.state, self.jobs = _replayed(self.journal, limits)
        except BaseException:
            self.journal.close()
            raise
        self._told: list[Event] = []
        #: Applied, but not durable yet.
        self._events: list[Event] = []
        self._instructions: list[Instruction] = []

    @property
    def has_news(self) -> bool:
        """Whether anything was told since the last `commit`, or is not durable yet."""
        return bool(self._told or self._events)

    @property
    def is_behind(self) -> bool:
        """Whether there was no room for events that the state knows: nothing may be told until there is."""
        return bool(self._events)

    def tell(self, event: Event) -> None:
        """Note an event for the next `commit`, which leaves out heartbeats and ticks that change nothing."""
        self._told.append(event)

    def commit(self) -> tuple[list[Event], list[Instruction]]:
        """Apply what was told and journal it, all with one wait for the disk.

        Returns:
            Events that are durable now, and what is to be done because of them.

        Raises:
            StoreFull: No room: the state knows the events, the journal does not. Call it again later.
            StateError: An event is impossible; it is not in the journal.
            StoreError: The disk failed.
        """
        told, self._told = self._told, []
        for event in told:
            if self.state.is_news(event):
                self._instructions += self.state.apply(event)
                self._events.append(event)
        self.journal.append([event_to_json(event) for event in self._events])
        done = self._events, self._instructions
        self._events, self._instructions = [], []
        return done

    def compact(self, jobs: Iterable[Job], *, now: bool = False) -> None:
        """Put a snapshot, with the jobs that have not ended, in place of many events; of few only `now`.

        Raises:
            StoreFull: No room; the journal is as it was.
            StoreError: The disk failed.
        """
        if (now or self.journal.is_long) and not self.has_news:
            self.journal.compact({"state": self.state.to_json(), "jobs": [job.job_id for job in jobs]})

    def close(self) -> None:
        """Let another one open the journal."""
        self.journal.close()


def _replayed(journal: Journal, limits: Limits) -> tuple[FleetState, list[Job]]:
    """Apply what a journal holds; nothing is carried out."""
    snapshot: Mapping[str, Any] = journal.snapshot
    try:
        state = FleetState.from_json(snapshot["state"]) if snapshot else FleetState(limits)
        names = dict.fromkeys(map(JobId, snapshot.get("jobs", ())))
        for value in journal.events():
            event = event_from_json(value)
            state.apply(event)
            if isinstance(event, JobSubmitted):
                names[event.job.job_id] = None
    except (FleetError, KeyError, TypeError, ValueError) as error:
        raise FleetError(
            f"the journal {journal.path} cannot be replayed: {error}. If no other version of tensor-fleet "
            f"wrote it, move {journal.path.parent} away and start again: the store, the spools and the pools "
            "keep every measurement, only queues and counters begin anew"
        ) from error
    return state, [job for name in names if (job := state.job(name)) is not None]
