"""What the children of `benchmarks.chaos` do until they are killed; the process that forks them runs this.

Each load opens its part as any process would after a crash, writes down in the history what it finds, and
goes on working; it never cleans up. The real spool, store, intake, journal and coordinator are used as they
are, with smaller segments and more frequent merges, so that kills fall into those too. The arguments are
those of `chaos_life.Load`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from agents.errors import SpoolFull
from agents.spool import Spool
from benchmarks.chaos_children import REFUSED, serve
from benchmarks.chaos_fleet import StartRefused, make_recorded, run_fleet
from benchmarks.chaos_handover import agent_load, coordinator_load
from benchmarks.chaos_history import Event
from benchmarks.chaos_life import BATCH, SEGMENT_BYTES, Load, ids_of, stored_in
from benchmarks.chaos_watch import look_at_fleet
from fleet.daemon.intake import Intake, IntakeSettings
from fleet.daemon.journal import Journal
from fleet.errors import StoreError, StoreFull
from fleet.store.store import Store

_COMPACT_BYTES, _UPKEEP_EVERY = 200, 7
#: Refusals of a full disk before there is room again, and batches after that.
_REFUSALS, _AFTER_ROOM = 4, 8


def spool_load(arguments: dict[str, Any]) -> None:
    """Put batches, acknowledge some of the pending ones."""
    load = Load(arguments)
    with _opened_spool(load) as spool:
        load.log.add(Event(kind="look", places={"spool": ids_of(spool.pending())}))
        for batch in load.batches:
            records = load.measured(batch)
            while True:
                with contextlib.suppress(SpoolFull):
                    spool.put(records)
                    break
            load.log.add(Event(kind="acknowledged", by="spool", records=ids_of(records)))
            if batch % 3 == 2:
                pending = ids_of(spool.pending())
                gone = pending if load.rng.random() < 0.3 else pending[: len(pending) // 2]
                load.log.add(Event(kind="released", records=gone))
                spool.acknowledge(gone)
    load.finish()


def _opened_spool(load: Load) -> Spool:
    while True:
        with contextlib.suppress(SpoolFull):
            return Spool(load.disk / "spool", segment_bytes=SEGMENT_BYTES)


def store_load(arguments: dict[str, Any], settings: IntakeSettings | None = None) -> None:
    """Append batches, through an intake if there are settings for one; upkeep now and then."""
    load = Load(arguments)
    batches = iter(load.batches)
    batch = next(batches, None)
    is_first = True
    while batch is not None or is_first:
        # A full disk may keep the store from opening, and a commit may end in an unknown state: once more.
        with contextlib.suppress(StoreError), Store.open(load.disk / "store") as store:
            load.log.add(Event(kind="look", places={"store": stored_in(store)}))
            is_first = False
            keeper = store if settings is None else Intake(store, settings)
            while batch is not None:
                records = load.measured(batch)
                with contextlib.suppress(StoreFull):
                    keeper.append(records)
                    load.log.add(Event(kind="acknowledged", by="store", records=ids_of(records)))
                if batch % _UPKEEP_EVERY == _UPKEEP_EVERY - 1:
                    with contextlib.suppress(StoreFull):
                        store.upkeep(retention_hours=0)
                batch = next(batches, None)
            if settings is not None:
                keeper.close()
    load.finish()


def intake_load(arguments: dict[str, Any]) -> None:
    """As `store_load`, through the log that makes many devices' records durable at once."""
    store_load(arguments, IntakeSettings(devices_per_commit=1, commit_every_secs=0, wait_secs=0.02))


def journal_load(arguments: dict[str, Any]) -> None:
    """Add groups of events; compact now and then."""
    load = Load(arguments)
    batches = iter(load.batches)
    batch = next(batches, None)
    is_first = True
    while batch is not None or is_first:
        with contextlib.suppress(StoreError):  # after a full disk at opening, or an unknown end, once more
            journal = Journal(load.disk / "journal", compact_bytes=_COMPACT_BYTES)
            known = [*journal.snapshot.get("known", ()), *(event["name"] for event in journal.events())]
            load.log.add(Event(kind="look", places={"journal": tuple(known)}))
            is_first = False
            while batch is not None:
                names = tuple(f"{batch}-{number}" for number in range(BATCH))
                load.log.add(Event(kind="measured", records=names))
                with contextlib.suppress(StoreFull):
                    journal.append([{"name": name} for name in names])
                    known += names
                    load.log.add(Event(kind="acknowledged", by="journal", records=names))
                batch = next(batches, None)
                if journal.is_long:
                    with contextlib.suppress(StoreFull):
                        journal.compact({"known": known})
    load.finish()


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
        Spool(load.disk / "spool", segment_bytes=SEGMENT_BYTES) as spool,
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
    load = Load(arguments)
    try:
        run_fleet(
            log=load.log,
            history=load.root / "history.jsonl",
            disk=load.disk,
            recorded=Path(arguments["recorded"]),
            turns=len(load.batches),
            rng=load.rng,
            to_the_end=arguments["to_the_end"],
        )
    except StartRefused:
        os._exit(REFUSED)
    load.finish()


def look_at_fleet_load(arguments: dict[str, Any]) -> None:
    """Look at the folder of a `fleet up` that has ended."""
    load = Load(arguments)
    look_at_fleet(load.log, load.root / "history.jsonl", load.disk)
    load.finish()


def main() -> None:
    """Fork children for `benchmarks.chaos_children.Children`."""
    serve(
        {
            "spool": spool_load,
            "store": store_load,
            "intake": intake_load,
            "journal": journal_load,
            "agent": agent_load,
            "coordinator": coordinator_load,
            "look": look_load,
            "full": full_load,
            "recorded": recorded_load,
            "fleet": fleet_load,
            "look_at_fleet": look_at_fleet_load,
        }
    )


if __name__ == "__main__":
    main()
