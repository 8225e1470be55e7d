"""What the children of `benchmarks.chaos` do until they are killed; the process that forks them runs this.

Each load opens its part as any process would after a crash, writes down in the history what it finds, and
goes on working; it never cleans up. The real spool, state file, registry and coordinator are used as they
are, with more frequent checkpoints and moves into the table, so that kills fall into those too. The arguments
are those of `chaos_life.Load`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

from agents.errors import SpoolError, SpoolFull
from agents.records import record_id_of
from agents.spool.disk_spool import Spool
from benchmarks.chaos_children import DISK_FAILED, REFUSED, Forks
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_fleet import StartRefused, run_fleet
from benchmarks.chaos_life import Load, ids_of, make_recorded, stored_in
from benchmarks.chaos_models import models_load, trainer_load
from benchmarks.chaos_watch import look_at_fleet, observer_load
from fleet.errors import StoreError, StoreFull
from fleet.json_types import JsonDict
from fleet.store.lanes import LaneSettings
from fleet.store.store import Store

#: Rows go on to the table, and its files are joined, often enough to be hit.
_LANES = LaneSettings(devices=1, rows_per_device=10)
_UPKEEP_EVERY = 4


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
        with contextlib.suppress(StoreFull):
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
            with contextlib.suppress(SpoolFull):
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


def fleet_load(arguments: JsonDict) -> None:
    """Be a whole coordinator for `batches` turns; see `benchmarks.chaos_fleet`."""
    forks = Forks(multiprocessing.get_context("fork"))  # before anything of this process begins a thread
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
    look_at_fleet(load.log, load.disk)
    load.finish()


#: What a child can do: functions of its arguments.
LOADS: dict[str, Callable[[JsonDict], None]] = {
    "spool": spool_load,
    "state": state_load,
    "models": models_load,
    "observer": observer_load,
    # The file that the replay devices of `fleet_load` answer from.
    "recorded": lambda arguments: make_recorded(Path(arguments["recorded"])),
    "fleet": fleet_load,
    "trainer": trainer_load,
    "look_at_fleet": look_at_fleet_load,
}
