"""What the children of `benchmarks.chaos` do until they are killed; the process that forks them runs this.

Each load opens its part as any process would after a crash, writes down in the history what it finds, and
goes on working; it never cleans up. The real spool, store, state file and coordinator are used as they are,
with more frequent checkpoints and moves into the table, so that kills fall into those too. The arguments are
those of `chaos_life.Load`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agents.errors import SpoolError, SpoolFull
from agents.records import Record
from agents.spool.disk_spool import Spool
from benchmarks.chaos_children import DISK_FAILED, REFUSED, Spawner, serve
from benchmarks.chaos_faults import DISK_FAULTS
from benchmarks.chaos_fleet import StartRefused, run_fleet
from benchmarks.chaos_handover import agent_load, coordinator_load
from benchmarks.chaos_history import Event
from benchmarks.chaos_life import LANES, Load, ids_of, stored_in
from benchmarks.chaos_models import models_load
from benchmarks.chaos_observer import observer_load
from benchmarks.chaos_records import make_recorded
from benchmarks.chaos_state import state_load
from benchmarks.chaos_trainer import trainer_load
from benchmarks.chaos_watch import look_at_fleet
from fleet.errors import StoreError, StoreFull
from fleet.store.store import Store

_UPKEEP_EVERY = 7
#: Refusals of a full disk before there is room again, and batches after that.
_REFUSALS, _AFTER_ROOM = 4, 8
_IMPORTED_LATE = (
    "torch._dynamo",
    "torch.utils.tensorboard",
    "xgboost",
    "transfer.adapt.kept",
    "fleet.refresh.freshness_look",
    "fleet.models.training",
    "fleet.refresh.run",
)
#: A full disk is filled up in pieces of this size.
_BALLAST_PIECE_BYTES = 1 << 14


def spool_load(arguments: dict[str, Any]) -> None:
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

    load.work_off(lambda: _spool(load), SpoolError, look, take)


def _spool(load: Load) -> Spool:
    return Spool(load.disk / "spool")


def _put(spool: Spool, records: list[Record]) -> None:
    while True:
        with contextlib.suppress(SpoolFull):
            return spool.put(records)


def _acknowledge_some(load: Load, spool: Spool) -> None:
    pending = ids_of(spool.pending())
    gone = pending if load.rng.random() < 0.3 else pending[: len(pending) // 2]
    load.log.add(Event(kind="released", records=gone))
    spool.acknowledge(gone)


def store_load(arguments: dict[str, Any]) -> None:
    """Append batches, of which some rows go on to the table soon; upkeep and a flush now and then."""
    load = Load(arguments)

    def look(store: Store) -> None:
        load.log.add(Event(kind="look", places={"store": stored_in(store)}))

    def take(store: Store, batch: int) -> None:
        records = load.measured(batch)
        with contextlib.suppress(StoreFull):
            store.append(records)
            load.log.add(Event(kind="acknowledged", by="store", records=ids_of(records)))
        if batch % _UPKEEP_EVERY == _UPKEEP_EVERY - 1:
            with contextlib.suppress(StoreFull):
                store.flush()
                store.upkeep(retention_hours=0)

    load.work_off(lambda: Store.open(load.disk / "store", settings=LANES), StoreError, look, take)


def look_load(arguments: dict[str, Any]) -> None:
    """Open spool and store, write down what both hold."""
    load = Load(arguments)
    with Spool(load.disk / "spool") as spool, Store.open(load.disk / "store") as store:
        _look(load, spool, store)
    load.finish()


def full_load(arguments: dict[str, Any]) -> None:
    """Fill a small file system to the brim with spool and store, make room, go on.

    `disk` is on it; a ballast of `ballast_bytes` takes most of it until there were some refusals.
    """
    load = Load(arguments)
    ballast, freed = load.disk / "ballast", load.root / "freed"
    if not freed.exists() and not ballast.exists():
        ballast.write_bytes(bytes(arguments["ballast_bytes"]))
    try:
        _fill(load)
    except (SpoolFull, StoreFull):
        # So full that it does not even open: it must with some room.
        if freed.exists():
            raise
        _make_room(ballast, freed)
        _fill(load)
    load.finish()


def _fill(load: Load) -> None:
    ballast, freed = load.disk / "ballast", load.root / "freed"
    refusals = left = 0
    with (
        _spool(load) as spool,
        Store.open(load.disk / "store") as store,
    ):
        _look(load, spool, store)
        for batch in load.batches:
            records = load.measured(batch)
            try:
                spool.put(records)
                load.log.add(Event(kind="acknowledged", by="spool", records=ids_of(records)))
                _hand_over(load, spool, store)
            except (SpoolFull, StoreFull):
                if freed.exists():
                    raise
                _look(load, spool, store)
                refusals += 1
                if refusals == _REFUSALS:
                    _make_room(ballast, freed)
            left += freed.exists()
            if left > _AFTER_ROOM:
                break
        else:
            raise RuntimeError("the disk never was full: give it more batches")
        _hand_over(load, spool, store)
        _look(load, spool, store)


def _make_room(ballast: Path, freed: Path) -> None:
    ballast.unlink(missing_ok=True)
    freed.touch()


def _look(load: Load, spool: Spool, store: Store) -> None:
    load.log.add(Event(kind="look", places={"spool": ids_of(spool.pending()), "store": stored_in(store)}))


def _hand_over(load: Load, spool: Spool, store: Store) -> None:
    waiting = spool.pending()
    store.append(waiting)
    load.log.add(Event(kind="acknowledged", by="store", records=ids_of(waiting)))
    load.log.add(Event(kind="released", records=ids_of(waiting)))
    spool.acknowledge(ids_of(waiting))


def recorded_load(arguments: dict[str, Any]) -> None:
    """Make the file `recorded` that the replay devices of `fleet_load` answer from."""
    make_recorded(Path(arguments["recorded"]))


def fleet_load(arguments: dict[str, Any]) -> None:
    """Be a whole coordinator for `batches` turns; see `benchmarks.chaos_fleet`."""
    spawner = Spawner({"trainer": trainer_load})  # before anything of this process begins a thread
    load = Load(arguments)
    try:
        run_fleet(load, spawner, arguments)
    except StartRefused:
        os._exit(REFUSED)
    except (StoreError, SpoolError) as error:
        if arguments["plan"]["fault"] not in DISK_FAULTS and not arguments["has_small_disk"]:
            raise
        # It says so in one line and ends; the same command goes on.
        print(f"the disk failed: {error}", file=sys.stderr)
        os._exit(DISK_FAILED)
    load.finish()


def disk_load(arguments: dict[str, Any]) -> None:
    """Make a folder `disk` what `what` says: a `small` file system of `bytes`, then `full` or `read_only`.

    Then it is `as before`, and `gone` in the end. Files that are open keep a file system from becoming
    read-only as a whole, so a read-only view is put over it: whatever is opened from then on is in that.
    """
    disk = Path(arguments["disk"])
    ballast = disk / "ballast"
    match arguments["what"]:
        case "small":
            _run("mount", "-t", "tmpfs", "-o", f"size={arguments['bytes']}", "none", disk)
        case "full":
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
                while True:
                    stream.write(bytes(_BALLAST_PIECE_BYTES))
        case "read_only":
            view = disk.with_name("view")  # where nobody can have a file open before it is read-only
            view.mkdir(exist_ok=True)
            _run("mount", "--bind", disk, view)
            _run("mount", "-o", "remount,bind,ro", view)
            _run("mount", "--bind", view, disk)
            _run("umount", view)
        case "as before":
            if os.statvfs(disk).f_flag & os.ST_RDONLY:
                _run("umount", "--lazy", disk)
            ballast.unlink(missing_ok=True)
        case "gone":
            _run("umount", "--lazy", disk)
        case other:
            raise ValueError(other)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def look_at_fleet_load(arguments: dict[str, Any]) -> None:
    """Look at the folder of a `fleet up` that has ended."""
    load = Load(arguments)
    look_at_fleet(load.log, load.root / "history.jsonl", load.disk)
    load.finish()


def main() -> None:
    """Fork children for `benchmarks.chaos_children.Children`."""
    # What a training imports when it first needs it: once here is cheaper than in every child.
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loads = {
        "spool": spool_load,
        "store": store_load,
        "state": state_load,
        "models": models_load,
        "agent": agent_load,
        "coordinator": coordinator_load,
        "look": look_load,
        "observer": observer_load,
        "full": full_load,
        "recorded": recorded_load,
        "fleet": fleet_load,
        "disk": disk_load,
        "look_at_fleet": look_at_fleet_load,
    }
    serve(loads, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
