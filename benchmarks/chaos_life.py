"""One life of a child of `benchmarks.chaos`: its history, its fault points, its records.

Replay devices answer from schedules whose latencies follow from the tiles: a small model learns them in a
second, and a challenger is judged on held-out workloads as in a real fleet.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import agents.row_file
import fleet.state.schema
import fleet.store.writer
from agents.host.probe import probe
from agents.records import (
    Candidate,
    DeviceId,
    Record,
    Workload,
    canonical_json,
)
from benchmarks.chaos_faults import FaultPoints, Plan
from benchmarks.chaos_history import HistoryLog
from benchmarks.made_up import make_records, put_measured, record_of, workload_of
from fleet.interchange.export_store import export
from fleet.json_types import JsonDict
from fleet.models.versions import is_held_out
from fleet.store.reader import StoreReader
from fleet.store.store import Store

#: The device that was recorded.
RECORDED = DeviceId("bench")
#: Workloads that are learnt from, and those that the rule holds out: enough to judge a head.
_LEARNT, _HELD = 9, 4
WORKLOADS = _LEARNT + _HELD
_TILES, _INNER, _UNROLLS = 5, 4, 4
#: A matrix multiplication: two loops are tiled, the block is unrolled.
_TRACE = Path(__file__).with_name("chaos_trace.json")


def make_recorded(path: Path) -> None:
    """Write the file that the replay devices answer from."""
    with Store.open(path.parent / "recorded") as store:
        records = [
            record_of(candidate, run_secs=(secs, 1.01 * secs, 1.02 * secs))
            for workload in workloads()
            for candidate, secs in candidates(workload)
        ]
        put_measured(store, RECORDED, workloads(), records, probe())
        export(store, path, "parquet")


def workloads() -> list[Workload]:
    """Those that are learnt from, then those that are held out."""
    parts: tuple[list[Workload], list[Workload]] = ([], [])
    for number in range(40 * _HELD):
        shapes = ((2, 128, 128 + number), (2, 128 + number, 64), (2, 128, 64))
        workload = workload_of(f"{number:016x}", name=f"GMM_{number}", arg_shapes=shapes, flops=4194304.0)
        parts[is_held_out(workload)].append(workload)
    return parts[0][:_LEARNT] + parts[1][:_HELD]


def candidates(workload: Workload) -> Iterator[tuple[Candidate, float]]:
    """Unlike candidates of a workload, and the seconds that each takes."""
    instructions = json.loads(_TRACE.read_text())
    for place in range(_TILES * _INNER * _UNROLLS):
        rest, unroll = divmod(place, _UNROLLS)
        tile, inner = rest % _TILES, rest // _TILES
        tiles = [[3, [128 // 2 ** (tile + 1), 2, 1, 2**tile]], [5, [64 // 2**inner, 2**inner]]]
        trace = canonical_json([instructions, [*tiles, [8, unroll]]])
        secs = 1e-3 * math.exp(-(tile + 0.3 * inner + 0.2 * unroll) / 2)
        yield Candidate(workload_id=workload.workload_id, trace=trace), secs


#: Records of a batch.
_BATCH = 5
_CHECKPOINT_EVERY, _CHECKPOINT_PAGES = 5, 40

_Part = TypeVar("_Part")


class Load:
    """What all loads share: history, fault points, batches of records.

    Args:
        arguments: `root` (history, traces), `disk` (folder under the fault points), `first` (number of the
            first new batch), `batches`, `plan` (fields of `chaos_faults.Plan`), `seed`, and `sabotage`:
            "fsync" for a system that does not wait for the disk, which a power cut must show.
    """

    def __init__(self, arguments: JsonDict) -> None:
        self.root, self.disk = Path(arguments["root"]), Path(arguments["disk"])
        self.batches = range(arguments["first"], arguments["first"] + arguments["batches"])
        self.rng = random.Random(arguments["seed"])
        self.log = HistoryLog(self.root / "history.jsonl")
        self.points = fault_points(arguments["plan"], self.log)
        # Checkpoints often enough to be hit.
        fleet.store.writer.CHECKPOINT_EVERY = _CHECKPOINT_EVERY
        agents.row_file.CHECKPOINT_PAGES = fleet.state.schema.CHECKPOINT_PAGES = _CHECKPOINT_PAGES
        if arguments["sabotage"] == "fsync":
            setattr(os, "fsync", lambda _: None)  # noqa: B010  # for the type checker it is a function
            self.points.waits_for_disk = False

    def measured(self, batch: int) -> list[Record]:
        """New records of a batch, most of one device."""
        most = make_records(batch * _BATCH, _BATCH - 1)
        records = [*most, *make_records((batch + 1) * _BATCH - 1, 1, "other")]
        self.log.add("measured", records=ids_of(records))
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
        batches, has_looked = list(self.batches), False
        while batches or not has_looked:
            with suppress(errors), opened() as part:
                look(part)
                has_looked = True
                while batches:
                    take(part, batches[0])
                    del batches[0]
        self.finish()

    def finish(self) -> None:
        """Tell how many steps there were."""
        (self.root / "steps").write_text(str(self.points.steps))


def fault_points(plan: JsonDict, log: HistoryLog) -> FaultPoints:
    """Install the fault points of this process, which tell a history of a fault of the disk."""
    points = FaultPoints(Plan(**plan), partial(log.add, "trouble", by="disk fault"))
    points.install()
    return points


def set_defaults(constructor: Any, **values: Any) -> None:
    """Give arguments of a constructor other defaults."""
    defaults = constructor.__kwdefaults__
    assert values.keys() <= defaults.keys()
    defaults.update(values)


def ids_of(records: Iterable[Record]) -> tuple[str, ...]:
    """Their names in a history."""
    return tuple(record.record_id for record in records)


def stored_in(store: StoreReader) -> tuple[str, ...]:
    """Names of all records of a store, with repetitions."""
    return tuple(one for _, batch in store.columns(["record_id"]) for one in batch.column(0).to_pylist())
