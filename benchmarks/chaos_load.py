"""What the children of `benchmarks.chaos` do until they are killed; the process that forks them runs this.

Each load opens its part as any process would after a crash, writes down in the history what it finds, and
goes on working; it never cleans up. The real spool, state file, registry and coordinator are used as they
are, with more frequent checkpoints and moves into the table, so that kills fall into those too. The arguments
are those of `chaos_life.Load`. A turn of the state file holds results, rows that wait, an event and now and
then a candidate, a letter or a snapshot; a look says which turns are there in part.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from deltalake import DeltaTable

from agents.errors import SpoolError, SpoolFull
from agents.records import Candidate, Record, record_id_of
from agents.spool.disk_spool import Spool
from benchmarks.chaos_children import DISK_FAILED, REFUSED, serve, spawner
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_fleet import StartRefused, run_fleet
from benchmarks.chaos_life import BATCH, Load, ids_of, make_recorded
from benchmarks.chaos_models import models_load, trainer_load
from benchmarks.chaos_watch import look_at_fleet, observer_load
from fleet.errors import StoreError, StoreFull
from fleet.json_types import JsonDict
from fleet.state.rows import pack, result_of, unpack, with_device
from fleet.state.state_file import StateFile
from fleet.state.table import RecordsTable
from fleet.state.turn import Turn
from fleet.store.delta.log import RECORDS
from fleet.store.delta.schema import records_to_table
from fleet.store.lanes import Lanes, LaneSettings

#: Turns between two moves of rows into the table, and versions between two checkpoints of it.
_FLUSH_EVERY, _SUM_UP_EVERY = 3, 4
_FAMILY, _MOST_LETTERS = "cpu", 20
#: The two devices of a batch have a lane each.
_LANES = Lanes(LaneSettings(devices=1))


def state_load(arguments: JsonDict) -> None:
    """Take in batches, each in a turn; move rows on, join files and put snapshots now and then."""
    load = Load(arguments)
    store = load.disk / "store"

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[StateFile, RecordsTable]]:
        with contextlib.closing(StateFile(store / "state.sqlite")) as state:
            yield state, RecordsTable(store / RECORDS, state)

    def look(part: tuple[StateFile, RecordsTable]) -> None:
        _look(load, *part)

    def take(part: tuple[StateFile, RecordsTable], batch: int) -> None:
        state, table = part
        with contextlib.suppress(StoreFull):
            _turn(load, state, batch)
            if batch % _FLUSH_EVERY == 0:
                table.flush({lane for lane, *_ in state.waiting_sizes()})
                if table.version % _SUM_UP_EVERY == 0:
                    table.compact({file.device_id for file in state.files()})
                    table.checkpoint()
                    table.delete_unused(table.version)

    load.work_off(opened, StoreError, look, take)


def _turn(load: Load, state: StateFile, batch: int) -> None:
    records = load.measured(batch)
    before = [*(state.snapshot() or b"").split(), *state.events()]
    if b"%d" % batch in before:  # the end of its turn was not known, and it was kept
        return
    one = records[0]
    first = Candidate(workload_id=one.workload_id, dialect=one.dialect, trace=one.trace)
    with state.turn() as turn:
        _take_in(turn, records)
        if batch % 4 == 3:
            turn.put_snapshot(b"\n".join([*before, b"%d" % batch]))
        else:
            turn.add_events(b"%d" % batch)
        turn.add_candidates(_FAMILY, first.workload_id, [first])
        turn.keep_letter("late", str(batch), 1, b"letter", most_rows=_MOST_LETTERS, most_bytes=1 << 20)
    load.log.add("acknowledged", by="state", records=ids_of(records))
    load.log.add("acknowledged", by="rows", records=ids_of(records))
    if load.rng.random() < 0.3:  # the acknowledgement was lost, so the agent sends them again
        with state.turn() as turn:
            _take_in(turn, records)


def _take_in(turn: Turn, records: Sequence[Record]) -> None:
    """Add results, and the rows of those that are new."""
    flags = turn.add_results(map(result_of, records))
    for record, is_new in zip(records, flags, strict=True):
        if is_new:
            lane = _LANES.number(record.device_id)
            row = with_device(record.device_id, records_to_table([record]))
            turn.add_waiting(lane, [record.device_id], 1, pack(row), record.measured_at)


def _look(load: Load, state: StateFile, table: RecordsTable) -> None:
    """Write down what is there."""
    stored = DeltaTable(table.folder).to_pyarrow_table(columns=["record_id"]).column(0).to_pylist()
    waiting = [one for rows in state.waiting() for one in unpack(rows.body).column("record_id").to_pylist()]
    results = [
        record_id_of(candidate_id, device_id, environment_id, attempt)
        for _, device_id, environment_id, candidate_id, attempt, *_ in state.results()
    ]
    batches = Counter([*(state.snapshot() or b"").split(), *state.events()])
    wrong = [
        f"the turn {name.decode()} was applied {count} times" for name, count in batches.items() if count > 1
    ]
    if {*stored, *waiting} != set(results):
        wrong.append(
            f"{len({*stored, *waiting} ^ set(results))} results and rows that do not belong together"
        )
    if len(results) != BATCH * len(batches):
        wrong.append(f"{len(results)} results of {len(batches)} turns")
    letters = sum(letter.kind == "late" for letter in state.letters())
    if letters < min(len(batches), 0.9 * _MOST_LETTERS):
        wrong.append(f"{letters} letters of {len(batches)} turns")
    files = {file.path for file in state.files()}
    if not files >= set(DeltaTable(table.folder).get_add_actions(flatten=True).column("path").to_pylist()):
        wrong.append("the table has data files that the state file does not name")
    places = {"state": tuple(results), "rows": (*stored, *waiting)}
    load.log.add("look", places=places, wrong=tuple(wrong))


_IMPORTED_LATE = (
    "torch._dynamo",
    "torch.utils.tensorboard",
    "xgboost",
    "transfer.adapt.kept",
    "fleet.refresh.freshness_look",
    "fleet.models.training",
    "fleet.refresh.run",
)


def spool_load(arguments: JsonDict) -> None:
    """Put batches, acknowledge some of the pending ones."""
    load = Load(arguments)

    def look(spool: Spool) -> None:
        load.log.add("look", places={"spool": ids_of(spool.pending())})

    def take(spool: Spool, batch: int) -> None:
        records = load.measured(batch)
        _put(spool, records)
        load.log.add("acknowledged", by="spool", records=ids_of(records))
        if batch % 3 == 2:
            _acknowledge_some(load, spool)

    load.work_off(lambda: Spool(load.disk / "spool"), SpoolError, look, take)


def _put(spool: Spool, records: list[Record]) -> None:
    while True:
        with contextlib.suppress(SpoolFull):
            return spool.put(records)


def _acknowledge_some(load: Load, spool: Spool) -> None:
    pending = ids_of(spool.pending())
    gone = pending if load.rng.random() < 0.3 else pending[: len(pending) // 2]
    load.log.add("released", records=gone)
    for _ in range(load.rng.choice((1, 1, 2))):  # a message that comes twice
        spool.acknowledge(gone)


def fleet_load(arguments: JsonDict) -> None:
    """Be a whole coordinator for `batches` turns; see `benchmarks.chaos_fleet`."""
    forks = spawner({"trainer": trainer_load})  # before anything of this process begins a thread
    load = Load(arguments)
    try:
        run_fleet(load, forks, arguments)
    except StartRefused:
        os._exit(REFUSED)
    except (StoreError, SpoolError) as error:
        if arguments["plan"]["fault"] not in DISK_FAULTS:
            raise
        # It says so in one line and ends; the same command goes on.
        print(f"the disk failed: {error}", file=sys.stderr)
        os._exit(DISK_FAILED)
    load.finish()


def look_at_fleet_load(arguments: JsonDict) -> None:
    """Look at the folder of a `fleet up` that has ended."""
    load = Load(arguments)
    look_at_fleet(load.log, load.root / "history.jsonl", load.disk)
    load.finish()


def main() -> None:
    """Fork children for `benchmarks.chaos_children.Children`."""
    # What a training imports when it first needs it: once here is cheaper than in every child.
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    loads = {
        "spool": spool_load,
        "state": state_load,
        "models": models_load,
        "observer": observer_load,
        # The file that the replay devices of `fleet_load` answer from.
        "recorded": lambda arguments: make_recorded(Path(arguments["recorded"])),
        "fleet": fleet_load,
        "look_at_fleet": look_at_fleet_load,
    }
    serve(loads, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
