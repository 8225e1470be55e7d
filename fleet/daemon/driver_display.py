"""Progress of a driver, told to the coordinator: steps of how many, seconds left, the last finding."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fleet.drivers.session import EngineSession
from fleet.planner.progress import PHASES
from fleet.planner.settings import Display

#: Least seconds between two reports: each is logged.
_PAUSE_SECS = 1.0


class DriverDisplay(Display):
    """For a driver in a process of its own."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self._phase = ""
        self._done = self._total = 0
        self._began = self._told_at = 0.0
        self._most_secs = math.inf

    @contextmanager
    def live(self) -> Iterator[None]:
        """Nothing is drawn."""
        yield

    def say(self, text: str) -> None:
        """Say one line."""
        self._session.say(text)

    def phase(self, name: str, total: int, most_secs: float = math.inf) -> None:
        """Begin a phase of `total` steps, which ends after so many seconds at the latest."""
        self._most_secs = most_secs
        self._phase, self._total = PHASES.get(name, name), total
        self._done = self.failed = 0
        self._began, self._told_at = time.monotonic(), 0.0
        self._tell(self._phase)

    def step(self, done: int, note: str) -> None:
        """Advance the phase by `done` steps."""
        before, self._done = self._done, min(self._done + done, self._total)
        self._tell(f"{self._phase}, {note}", is_last=before < self._done == self._total)

    def computes(self, text: str) -> None:
        """Let the devices go: nothing more is measured."""
        self._session.progress(self._done, self._total, text, is_measuring=False)

    def finish(self) -> None:
        """End the last phase."""

    def _tell(self, finding: str, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if now - self._told_at < _PAUSE_SECS and not is_last:
            return
        self._told_at = now
        secs = now - self._began
        left_secs = secs / self._done * (self._total - self._done) if self._done else None
        if left_secs is not None:
            left_secs = min(left_secs, max(0.0, self._most_secs - secs))
        self._session.progress(self._done, self._total, finding, left_secs)
