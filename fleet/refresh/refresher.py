"""Starts the process of a refresh, watches it, and tells the coordinator what came of it.

The coordinator calls `start` when its state asks for a training, `records_stored` when the store took some
in, and `poll` once a turn; none of them waits for anything. It must not know how a model is trained or
judged: it hands over a request and reads one line of JSON. Who serves which device it learns from the
registry itself, so that a rollback by hand is told like any other.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from agents.host.child_process import remove_discarded
from agents.records import DeviceId
from fleet.core.events import (
    DriftAlarm,
    Event,
    ModelPublished,
    ModelRolledBack,
    TrainingFailed,
    TrainingFinished,
    TrainingReason,
    TrainingStarted,
)
from fleet.json_types import Json, JsonDict
from fleet.models.freshness import Freshness
from fleet.models.registry import Registry
from fleet.refresh.refresh_child import RefreshChild, unfinished
from fleet.refresh.request import RefreshRequest, TrainingChoices
from transfer.model.kinds import is_extensible

#: Times that the process of one training may be killed before the next training begins anew.
_MOST_KILLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshSettings(TrainingChoices):
    """How refreshes run."""

    #: Tells the logical CPUs that a refresh which begins now stays on (`refresh_cores`); all where empty.
    cores: Callable[[], tuple[int, ...]] = tuple
    #: Whether idle time is for starts of meta-learning, which devices that arrive later are checked with.
    makes_starts: bool = False
    #: New records of a device before its champion is looked at again, and least seconds between two looks.
    watch_records: int = 256
    watch_secs: float = 120.0
    #: A training or a look that takes longer is ended and counts as failed.
    deadline_secs: float = 6 * 3600.0


class Refresher:
    """One refresh at a time, in a process of its own.

    Call it from one thread, which must live as long as its processes: they end with it. `folder` is its own,
    for requests and what killed ones leave. Waits go by the seconds of `clock`, stamps for people by the Unix
    seconds of `wall`. Whoever takes the events up gives them their time.
    """

    def __init__(
        self,
        registry: Registry,
        store: Path,
        folder: Path,
        settings: RefreshSettings | None = None,
        clock: Callable[[], float] = time.time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._store = store
        self._folder = folder
        remove_discarded(folder)
        self._settings = settings or RefreshSettings()
        self._clock, self._wall = clock, wall
        self._child: RefreshChild | None = None
        #: When the process was started, for people.
        self._since_wall = 0.0
        #: Times in a row that the process of a family's training was killed.
        self._kills: Counter[str] = Counter()
        #: Family of each device with new records, and how many: enough ask for a look at its champion.
        self._families: dict[DeviceId, str] = {}
        self._new_records: Counter[DeviceId] = Counter()
        self._next_look_at = 0.0
        #: Version that the alarm of a device was about.
        self._alarmed: dict[str, str] = {}
        #: By family, the version that was published and has no start of meta-learning yet.
        self._without_start: dict[str, str] = {}
        self._events: list[Event] = []
        #: Serial of the last change of champions that was turned into events; None before any was.
        self._last_serial: int | None = None
        self._last: JsonDict = {}
        self._last_look: JsonDict = {}

    def start(self, family: str, reasons: Sequence[TrainingReason | str]) -> None:
        """Train the model of a family; goes on where an unfinished training of the family was left.

        What is done in idle time is given up for it. `TrainingStarted` and then one of
        `TrainingFinished` and `TrainingFailed` come out of `poll`. Does nothing while a training runs.
        """
        if self._child is not None:
            if self._child.request.kind == "refresh":
                return
            self._child.end()
            self._child = None
        texts = [reason if isinstance(reason, str) else reason.text or str(reason.kind) for reason in reasons]
        leftover = unfinished(self._folder / family)
        fresh = self._request("refresh", family, self._folder / family)
        if leftover is not None and (leftover.kind, leftover.store, leftover.models) == (
            "refresh",
            fresh.store,
            fresh.models,
        ):
            # What it makes follows from the old request; where and how gently from the settings of today.
            fresh = replace(leftover, folder=fresh.folder, cores=fresh.cores, nice=fresh.nice)
        reasons_of_both = tuple(dict.fromkeys((*fresh.reasons, *texts)))
        try:
            self._launch(replace(fresh, reasons=reasons_of_both))
        except OSError as error:
            text = f"the training could not be started in {fresh.folder}: {error}"
            self._events.append(TrainingFailed(family=family, reason=text))
            return
        self._events.append(TrainingStarted(family=family))

    def stop(self, family: str) -> None:
        """End the training of a family for good; nothing of it comes out of `poll` any more."""
        child = self._child
        if child is None or (child.request.kind, child.request.family) != ("refresh", family):
            return
        self._child = None
        child.forget()
        self._events = [event for event in self._events if not isinstance(event, TrainingStarted)]

    def records_stored(self, device_id: DeviceId, family: str, count: int) -> None:
        """Count new records of a device: enough of them ask for a look at its champion."""
        self._families[device_id] = family
        self._new_records[device_id] += count

    def poll(self) -> list[Event]:
        """What happened since the last call. Cheap: a look at one process and at one file's date.

        The first call tells all champions that there are, the later ones what changed.
        """
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None
            self._ended(child)
        elif child is None and self._clock() >= self._next_look_at:
            self._look()
        self._tell_changes()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """End the process; a later `start` of its family goes on where it was."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    @property
    def view(self) -> JsonDict:
        """What is going on, JSON-ready."""
        request = None if self._child is None else self._child.request
        names = {None: "idle", "refresh": "training", "watch": "looking", "start": "preparing"}
        return {
            "state": names[None if request is None else request.kind],
            "family": "" if request is None else request.family,
            "since": None if request is None else self._since_wall,
            "reasons": [] if request is None else list(request.reasons),
            "epochs": self._child.epochs() if self._child is not None else {},
            "models": str(self._registry.folder.absolute()),
            "last": self._last,
            "last_look": self._last_look,
        }

    # ---- the process ----

    def _request(
        self, kind: Literal["refresh", "watch", "start"], family: str, folder: Path
    ) -> RefreshRequest:
        settings = self._settings
        return RefreshRequest(
            kind=kind,
            family=family,
            store=str(self._store),
            models=str(self._registry.folder),
            folder=str(folder),
            request_id=uuid.uuid4().hex,
            cores=settings.cores(),
            **settings.as_dict(),
        )

    def _launch(self, request: RefreshRequest) -> None:
        self._child = RefreshChild(request, self._settings.deadline_secs)
        self._since_wall = self._wall()

    def _ended(self, child: RefreshChild) -> None:
        answer = child.outcome()
        if child.request.kind == "watch":
            self._looked(answer, child)
        elif child.request.kind == "start":  # without one an arrival is checked against other strategies
            self._without_start.pop(child.request.family, None)
            child.forget()
        elif answer is None or "wants_records" in answer:
            self._failed(child, (answer or {}).get("wants_records", ""))
        else:
            self._last = {"at": self._wall(), "ok": True, **answer}
            # What was published comes before the end of the training that published it.
            self._tell_changes()
            self._events.append(_finished(answer, child.request.family))
            self._kills.pop(child.request.family, None)
            self._note_start(answer, child.request.family)
            child.forget()
        self._next_look_at = self._clock() + self._settings.watch_secs

    def _failed(self, child: RefreshChild, lack: str) -> None:
        """Note a training that made no model; `lack` says which records it lacks, if it ended for that."""
        family, reason = child.request.family, lack or child.failure()
        if child.was_late:
            reason += " (daemon.training_deadline_secs)"
        self._last = {"at": self._wall(), "ok": False, "family": family, "text": reason}
        self._events.append(
            TrainingFailed(family=family, reason=reason, is_hopeless=child.was_late, wants_records=bool(lack))
        )
        self._kills[family] += 1
        if not child.was_killed or self._kills[family] >= _MOST_KILLS:
            del self._kills[family]
            child.forget()

    # ---- fresh records ----

    def _look(self) -> None:
        """Start a look at the devices with enough new records, one family at a time."""
        least = self._settings.watch_records
        due = [device_id for device_id, count in self._new_records.items() if count >= least]
        served = [device_id for device_id in due if self._registry.champion(device_id) is not None]
        family = self._families[served[0]] if served else ""
        chosen = [device_id for device_id in served if self._families[device_id] == family]
        for device_id in {*chosen, *(set(due) - set(served))}:
            self._new_records[device_id] = 0
        if not chosen:
            self._make_start()
            return
        request = self._request("watch", family, self._folder / "watch")
        try:
            self._launch(replace(request, device_ids=tuple(map(str, chosen))))
        except OSError as error:
            self._last_look = {"at": self._wall(), "error": str(error)}
            self._next_look_at = self._clock() + self._settings.watch_secs

    def _note_start(self, answer: Json, family: str) -> None:
        """Note the version that a training has published, if devices are onboarded from such a model."""
        if self._settings.makes_starts:
            for kind, outcome in answer["challengers"].items():
                if outcome["published"] and is_extensible(kind):
                    self._without_start[family] = outcome["version"]

    def _make_start(self) -> None:
        """Begin with the start of a version, if one is due."""
        if not self._without_start:
            return
        family, version = next(iter(self._without_start.items()))
        request = self._request("start", family, self._folder / "start")
        try:
            self._launch(replace(request, version=version))
        except OSError:
            del self._without_start[family]

    def _looked(self, answer: JsonDict | None, child: RefreshChild) -> None:
        if answer is None:
            self._last_look = {"at": self._wall(), "error": child.failure()}
            return
        self._last_look = {"at": self._wall(), **answer}
        alarmed = self._alarmed
        for device_id, look in answer["looks"].items():
            if look["freshness"] != Freshness.STALE:
                alarmed.pop(device_id, None)
            elif alarmed.get(device_id) != look["version"]:
                alarmed[device_id] = look["version"]
                text = f"{look['version']}: {look['text']}"
                self._events.append(DriftAlarm(device_id=DeviceId(device_id), text=text))

    # ---- champions ----

    def _tell_changes(self) -> None:
        """Turn what changed in the registry into events; the first time, all that holds."""
        state = self._registry.state()
        if self._last_serial is None:
            self._publish((champion.version, champion.device_id) for champion in state.champions.values())
        elif state.serial > self._last_serial:
            for change in self._registry.history(self._last_serial):
                if change.kind == "published":
                    self._publish([(change.version, change.device_id)])
                if change.kind != "rolled_back":
                    continue
                self._events.append(
                    ModelRolledBack(
                        device_id=change.device_id,
                        version=change.version,
                        reason=change.reason,
                    )
                )
        # Less than before where somebody restored an older file: only what comes after that becomes an event.
        self._last_serial = state.serial

    def _publish(self, pairs: Iterable[tuple[str, DeviceId]]) -> None:
        for version, device_id in sorted(pairs):
            last = self._events[-1] if self._events else None
            if isinstance(last, ModelPublished) and last.version == version:
                self._events[-1] = structs.replace(last, device_ids=(*last.device_ids, device_id))
            else:
                self._events.append(ModelPublished(version=version, device_ids=(device_id,)))


def _finished(answer: Json, family: str) -> TrainingFinished:
    """What a refresh answered, as an event."""
    reasons: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for device_id, verdict in answer.get("verdicts", {}).items():
        reasons[bool(verdict["serves"])][device_id] = str(verdict["reason"])
    return TrainingFinished(
        family=family,
        version=str(answer.get("version", "")),
        text=str(answer.get("text", "")),
        serves=reasons[True],
        kept_champions=reasons[False],
    )
