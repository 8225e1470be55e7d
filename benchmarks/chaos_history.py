"""What happened in a run with faults, and whether anything was lost: a log, its reader, and a pure checker.

`benchmarks.chaos` and its children write the log, one JSON line an event, into a file that no fault touches.
`check` reads the events and knows nothing of files, processes or records: only of names.

    measured      records exist: their agent or writer has made them
    acknowledged  `by` promised to keep records for good: `spool` (put returned), `store` (append returned),
                  `state` and `rows` (the end of a turn) or `registry` (its are changes of champions)
    released      records that their agent need not keep any longer: it was told that somebody else does
    submitted     jobs that were handed in
    ended         jobs that the system called done, quarantined or cancelled: `by` says which
    publication   the registry is about to make changes of champions: all of them or none
    guilty        from here on agents die of what they do, so a job may be quarantined
    trouble       something was done to the system that is no kill: `by` says what
    look          all that is there at one moment: records in store, spool and `late`, changes of champions in
                  the registry, the state of each job
    seen          what a process saw that is no part of the system: records in the store's table, changes of
                  champions, how many records the API told of
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

#: States of a job in which it is accounted for, and those that are final.
ENDED = frozenset({"done", "quarantined", "cancelled"})
KNOWN = ENDED | {"queued", "leased"}


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the log; which fields matter depends on `kind`."""

    kind: str
    #: Of `acknowledged`: who promised. Of `ended`: how.
    by: str = ""
    records: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    #: Of a `look`: what each place holds, with repetitions. A place that is missing was not looked at.
    places: dict[str, tuple[str, ...]] = {}
    #: Of a `look`: state of each job; None if nobody looked.
    states: dict[str, str] | None = None
    #: Of a `look`: how many results the system says it has counted. Of `seen`: records that it says it has.
    counted: int = 0
    #: Of a `look` and of `seen`: versions and champions that are not whole, one sentence each.
    halves: tuple[str, ...] = ()
    #: The same: whatever else should not be.
    wrong: tuple[str, ...] = ()

    def to_line(self) -> bytes:
        """The event as one line of JSON, fields that say nothing left out."""
        return msgspec.json.encode(self) + b"\n"


_LINE = msgspec.json.Decoder(Event)


class HistoryLog:
    """Appends events to a file by single writes, so that a kill tears at most the last line.

    Args:
        path: The file; made if missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # The fault points replace `os.write` later; what was there before is not one of them.
        self._write = os.write

    def add(self, kind: str, **values: Any) -> None:
        """Write one event: its kind, and other fields of `Event`."""
        self._write(self._descriptor, Event(kind=kind, **values).to_line())


def read_history(path: Path) -> list[Event]:
    """Read a log; lines torn by a kill say nothing and are left out."""
    events: list[Event] = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(msgspec.DecodeError):
            events.append(_LINE.decode(line))
    return events


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong with a history; all empty if nothing is."""

    #: Acknowledged records that a later look did not find.
    lost: tuple[str, ...] = ()
    #: Records found more than once in a place that counts, or results counted more often than they exist.
    duplicated: tuple[str, ...] = ()
    #: Submitted jobs that a later look did not find, or that went back from an end.
    unaccounted: tuple[str, ...] = ()
    #: Records found that nobody made.
    invented: tuple[str, ...] = ()
    #: Versions, champions and publications that were found in part.
    half_published: tuple[str, ...] = ()
    #: Jobs quarantined that nobody died of, and whatever else should not be.
    wrong: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self == Verdict()


def check(history: Sequence[Event]) -> Verdict:
    """Judge a history.

    The rules: what the store, the state file or the registry has acknowledged, or somebody outside has seen
    there, is there at every later look. What the spool has acknowledged is there until it is released, and at
    a look at spool and store in one of the places. No record is twice in one place. A submitted job is in one
    of the known states at every later look at jobs, an ended one stays as it ended, and none is quarantined
    before an agent died of what it did. Of a publication all changes are found or none.

    Args:
        history: Events in the order in which they happened.
    """
    checker = _Checker()
    for event in history:
        checker.take(event)
    return Verdict(**{name: tuple(faults) for name, faults in checker.faults.items()})


class _Checker:
    """What is known after some events, and what was wrong so far, each in the order in which it was found."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._promised: defaultdict[str, set[str]] = defaultdict(set)
        self._released: set[str] = set()
        self._submitted: dict[str, None] = {}
        self._ended: dict[str, str] = {}
        self._publications: list[frozenset[str]] = []
        #: Most records that the API told of.
        self._told = 0
        self._is_guilty = False
        #: By field of a verdict.
        self.faults: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def _add(self, kind: str, names: Iterable[str]) -> None:
        self.faults[kind].update(dict.fromkeys(names))

    def take(self, event: Event) -> None:
        """Take in one event."""
        self._made.update(event.records)
        self._add("half_published", event.halves)
        self._add("wrong", event.wrong)
        match event.kind:
            case "acknowledged":
                self._promised[event.by].update(event.records)
            case "released":
                self._released.update(event.records)
            case "submitted":
                self._submitted.update(dict.fromkeys(event.jobs))
            case "ended":
                self._ended.update(dict.fromkeys(event.jobs, event.by))
            case "publication":
                self._publications.append(frozenset(event.records))
            case "guilty":
                self._is_guilty = True
            case "seen":
                for place, names in event.places.items():
                    self._promised[place].update(names)
                self._told = max(self._told, event.counted)
            case "look":
                self._look(event)

    def _look(self, event: Event) -> None:
        places = {name: Counter(found) for name, found in event.places.items()}
        for name, found in places.items():
            missing = self._promised[name] - found.keys()
            if name == "spool":  # what it need not keep must be anywhere, if it was looked for
                is_all = "store" in places
                missing = missing.difference(*places.values()) if is_all else missing - self._released
            self._add("lost", sorted(missing))
            self._add("duplicated", (one for one, count in found.items() if count > 1))
            self._add("invented", (one for one in found if one not in self._made))
        if "store" in places:
            stored = len(event.places["store"])
            if event.counted > stored:
                self._add(
                    "duplicated", [f"{event.counted - stored} results counted beyond those in the store"]
                )
            if self._told > stored:
                self._add("lost", [f"{self._told - stored} records that the API told of"])
        if "registry" in places:
            for changes in self._publications:
                found_of = changes & places["registry"].keys()
                if found_of and found_of != changes:
                    self._add("half_published", [f"{len(found_of)} of {sorted(changes)}"])
        if event.states is not None:
            self._account(event.states)

    def _account(self, states: Mapping[str, str]) -> None:
        for job in self._submitted:
            state = states.get(job)
            if state not in KNOWN or (job in self._ended and state != self._ended[job]):
                self._add("unaccounted", [job])
            elif state in ENDED:
                self._ended[job] = state
            if state == "quarantined" and not self._is_guilty:
                self._add("wrong", [f"job {job} was quarantined, and no agent had died of it"])
