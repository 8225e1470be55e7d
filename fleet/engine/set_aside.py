"""Records that are set aside for people: those of expired leases, and those that the store refuses.

What is wrong with a refused record does not go away by trying again: a number that is none, a layout of a
newer version, text where seconds belong. So `fleet.engine.record_sink` keeps it here, acknowledges it, and
goes on with the others. Nothing reads what is kept but people, so the oldest may go: without a bound a year
of them would fill the disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.codec import record_to_json
from agents.errors import AgentError
from agents.lease import LeaseTag
from agents.records import DeviceId, Record, content_hash
from fleet.core.arrivals import Arrival
from fleet.errors import StoreError
from fleet.state.contents import LATE, REFUSED
from fleet.state.state_file import StateFile
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns
from fleet.store.delta.schema import records_to_table

#: Deliveries of either kind, and their bytes. The newest one stays, however long it is.
MOST_ROWS, MOST_BYTES = 10_000, 64 << 20
#: Errors that a malformed record may raise wherever it is looked at.
FAULTS = (StoreError, AgentError, ValueError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Records of one arrival that cannot be stored."""

    arrival: Arrival
    records: tuple[Record, ...]
    #: One for each record.
    reasons: tuple[str, ...]


def sift(arrivals: Sequence[Arrival]) -> tuple[list[Arrival], list[Refusal]]:
    """Part arrivals from what of them the store would refuse.

    Returns:
        The arrivals with what can be stored, all of them and in their order, and the refusals.
    """
    good: list[Arrival] = []
    refusals: list[Refusal] = []
    for arrival in arrivals:
        faults = find_faults(arrival.records)
        storable = tuple(record for place, record in enumerate(arrival.records) if place not in faults)
        good.append(replace(arrival, records=storable) if faults else arrival)
        if faults:
            chosen = tuple(arrival.records[place] for place in sorted(faults))
            reasons = tuple(faults[place] for place in sorted(faults))
            refusals.append(Refusal(arrival=arrival, records=chosen, reasons=reasons))
    return good, refusals


def find_faults(records: Sequence[Record]) -> dict[int, str]:
    """Find the records that the store would refuse, by halves: all but a few are good.

    Returns:
        By place: what is wrong with it.
    """
    faults: dict[int, str] = {}
    waiting = [range(len(records))] if records else []
    while waiting:
        part = waiting.pop()
        fault = _fault([records[place] for place in part])
        if fault and len(part) == 1:
            faults[part[0]] = fault
        elif fault:
            middle = len(part) // 2
            waiting += [part[:middle], part[middle:]]
    return faults


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
    ids: list[str] = []
    for record in records:
        try:
            ids.append(record.record_id)
        except FAULTS:
            continue  # no spool can have kept it either
    return tuple(ids)


def printable(record: Record) -> object:
    """A record for people: as JSON where it is one, else as Python shows it."""
    try:
        value = record_to_json(record)
        json.dumps(value)
    except FAULTS:
        return repr(record)
    return value


class DeadLetters:
    """Deliveries that were set aside: the lines of each, a JSON object a record.

    Args:
        file: Keeps them.
        most_rows: Deliveries of either kind that are kept.
        most_bytes: Bytes of either kind that are kept.

    Attributes:
        path: The file.
        refused: How many refused records there are, those of earlier starts included.
        notes: What was deleted, one line each; whoever tells people clears it.
    """

    def __init__(self, file: StateFile, *, most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES) -> None:
        self._file, self.path = file, file.path
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self.refused = file.letter_rows(REFUSED)
        self.notes: list[str] = []

    def keep_late(self, device_id: DeviceId, lease: LeaseTag, records: Sequence[Record]) -> bool:
        """Keep late records of one lease; they are on the disk when this returns.

        The lease had expired, so the job may have been measured again elsewhere.

        Returns:
            Whether they are new here.

        Raises:
            StoreFull: No room; none of them was kept.
            StoreError: The disk failed.
        """
        delivery = content_hash(lease.job_id, *(record.record_id for record in records))[:12]
        about = {"job_id": lease.job_id, "fencing_token": lease.fencing_token}
        lines = [json.dumps({**about, "record": record_to_json(record)}) for record in records]
        return self._keep(LATE, f"{device_id}/{lease.fencing_token:08d}-{delivery}", lines)

    def keep_refused(self, refusal: Refusal) -> None:
        """Keep refused records with their reasons; they are on the disk when this returns.

        Raises:
            StoreFull: No room; it may be tried again, nothing is counted twice.
            StoreError: The disk failed.
        """
        lease = refusal.arrival.lease
        about = {"job_id": lease.job_id, "fencing_token": lease.fencing_token} if lease is not None else {}
        lines = [
            json.dumps({**about, "reason": reason, "record": printable(record)})
            for record, reason in zip(refusal.records, refusal.reasons, strict=True)
        ]
        name = content_hash(*(f"{line}\n" for line in lines))[:16]
        self._keep(REFUSED, f"{refusal.arrival.device_id}/{name}", lines)
        self.refused = self._file.letter_rows(REFUSED)

    def _keep(self, kind: str, name: str, lines: Sequence[str]) -> bool:
        with self._file.turn() as turn:
            is_new, gone = turn.keep_letter(
                *(kind, name, len(lines), "".join(f"{line}\n" for line in lines).encode()),
                most_rows=self._most_rows,
                most_bytes=self._most_bytes,
            )
        if gone:
            self.notes.append(
                f"the {gone} oldest deliveries of {kind} results in {self.path} were deleted: at most "
                f"{self._most_rows} and {self._most_bytes / 2**20:g} MiB are kept for people to look at"
            )
        return is_new
