"""What the children of `benchmarks.chaos` do until they are killed; the process that forks them runs this.

Each load opens its part as any process would after a crash, writes down in the history what it finds, and
goes on working; it never cleans up. The real spool, state file, registry and coordinator are used as they
are, with more frequent checkpoints and moves into the table, so that kills fall into those too. The arguments
are those of `chaos_life.Load`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

from agents.errors import SpoolError, SpoolFull
from agents.records import Record
from agents.spool.disk_spool import Spool
from benchmarks.chaos_children import DISK_FAILED, REFUSED, serve, spawner
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_fleet import StartRefused, run_fleet
from benchmarks.chaos_history import Event
from benchmarks.chaos_life import Load, ids_of
from benchmarks.chaos_models import models_load, trainer_load
from benchmarks.chaos_records import make_recorded
from benchmarks.chaos_state import state_load
from benchmarks.chaos_watch import look_at_fleet, observer_load
from fleet.errors import StoreError
from fleet.json_types import JsonDict

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
        load.log.add(Event(kind="look", places={"spool": ids_of(spool.pending())}))

    def take(spool: Spool, batch: int) -> None:
        records = load.measured(batch)
        _put(spool, records)
        load.log.add(Event(kind="acknowledged", by="spool", records=ids_of(records)))
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
    load.log.add(Event(kind="released", records=gone))
    for _ in range(load.rng.choice((1, 1, 2))):  # a message that comes twice
        spool.acknowledge(gone)


def recorded_load(arguments: JsonDict) -> None:
    """Make the file `recorded` that the replay devices of `fleet_load` answer from."""
    make_recorded(Path(arguments["recorded"]))


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
        "recorded": recorded_load,
        "fleet": fleet_load,
        "look_at_fleet": look_at_fleet_load,
    }
    serve(loads, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
