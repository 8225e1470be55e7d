"""What a collection is told and what it tells: its settings, and who watches.

`collect.py` and `proposals.py` share these.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

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

#: Parts of a device's time, in the order of a record's life; `rest` is what none of them explains.
PARTS = ("propose", "build", "wait", "time", "rest")

#: Begin and end in Unix seconds.
Interval = tuple[float, float]

#: Which activity a second counts for when several are at work, first one first. Timing is what a device is
#: for; while a built program waits for the lock, that is what holds it up; building counts when nothing else
#: was to be done.
_BY_WORTH = ("time", "wait", "build")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of one device by part."""

    device_id: DeviceId
    records: int
    #: Wall seconds by part of `PARTS`; each second counts once, so they add up to the device's wall time.
    wall: Mapping[str, float]
    #: Seconds of work by part: what all processes did, side by side, so they may add up to more.
    work: Mapping[str, float]

    @property
    def wall_secs(self) -> float:
        """Wall seconds of all phases, each until the last thing that was done for the device."""
        return sum(self.wall.values())


def attribute(span: Interval, layers: Mapping[str, Sequence[Interval]]) -> dict[str, float]:
    """Give every second of `span` to the first layer that covers it, and to `rest` where none does.

    Args:
        span: Begin and end.
        layers: Intervals by name, most important name first; they may overlap and reach out of the span.

    Returns:
        Seconds by name, `rest` last; they add up to the length of the span.
    """
    begin, end = span
    covered: list[Interval] = []
    explained = 0.0
    parts: dict[str, float] = {}
    for name, intervals in layers.items():
        clipped = [(max(low, begin), min(high, end)) for low, high in intervals]
        covered = _union([*covered, *(interval for interval in clipped if interval[0] < interval[1])])
        together = sum(high - low for low, high in covered)
        parts[name] = max(0.0, together - explained)
        explained = together
    parts["rest"] = max(0.0, end - begin - explained)
    return parts


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """Join intervals that overlap or touch; sorted."""
    joined: list[Interval] = []
    for low, high in sorted(intervals):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


@dataclass(slots=True)
class _Account:
    records: int = 0
    wall: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    work: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS[:-1], 0.0))
    #: Of the phase that runs.
    began: float = 0.0
    ended: float = 0.0
    layers: dict[str, list[Interval]] = field(default_factory=lambda: {name: [] for name in _BY_WORTH})


class Ledger:
    """Adds up the seconds of a collection.

    A record tells how long it was built, waited for the host's timing lock and was timed, one after the
    other, and when that ended. So the agents' clock must be the coordinator's, as it is on one host.

    Args:
        now: Gives Unix seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._accounts: dict[DeviceId, _Account] = {}

    @contextmanager
    def proposing(self, device_ids: Iterable[DeviceId]) -> Iterator[None]:
        """Count the block as `propose` of all devices that wait for the candidates."""
        began = self._now()
        try:
            yield
        finally:
            for device_id in device_ids:
                account = self._of(device_id)
                for parts in (account.wall, account.work):
                    parts["propose"] += self._now() - began

    @contextmanager
    def measuring(self, device_ids: Iterable[DeviceId]) -> Iterator[None]:
        """Count the block, for each device until its last records, as what these say."""
        accounts = [self._of(device_id) for device_id in device_ids]
        for account in accounts:
            account.began = account.ended = self._now()
            account.layers = {name: [] for name in _BY_WORTH}
        try:
            yield
        finally:
            for account in accounts:
                for name, secs in attribute((account.began, account.ended), account.layers).items():
                    account.wall[name] += secs

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Take in what records tell, which are stored now. Inside of `measuring`."""
        account = self._of(device_id)
        account.ended = self._now()
        account.records += len(records)
        for record in records:
            end = record.measured_at
            for name, secs in (
                ("time", record.timing_secs),
                ("wait", record.wait_secs),
                ("build", record.build_secs),
            ):
                account.layers[name].append((end - secs, end))
                account.work[name] += secs
                end -= secs

    def spent(self) -> list[Spent]:
        """What every device has spent so far, sorted by device."""
        return [
            Spent(
                device_id=device_id, records=account.records, wall=dict(account.wall), work=dict(account.work)
            )
            for device_id, account in sorted(self._accounts.items())
        ]

    def _of(self, device_id: DeviceId) -> _Account:
        return self._accounts.setdefault(device_id, _Account())


def spent_from(values: Iterable[Mapping[str, Any]]) -> list[Spent]:
    """Rebuild what `dataclasses.asdict` gave."""
    return [Spent(**value) for value in values]


def print_spending(spent: Sequence[Spent]) -> None:
    """Print two lines per device: the wall seconds of each part, and the seconds of work per record."""
    from rich.table import Table

    from fleet.terminal_text import TerminalConsole

    measured = [account for account in spent if account.records]
    if not measured:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("where the time went, s", overflow="fold")
    for name in ("records", *PARTS, "all"):
        table.add_column(name, justify="right", no_wrap=True)
    for account in measured:
        table.add_row(
            str(account.device_id),
            str(account.records),
            *(f"{account.wall[name]:.1f}" for name in PARTS),
            f"{account.wall_secs:.1f}",
        )
        share = 1 / account.records
        table.add_row(
            "  per record",
            "",
            *(f"{account.work.get(name, account.wall[name]) * share:.3f}" for name in PARTS),
            f"{account.wall_secs * share:.3f}",
        )
    console = TerminalConsole()
    console.print(table)
    for line in (
        "A second counts once: as time, else as wait (for the timing lock) or build.",
        "per record: work of all processes together. rest: canaries, hand-over, idle.",
    ):
        console.print(line, style="dim")


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
