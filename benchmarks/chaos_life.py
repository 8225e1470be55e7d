"""One life of a child of `benchmarks.chaos`: its history, its fault points, its records."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import agents.row_file
import fleet.state.schema
import fleet.store.writer
from agents.records import Record
from benchmarks.chaos_faults import FaultPoints, Plan
from benchmarks.chaos_history import Event, HistoryLog
from benchmarks.made_up import make_records
from fleet.store.reader import StoreReader

#: Records of a batch.
BATCH = 5
_CHECKPOINT_EVERY, _CHECKPOINT_PAGES = 5, 40

_Part = TypeVar("_Part")


class Load:
    """What all loads share: history, fault points, batches of records.

    Args:
        arguments: `root` (history, traces), `disk` (folder under the fault points), `first` (number of the
            first new batch), `batches`, `plan` (fields of `chaos_faults.Plan`), `seed`, and `sabotage`:
            "fsync" for a system that does not wait for the disk, which a power cut must show.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.root, self.disk = Path(arguments["root"]), Path(arguments["disk"])
        self.batches = range(arguments["first"], arguments["first"] + arguments["batches"])
        self.rng = random.Random(arguments["seed"])
        self.log = HistoryLog(self.root / "history.jsonl")
        told = partial(self.log.add, Event(kind="trouble", by="disk fault"))
        self.points = FaultPoints(Plan(**arguments["plan"]), told)
        # Checkpoints often enough to be hit.
        fleet.store.writer.CHECKPOINT_EVERY = _CHECKPOINT_EVERY
        agents.row_file.CHECKPOINT_PAGES = fleet.state.schema.CHECKPOINT_PAGES = _CHECKPOINT_PAGES
        self.points.install()
        if arguments["sabotage"] == "fsync":
            setattr(os, "fsync", lambda _: None)  # noqa: B010  # for the type checker it is a function
            self.points.waits_for_disk = False

    def measured(self, batch: int) -> list[Record]:
        """New records of a batch, most of one device."""
        most = make_records(batch * BATCH, BATCH - 1)
        records = [*most, *make_records((batch + 1) * BATCH - 1, 1, "other")]
        self.log.add(Event(kind="measured", records=ids_of(records)))
        return records

    def work_off(
        self,
        opened: Callable[[], AbstractContextManager[_Part]],
        errors: type[Exception],
        look: Callable[[_Part], None],
        take: Callable[[_Part, int], None],
    ) -> None:
        """Open a part, look at it, and give it all batches; after an error of the disk once more from there.

        A full or failing disk may keep a part from opening, and may leave the end of a batch unknown.

        Args:
            opened: Opens the part, as a start after a kill does.
            errors: What the part says of the disk.
            look: Writes down what is there.
            take: Takes in one batch.
        """
        batches = iter(self.batches)
        batch = next(batches, None)
        is_first = True
        while batch is not None or is_first:
            with suppress(errors), opened() as part:
                look(part)
                is_first = False
                while batch is not None:
                    take(part, batch)
                    batch = next(batches, None)
        self.finish()

    def finish(self) -> None:
        """Tell how many steps there were."""
        (self.root / "steps").write_text(str(self.points.steps))


def ids_of(records: Iterable[Record]) -> tuple[str, ...]:
    """Their names in a history."""
    return tuple(record.record_id for record in records)


def stored_in(store: StoreReader) -> tuple[str, ...]:
    """Names of all records of a store, with repetitions."""
    return tuple(one for _, batch in store.columns(["record_id"]) for one in batch.column(0).to_pylist())
