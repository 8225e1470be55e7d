"""Which records the store refuses, and why: so that none stops the coordinator or its job.

What is wrong with such a record does not go away by trying again: a number that is none, a layout of a newer
version, text where seconds belong. `fleet.results.record_sink` sets them aside
(`fleet.results.dead_letters`), acknowledges them, and goes on with the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.codec import record_to_json
from agents.errors import AgentError
from agents.records import Record
from fleet.core.arrivals import Arrival
from fleet.errors import StoreError
from fleet.store.catalog import check_name
from fleet.store.delta.columns import check_columns
from fleet.store.delta.schema import records_to_table

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
