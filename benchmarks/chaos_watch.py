"""What a coordinator promises, written down where it does, and what its folder holds. For `benchmarks.chaos`.

`Watched` wraps the functions that make things durable, in the process that it is installed in; `look` opens
state file, spools and store as every start does. `Observer` is a user of the fleet while everything around
dies, in a process that is no part of it: it loads champions and lets them score, reads the table, and asks
the API. What it has seen must be there ever after (`chaos_history.check`).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents.codec import record_from_json
from agents.records import Record
from agents.spool.disk_spool import Spool
from benchmarks.chaos_history import HistoryLog, read_history
from benchmarks.chaos_load import candidates, ids_of, stored_in, workloads
from benchmarks.chaos_models import look_at_models, name_of
from fleet.api.client import ask
from fleet.core.events import Event as FleetEvent
from fleet.core.events import JobCancelled, JobFinished, JobId, JobSubmitted, RequestEnded
from fleet.core.words import Limits
from fleet.engine.event_log import EventLog
from fleet.errors import FleetError, StoreFull
from fleet.json_types import JsonDict
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.state.contents import LATE
from fleet.state.questions import Questions
from fleet.store.store import Store

#: Seconds between two looks at champions, and looks at those between two at table and API.
_LOOK_SECS, _SELDOM = 0.05, 8
_SCORED = 8


class Observer:
    """Looks at a fleet from outside.

    Args:
        log: Where to write what is seen.
        disk: The fleet's folder.
    """

    def __init__(self, log: HistoryLog, disk: Path) -> None:
        self._log, self._disk = log, disk
        self._reader = RegistryReader(disk / "models")
        self._workload = workloads()[0]
        self._candidates = [pair[0] for pair in itertools.islice(candidates(self._workload), _SCORED)]
        self._serial = 0
        self._known: set[str] = set()
        self._has_read = False

    def look_at_champions(self) -> None:
        """Note changes of champions, and ask one of them as a program that starts now would."""
        try:
            changes = self._reader.history(self._serial)
            champions = self._reader.champions()
        except (FleetError, OSError) as error:
            self._log.add("seen", halves=(f"champions seen from outside: {error}",))
            return
        if changes:
            self._serial = changes[-1].serial
            self._log.add("seen", places={"registry": tuple(map(name_of, changes))})
        if champions:
            self._score(random.choice(sorted(champions)))

    def look_at_table(self) -> None:
        """Note new records."""
        try:
            fresh = set(stored_in(Store.read(self._disk / "store"))) - self._known
        except StoreFull:
            return  # a state file that nobody has open is no file to look at without some room
        except FleetError as error:
            if self._has_read:
                self._log.add("seen", wrong=(f"the table cannot be read: {error}",))
            return
        self._has_read = True
        self._known |= fresh
        self._log.add("seen", places={"store": tuple(fresh)})

    def look_at_api(self) -> None:
        """Note how many records the daemon tells of, if one answers."""
        with suppress(FleetError):  # it was killed while it answered, or stands still
            if (view := ask(self._disk / "fleet", "/v1/status")) is not None:
                self._log.add("seen", by="API", counted=view["store"]["records"])

    def _score(self, device_id: str) -> None:
        ranker = CandidateRanker(self._reader)
        champion = self._reader.champion(device_id)
        ranked = ranker.rank(self._workload, device_id, self._candidates)
        fault = ""
        if ranked is None:
            if champion != self._reader.champion(device_id):
                return  # it was taken back and pruned since
            fault = f"it does not score: {ranker.why_not(device_id)}"
        elif not all(math.isfinite(score) and score > 0 for score in ranked.scores):
            fault = f"it scores {ranked.scores}"
        halves = (f"champion {champion} seen from outside: {fault}",) if fault else ()
        self._log.add("seen", by="champion", halves=halves)


def observer_load(arguments: JsonDict) -> None:
    """Look until killed; `root` and `disk` as for any load."""
    log = HistoryLog(Path(arguments["root"]) / "history.jsonl")
    observer = Observer(log, Path(arguments["disk"]))
    for number in itertools.count():
        observer.look_at_champions()
        if number % _SELDOM == 0:
            observer.look_at_table()
            observer.look_at_api()
        time.sleep(_LOOK_SECS)


Real = Callable[..., Any]
#: What a training comes to.
_TRAININGS = {"TrainingStarted": "begun", "TrainingFinished": "finished"}


class Watched:
    """Writes down what the system promises, around the functions that do.

    Args:
        log: Where to write.
    """

    def __init__(self, log: HistoryLog) -> None:
        self._log = log
        #: Records that the store has, as soon as its turn is on the disk.
        self._taken: list[str] = []

    def install(self) -> None:
        """Wrap them, for good."""
        _wrap(Spool, "put", self._put)
        _wrap(Spool, "acknowledge", self._acknowledge)
        _wrap(Store, "take", self._take)
        _wrap(EventLog, "_keep", self._keep)
        _wrap(EventLog, "commit", self._commit)

    def _put(self, real: Real, spool: Spool, records: Sequence[Record], *more: Any) -> None:
        self._log.add("measured", records=ids_of(records))
        real(spool, records, *more)
        self._log.add("acknowledged", by="spool", records=ids_of(records))

    def _acknowledge(self, real: Real, spool: Spool, record_ids: Iterable[str]) -> None:
        names = tuple(record_ids)
        self._log.add("released", records=names)
        real(spool, names)

    def _take(self, real: Real, store: Store, records: Sequence[Record]) -> Any:
        # They came from agents, whose own word may not be known.
        self._log.add("measured", records=ids_of(records))
        fresh = real(store, records)
        self._taken += ids_of(records)
        return fresh

    def _keep(self, real: Real, event_log: EventLog, events: Sequence[FleetEvent]) -> None:
        # Before the disk, because a kill may come before anybody can say that it ended.
        names: list[str] = [event.job_id for event in events if isinstance(event, JobFinished | JobCancelled)]
        # A request that ends takes its jobs along.
        names += [event.request_id for event in events if isinstance(event, RequestEnded)]
        if names:
            self._log.add("ending", jobs=tuple(names))
        real(event_log, events)
        if events and self._taken:
            self._log.add("acknowledged", by="store", records=tuple(self._taken))
            self._taken.clear()

    def _commit(self, real: Real, event_log: EventLog) -> Any:
        done = real(event_log)
        for event in done[0] if done is not None else ():
            if isinstance(event, JobSubmitted):
                self._log.add("submitted", by=event.job.request_id, jobs=(event.job.job_id,))
            elif isinstance(event, JobFinished | JobCancelled):
                if event_log.state.job_state(event.job_id) is None:
                    self._log.add("ended", by="done", jobs=(event.job_id,))
            elif (name := type(event).__name__) in _TRAININGS:
                self._log.add("training", by=_TRAININGS[name])
        return done


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Put a function around a method: it gets the method first, then its arguments."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def call(*args: Any) -> Any:
        return around(real, *args)

    setattr(owner, name, call)


def look_at_fleet(log: HistoryLog, disk: Path) -> None:
    """Look at the folder of a `fleet up` that has ended; what only its coordinator promised is known."""
    names = _spooled(disk)
    changes, _ = look_at_models(disk / "models")
    log.add("measured", records=(*names, *changes))
    log.add("acknowledged", by="spool", records=names)
    look(log, disk)


def late_records(file: Questions) -> set[str]:
    """Ids of the results that a daemon has kept as late."""
    return {
        record_from_json(json.loads(line)["record"]).record_id
        for letter in file.letters()
        if letter.kind == LATE
        for line in letter.body.splitlines()
    }


def _spooled(disk: Path) -> tuple[str, ...]:
    """Records in the spools of all devices."""
    names: tuple[str, ...] = ()
    for folder in disk.glob("spool/*/"):
        with Spool(folder) as spool:
            names += ids_of(spool.pending())
    return names


def look(log: HistoryLog, disk: Path) -> None:
    """Write down all that is there, by the way that every start takes."""
    store = Store.open(disk / "store")
    try:
        stored = stored_in(store)
        late = late_records(store.state)
        state = EventLog(store.state, Limits(), time.time).state
    finally:
        store.abandon()  # what waits for the table waits on
    history = read_history(log.path)
    # The state forgets jobs that ended; that it ended one, the history says.
    ending = {name for event in history if event.kind == "ending" for name in event.jobs}
    states: dict[str, str] = {}
    for event in history:
        for job in event.jobs if event.kind == "submitted" else ():
            job_state = state.job_state(JobId(job))
            if job_state is not None or {job, event.by} & ending:
                states[job] = str(job_state or "done")
    counted = sum(sum(state.describe(one)["outcomes"].values()) for one in state.device_ids())
    if sum(state.job_counts().values()) != state.jobs_submitted:
        raise RuntimeError(f"{state.jobs_submitted} jobs submitted, but {state.job_counts()}")
    changes, halves = look_at_models(disk / "models")
    log.add(
        "look",
        places={"spool": _spooled(disk), "store": stored, "late": tuple(late), "registry": changes},
        states=states,
        counted=counted,
        halves=halves,
    )
