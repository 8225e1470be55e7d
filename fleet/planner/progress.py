"""Live progress of a collection in the terminal; plain lines where there is no terminal.

Implements `fleet.planner.settings.Display`; knows nothing of stores, agents or models.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from fleet.planner.settings import Display

#: Pause between plain lines: often enough to see life in a log, seldom enough not to flood it.
_PLAIN_EVERY_SECS = 20.0

PHASES = {
    "wait": "Waiting for the devices",
    "propose": "Drawing candidates",
    "evolve": "Drawing near the best ones",
    "measure": "Measuring",
    "again": "Trying lost ones again",
    "remeasure": "Measuring a sample again",
    "noise": "Measuring the same twice",
    "tune": "Searching",
    "train": "Training, in epochs",
    "learn": "Training and holding out",
}


class _TimeLeft(ProgressColumn):
    """Time until a phase ends: by its pace, or because its time is up."""

    def render(self, task: Task) -> Text:
        by_pace = math.inf if task.time_remaining is None else task.time_remaining
        secs = min(by_pace, task.fields["most_secs"] - (task.elapsed or 0.0))
        text = f"{_short(max(0.0, secs))} left" if math.isfinite(secs) else ""
        return Text(text, style="progress.remaining")


class TerminalDisplay(Display):
    """Progress of one run: a bar a phase, and a running line of what the devices have given.

    Args:
        console: Where to print; bars appear when it is a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _TimeLeft(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            transient=False,
        )
        self._bar: TaskID | None = None
        self._phase = ""
        self._total = self._done = 0
        self._printed_at = self._began = 0.0
        self._most_secs = math.inf

    @contextmanager
    def live(self) -> Iterator[TerminalDisplay]:
        """Show bars while the block runs."""
        if not self._console.is_terminal:
            yield self
            return
        with self._progress:
            yield self

    def say(self, text: str) -> None:
        """Print one line above the bars."""
        self._console.print(text, highlight=False, markup=False)

    def phase(self, name: str, total: int, most_secs: float = math.inf) -> None:
        """Begin a phase of `total` steps, which ends after so many seconds at the latest."""
        self.finish()
        self._most_secs = most_secs
        self._phase = PHASES.get(name, name)
        self._total, self._done, self.failed = total, 0, 0
        self._began = self._printed_at = time.monotonic()
        if total:
            self._bar = self._progress.add_task(self._phase, total=total, note="", most_secs=most_secs)

    def computes(self, text: str) -> None:
        """See `fleet.planner.settings.Display`."""
        self.finish()
        self.say(text)

    def step(self, done: int, note: str) -> None:
        """Advance the phase by `done` steps."""
        # Candidates of a drifting window are measured once more than was planned.
        done = max(0, min(done, self._total - self._done))
        self._done += done
        if self._bar is not None:
            self._progress.update(self._bar, advance=done, note=note)
        now = time.monotonic()
        if self._done >= self._total:
            self.finish()
        elif not self._console.is_terminal and now - self._printed_at >= _PLAIN_EVERY_SECS:
            self._printed_at = now
            self._plain_line(note)

    def finish(self) -> None:
        """End the last phase."""
        if self._total and not self._console.is_terminal:
            self._plain_line("")
        self._bar, self._total = None, 0

    def _plain_line(self, note: str) -> None:
        seconds = time.monotonic() - self._began
        rate = f"{self._done / seconds:.1f}/s" if seconds > 0 else ""
        steps_left = self._total - self._done
        if steps_left and self._done:
            left = min(steps_left * seconds / self._done, max(0.0, self._most_secs - seconds))
            rate += f", {_short(left)} left"
        self.say(f"{self._phase}: {self._done}/{self._total} in {_short(seconds)} ({rate}) {note}".rstrip())


def _short(secs: float) -> str:
    """Seconds, or minutes from two of them on."""
    return f"{secs:.0f} s" if secs < 120 else f"{secs / 60:.0f} min"


def kilobytes(display: Display) -> Callable[[int, int, str], None]:
    """Show an import in kilobytes of the files: how many lines they hold is known at the end only."""
    kilobytes_done: list[int] = []

    def watch(read: int, total: int, note: str) -> None:
        if not kilobytes_done:
            display.phase("Reading (KB)", max(1, total // 1000))
            kilobytes_done.append(0)
        display.step(read // 1000 - kilobytes_done[0], note)
        kilobytes_done[0] = read // 1000

    return watch
