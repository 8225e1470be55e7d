"""What a collection is told and what it tells: its settings, and who watches.

`collect.py` and `proposals.py` share these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from agents.records import Candidate, DeviceId, Family, Record, Workload, WorkloadId
from fleet.planner.batch_plan import BATCH_SIZE

#: Candidates by family and workload.
Pools = dict[Family, dict[WorkloadId, list[Candidate]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How much to collect, and how."""

    #: Candidates a workload, on average.
    samples: int
    seed: int = 0
    batch_size: int = BATCH_SIZE
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
        """Records are durable."""


class Display(Watcher, Protocol):
    """Shows a whole request as it goes."""

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
