"""What a user of the fleet sees while everything around dies: a process that is no part of it.

For `benchmarks.chaos`. It loads champions and lets them score, reads the table, and asks the API; what it has
seen must be there ever after (`chaos_history.check`).
"""

from __future__ import annotations

import itertools
import math
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.chaos_history import Event, HistoryLog
from benchmarks.chaos_life import stored_in
from benchmarks.chaos_models import name_of
from benchmarks.chaos_records import candidates, workloads
from fleet.api.client import ask
from fleet.errors import FleetError, StoreFull
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker
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
        self._log, self._models, self._store = log, disk / "models", disk / "store"
        self._daemon = disk / "fleet"
        self._reader = RegistryReader(self._models)
        self._workload = workloads()[0]
        self._candidates = [one for one, _ in itertools.islice(candidates(self._workload), _SCORED)]
        self._serial = 0
        self._known: set[str] = set()
        self._has_read = False

    def look_at_champions(self) -> None:
        """Note changes of champions, and ask one of them as a program that starts now would."""
        try:
            changes = self._reader.history(self._serial)
            champions = self._reader.champions()
        except (FleetError, OSError) as error:
            self._log.add(Event(kind="seen", halves=(f"champions seen from outside: {error}",)))
            return
        if changes:
            self._serial = changes[-1].serial
            self._log.add(Event(kind="seen", places={"registry": tuple(map(name_of, changes))}))
        if champions:
            self._score(random.choice(sorted(champions)))

    def look_at_table(self) -> None:
        """Note new records."""
        try:
            fresh = tuple(one for one in stored_in(Store.read(self._store)) if one not in self._known)
        except StoreFull:
            return  # a state file that nobody has open is no file to look at without some room
        except FleetError as error:
            if self._has_read:
                self._log.add(Event(kind="seen", wrong=(f"the table cannot be read: {error}",)))
            return
        self._has_read = True
        self._known.update(fresh)
        if fresh:
            self._log.add(Event(kind="seen", places={"store": fresh}))

    def look_at_api(self) -> None:
        """Note how many records the daemon tells of, if one answers."""
        try:
            view = ask(self._daemon, "/v1/status")
        except FleetError:
            return  # it was killed while it answered, or stands still
        if view is not None:
            self._log.add(Event(kind="seen", by="API", counted=view["store"]["records"]))

    def _score(self, device_id: str) -> None:
        ranker = CandidateRanker(self._reader)
        before = self._reader.champion(device_id)
        found = ranker.rank(self._workload, device_id, self._candidates)
        if found is None and before != self._reader.champion(device_id):
            return  # it was taken back and pruned since
        why = ""
        if found is None:
            why = ranker.why_not(device_id)
        elif not all(math.isfinite(one) and one > 0 for one in found.scores):
            why = f"it scores {found.scores}"
        told = (f"champion {before} seen from outside: {why}",) if found is None or why else ()
        self._log.add(Event(kind="seen", by="champion", halves=told))


def observer_load(arguments: dict[str, Any]) -> None:
    """Look until killed; `root` and `disk` as for any load."""
    root = Path(arguments["root"])
    observer = Observer(HistoryLog(root / "history.jsonl"), Path(arguments["disk"]))
    for number in itertools.count():
        observer.look_at_champions()
        if number % _SELDOM == 0:
            observer.look_at_table()
            observer.look_at_api()
        time.sleep(_LOOK_SECS)
