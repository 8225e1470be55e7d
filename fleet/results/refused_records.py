"""Records that the store refuses: set aside for people, so that none stops the coordinator or its job.

What is wrong with such a record does not go away by trying again: a number that is none, a layout of a newer
version, text where seconds belong. One JSON line a record with the reason, one file a delivery; nothing reads
them but people, and the oldest files go (`fleet.results.kept_files`). `fleet.results.record_sink` writes here
before it acknowledges, and goes on with the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agents.codec import record_to_json
from agents.errors import AgentError
from agents.records import Record, content_hash
from fleet.core.arrivals import Arrival
from fleet.errors import StoreError
from fleet.results.kept_files import KeptFiles
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns
from fleet.store.delta.schema import records_to_table

#: What a record that is none may raise wherever it is looked at.
FAULTS = (StoreError, AgentError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Records of one arrival that cannot be stored."""

    arrival: Arrival
    records: tuple[Record, ...]
    #: One for each.
    reasons: tuple[str, ...]


class RefusedRecords:
    """The folder of refused records.

    Args:
        folder: Made with the first of them.

    Attributes:
        files: The files.
    """

    def __init__(self, folder: Path) -> None:
        self.files = KeptFiles(folder)
        self._lines = {path: path.read_bytes().count(b"\n") for path in self.files.sizes}

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.files.folder

    @property
    def count(self) -> int:
        """How many there are, those of earlier starts included."""
        return sum(self._lines.values())

    def sift(self, arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[Refusal]]:
        """Part arrivals from what of them the store would refuse; the refused is on the disk on return.

        Returns:
            The arrivals with what can be stored, all of them and in their order, and the refusals.

        Raises:
            StoreFull: No room; it may be tried again, nothing is counted twice.
            StoreError: The disk failed.
        """
        good: list[Arrival] = []
        refusals: list[Refusal] = []
        for one in arrivals:
            faults = find_faults(one.records)
            kept = tuple(record for place, record in enumerate(one.records) if place not in faults)
            good.append(replace(one, records=kept) if faults else one)
            if faults:
                chosen = tuple(one.records[place] for place in sorted(faults))
                reasons = tuple(faults[place] for place in sorted(faults))
                refusals.append(Refusal(arrival=one, records=chosen, reasons=reasons))
        for refusal in refusals:
            self._keep(refusal)
        return good, refusals

    def _keep(self, refusal: Refusal) -> None:
        lease = refusal.arrival.lease
        about = {"job_id": lease.job_id, "epoch": lease.fencing_token} if lease is not None else {}
        lines = [
            json.dumps({**about, "reason": reason, "record": _shown(record)})
            for record, reason in zip(refusal.records, refusal.reasons, strict=True)
        ]
        # The same delivery makes the same file again.
        name = content_hash(*(f"{line}\n" for line in lines))[:16]
        path = self.folder / refusal.arrival.device_id / f"{name}.jsonl"
        if self.files.put("setting refused records aside", path, lines):
            self._lines[path] = len(lines)
            for gone in self._lines.keys() - self.files.sizes.keys():
                del self._lines[gone]


def find_faults(records: Sequence[Record]) -> dict[int, str]:
    """Find the records that the store would refuse, by halves: all but a few are good.

    Returns:
        By place: what is wrong with it.
    """
    found: dict[int, str] = {}
    waiting = [range(len(records))] if records else []
    while waiting:
        part = waiting.pop()
        fault = _fault([records[place] for place in part])
        if fault and len(part) == 1:
            found[part[0]] = fault
        elif fault:
            middle = len(part) // 2
            waiting += [part[:middle], part[middle:]]
    return found


def _fault(records: Sequence[Record]) -> str:
    """Why the store would refuse some records, all at once; empty where it would not."""
    try:
        check_flags(records)
        for name in {record.device_id for record in records}:
            check_name("device", name)
        check_columns(records_to_table(records))
    except FAULTS as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def check_flags(records: Sequence[Record]) -> None:
    """Ask each record what it is asked after it was stored: then it would be too late to refuse it.

    Raises:
        AgentError, ValueError, TypeError, AttributeError: One cannot say it.
    """
    for record in records:
        _ = record.record_id, record.is_quarantined, record.is_suspect


def record_ids(records: Sequence[Record]) -> tuple[str, ...]:
    """Ids of refused records, as far as they have any."""
    found: list[str] = []
    for record in records:
        try:
            found.append(record.record_id)
        except FAULTS:
            continue  # no spool can have kept it either
    return tuple(found)


def _shown(record: Record) -> object:
    """A record for people: as JSON where it is one, else as Python shows it."""
    try:
        value = record_to_json(record)
        json.dumps(value)
    except FAULTS:
        return repr(record)
    return value


__all__ = ["FAULTS", "Refusal", "RefusedRecords", "check_flags", "find_faults", "record_ids"]
