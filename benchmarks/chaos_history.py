"""What happened in a run with faults, and whether anything was lost: a log, its reader, and a pure checker.

`benchmarks.chaos` and its children write the log, one JSON line an event, into a file that no fault touches.
`check` reads the events and knows nothing of files, processes or records: only of names.

    measured      records exist: their agent or writer has made them
    acknowledged  `by` promised to keep records for good: `spool` (put returned), `store` (append returned) or
                  `journal` (the same; its records are events)
    released      records that their agent need not keep any longer: it was told that somebody else does
    submitted     jobs that were handed in
    ended         jobs that the system called done, quarantined or cancelled: `by` says which
    look          all that is there at one moment: records in store, spool and `late`, the state of each job
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: States of a job in which it is accounted for, and those that are final.
ENDED = frozenset({"done", "quarantined", "cancelled"})
KNOWN = ENDED | {"queued", "leased"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log; which fields matter depends on `kind`."""

    kind: str
    #: Of `acknowledged`: who promised. Of `ended`: how.
    by: str = ""
    records: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    #: Of a `look`: what each place holds, with repetitions. A place that is missing was not looked at.
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Of a `look`: state of each job; None if nobody looked.
    states: Mapping[str, str] | None = None
    #: Of a `look`: how many results the system says it has counted; None if it does not say.
    counted: int | None = None

    def to_line(self) -> str:
        """The event as one line of JSON, fields that say nothing left out."""
        said = {name: value for name, value in asdict(self).items() if value not in ("", (), None)}
        return json.dumps(said, separators=(",", ":")) + "\n"


def event_from_json(value: Mapping[str, Any]) -> Event:
    """Read a line again."""
    return Event(
        kind=value["kind"],
        by=value.get("by", ""),
        records=tuple(value.get("records", ())),
        jobs=tuple(value.get("jobs", ())),
        places={name: tuple(found) for name, found in value.get("places", {}).items()},
        states=value.get("states"),
        counted=value.get("counted"),
    )


class HistoryLog:
    """Appends events to a file by single writes, so that a kill tears at most the last line.

    Args:
        path: The file; made if missing.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # The fault points replace `os.write` later; what was there before is not one of them.
        self._write = os.write

    def add(self, event: Event) -> None:
        """Write one event."""
        self._write(self._descriptor, event.to_line().encode())

    def note(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Write what no checker reads, but who looks for the cause of a verdict."""
        lines = "".join(json.dumps({"kind": "note", **value}) + "\n" for value in values)
        self._write(self._descriptor, lines.encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_history(path: Path) -> list[Event]:
    """Read a log; lines torn by a kill say nothing and are left out."""
    return list(_events(path.read_text().splitlines())) if path.exists() else []


def _events(lines: Iterable[str]) -> Iterator[Event]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if value["kind"] != "note":
            yield event_from_json(value)


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.duplicated or self.unaccounted or self.invented)


def check(history: Sequence[Event]) -> Verdict:
    """Judge a history.

    The rules: what the store, or the journal, has acknowledged is there at every later look. What the spool
    has acknowledged is there until it is released, and at a look at spool and store in one of the places. No
    record is twice in one place. A submitted job is in one of the known states at every later look at jobs,
    and an ended one stays as it ended.

    Args:
        history: Events in the order in which they happened.
    """
    made: set[str] = set()
    promised: defaultdict[str, set[str]] = defaultdict(set)
    released: set[str] = set()
    submitted: dict[str, None] = {}
    ended: dict[str, str] = {}
    lost: dict[str, None] = {}
    duplicated: dict[str, None] = {}
    unaccounted: dict[str, None] = {}
    invented: dict[str, None] = {}
    for event in history:
        made.update(event.records)
        if event.kind == "acknowledged":
            promised[event.by].update(event.records)
        elif event.kind == "released":
            released.update(event.records)
        elif event.kind == "submitted":
            submitted.update(dict.fromkeys(event.jobs))
        elif event.kind == "ended":
            ended.update(dict.fromkeys(event.jobs, event.by))
        elif event.kind == "look":
            places = {name: Counter(found) for name, found in event.places.items()}
            for name, found in places.items():
                missing = promised[name] - found.keys()
                if name == "spool":  # what it need not keep must be anywhere, if it was looked for
                    missing = (
                        missing.difference(*places.values()) if "store" in places else missing - released
                    )
                lost.update(dict.fromkeys(sorted(missing)))
            for found in places.values():
                duplicated.update(dict.fromkeys(name for name, count in found.items() if count > 1))
                invented.update(dict.fromkeys(name for name in found if name not in made))
            if event.counted is not None and event.counted > len(places.get("store", ())):
                over = event.counted - len(places.get("store", ()))
                duplicated[f"{over} results counted beyond those in the store"] = None
            if event.states is not None:
                for job in submitted:
                    state = event.states.get(job)
                    if state not in KNOWN or (job in ended and state != ended[job]):
                        unaccounted[job] = None
                    elif state in ENDED:
                        ended[job] = state
    return Verdict(
        lost=tuple(lost),
        duplicated=tuple(duplicated),
        unaccounted=tuple(unaccounted),
        invented=tuple(invented),
    )


__all__ = ["Event", "HistoryLog", "Verdict", "check", "event_from_json", "read_history"]
