"""What a collection is told and what it tells: its settings, and who watches.

`collect.py` and `proposals.py` share these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from agents.records import REPEATS, Candidate, DeviceId, Family, Outcome, Record, Workload, WorkloadId
from fleet.planner.imported_candidates import underived

#: Candidates by family and workload.
Pools = dict[Family, dict[WorkloadId, list[Candidate]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How much to collect, and how."""

    #: Candidates a workload, on average.
    samples: int
    seed: int = 0
    #: Candidates measured a second time on each device.
    remeasure: int = 0
    #: Candidates that every workload gets, all of them random; None gives each workload `samples`.
    minimum: int | None = None
    #: Share of the candidates beyond the minimum that is random too; the others evolve from measured ones.
    exploration: float = 1.0
    #: Candidates of an A/A run, which every device gets once a day; 0 for none.
    noise: int = 0
    #: Minutes after which nothing new is begun; None for no limit.
    minutes: float | None = None


class Watcher(Protocol):
    """Sees the collection as it goes; for progress displays."""

    def phase(self, name: str, total: int, most_secs: float = math.inf) -> None:
        """A phase begins, with `total` steps in it (names: `fleet.planner.progress`), and ends by then."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """One workload has its candidates."""

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """Imported candidates of a workload are not measured: how many, by reason."""

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Records of one device are durable."""


class Display(Watcher, Protocol):
    """Shows a whole request as it goes."""

    #: Records of the phase without a latency.
    failed: int = 0

    def live(self) -> AbstractContextManager[object]:
        """Show progress while the block runs."""

    def say(self, text: str) -> None:
        """Show one line."""

    def step(self, done: int, note: str) -> None:
        """Advance the phase by `done` steps."""

    def finish(self) -> None:
        """End the last phase."""

    def computes(self, text: str) -> None:
        """Nothing more is measured: what follows is only computed."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """See `Watcher`."""
        self.step(1, f"{workload.name}: {candidates}")

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """See `Watcher`."""
        self.say(underived(workload, reasons))

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """See `Watcher`."""
        self.failed += sum(record.outcome is not Outcome.OK for record in records)
        failed = f", {self.failed} failed" if self.failed else ""
        # Leaders come with a second measurement that nobody planned.
        planned = sum(record.origin not in REPEATS for record in records) or len(records)
        self.step(planned, f"{device_id}{failed}")


# Where the time of a collection went, device by device, and the wall seconds of a job by part.
#
# `collect.py` keeps the ledger; `fleet collect` prints it. It knows records and clocks, no store and no
# agent.

#: Parts of the work for a device, in the order of a record's life.
PARTS = ("propose", "build", "wait", "time")


@dataclass(slots=True, kw_only=True)
class Spent:
    """Seconds of one device."""

    device_id: DeviceId
    records: int = 0
    #: Wall seconds of all phases, each until the last thing that was done for the device.
    wall_secs: float = 0.0
    #: Seconds of work by part: what all processes did, side by side, so they may add up to more.
    work: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))


class Ledger:
    """Adds up the seconds of a collection; a record has how long it was built, waited and was timed."""

    def __init__(self) -> None:
        self._accounts: dict[DeviceId, Spent] = {}
        #: When the last records of each device came, in the phase that runs.
        self._ended: dict[DeviceId, float] = {}

    @contextmanager
    def proposing(self, device_ids: Iterable[DeviceId]) -> Iterator[None]:
        """Count the block as `propose` of all devices that wait for the candidates."""
        began = time.monotonic()
        try:
            yield
        finally:
            secs = time.monotonic() - began
            for device_id in device_ids:
                account = self._of(device_id)
                account.wall_secs += secs
                account.work["propose"] += secs

    @contextmanager
    def measuring(self, device_ids: Iterable[DeviceId]) -> Iterator[None]:
        """Count the block, for each device until its last records."""
        began = time.monotonic()
        self._ended = dict.fromkeys(device_ids, began)
        try:
            yield
        finally:
            for device_id, ended in self._ended.items():
                self._of(device_id).wall_secs += ended - began

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Take in records that are stored now. Inside of `measuring`."""
        account = self._of(device_id)
        self._ended[device_id] = time.monotonic()
        account.records += len(records)
        for record in records:
            account.work["build"] += record.build_secs
            account.work["wait"] += record.wait_secs
            account.work["time"] += record.timing_secs

    def spent(self) -> list[Spent]:
        """What every device has spent so far, sorted by device."""
        return [account for _, account in sorted(self._accounts.items())]

    def _of(self, device_id: DeviceId) -> Spent:
        return self._accounts.setdefault(device_id, Spent(device_id=device_id))


def print_spending(spent: Iterable[Spent]) -> None:
    """Print two lines per device: the seconds of work by part with the wall seconds, and both per record."""
    from rich.table import Table

    from fleet.terminal_text import TerminalConsole

    measured = [account for account in spent if account.records]
    if not measured:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("where the time went, s", overflow="fold")
    for name in ("records", *PARTS, "wall"):
        table.add_column(name, justify="right", no_wrap=True)
    for account in measured:
        secs = [*account.work.values(), account.wall_secs]
        table.add_row(account.device_id, str(account.records), *(f"{value:.1f}" for value in secs))
        table.add_row("  per record", "", *(f"{value / account.records:.3f}" for value in secs))
    console = TerminalConsole()
    console.print(table)
    console.print("All processes of a device together, side by side; wait: for the timing lock.", style="dim")


@dataclass(slots=True)
class Clock:
    """Adds up the wall seconds of named parts."""

    started: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the block to part `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - began

    @property
    def wall_secs(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self.started
