"""One life of a child of `benchmarks.chaos`: its history, its fault points, its records; spools and stores.

Each load opens its part as any process would after a crash, writes down in the history what it finds, and
goes on working; it never cleans up. All parts are used as they are, with more frequent checkpoints and moves
into the table, so that kills fall into those too.

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
from agents.errors import SpoolError, SpoolFull
from agents.host.probe import probe
from agents.records import Candidate, DeviceId, Record, Workload, canonical_json, record_id_of
from agents.spool.disk_spool import Spool
from benchmarks.chaos_faults import FaultPoints, Plan
from benchmarks.chaos_history import HistoryLog
from benchmarks.made_up import make_records, put_measured, record_of, workload_of
from fleet.errors import StoreError, StoreFull
from fleet.interchange.export_store import export
from fleet.json_types import JsonDict
from fleet.models.versions import is_held_out
from fleet.store.lanes import LaneSettings
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


#: Rows go on to the table, and its files are joined, often enough to be hit.
_LANES = LaneSettings(devices=1, rows_per_device=10)
_UPKEEP_EVERY = 4
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


def state_load(arguments: JsonDict) -> None:
    """Put batches into a store, each in a turn; look after its table now and then."""
    load = Load(arguments)

    def look(store: Store) -> None:
        results = {
            record_id_of(candidate_id, device_id, environment_id, attempt)
            for _, device_id, environment_id, candidate_id, attempt, *_ in store.state.results()
        }
        rows = stored_in(store)
        wrong = f"{len(results ^ {*rows})} results and rows do not belong together"
        load.log.add("look", places={"store": rows}, wrong=(wrong,) if results != {*rows} else ())

    def take(store: Store, batch: int) -> None:
        with suppress(StoreFull):
            records = load.measured(batch)
            for _ in range(load.rng.choice((1, 1, 2))):  # the acknowledgement was lost, so they come again
                store.append(records)
                load.log.add("acknowledged", by="store", records=ids_of(records))
            if batch % _UPKEEP_EVERY == 0:
                store.upkeep(retention_hours=0.0)

    load.work_off(lambda: Store.open(load.disk / "store", settings=_LANES), StoreError, look, take)


def spool_load(arguments: JsonDict) -> None:
    """Put batches, acknowledge some of the pending ones."""
    load = Load(arguments)

    def look(spool: Spool) -> None:
        load.log.add("look", places={"spool": ids_of(spool.pending())})

    def take(spool: Spool, batch: int) -> None:
        records = load.measured(batch)
        is_full = True
        while is_full:
            with suppress(SpoolFull):
                spool.put(records)
                is_full = False
        load.log.add("acknowledged", by="spool", records=ids_of(records))
        if batch % 3 == 2:
            pending = ids_of(spool.pending())
            some = pending if load.rng.random() < 0.3 else pending[: len(pending) // 2]
            load.log.add("released", records=some)
            for _ in range(load.rng.choice((1, 1, 2))):  # a message that comes twice
                spool.acknowledge(some)

    load.work_off(lambda: Spool(load.disk / "spool"), SpoolError, look, take)
