"""One candidate: its raw repeats by device, its schedule next to the best one, a script to build it again.

Called by `fleet.dashboard.dashboard`. Reads the rows of the devices that have measured the workload.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from agents.codec import protocol_from_json
from agents.errors import AgentError
from agents.records import Candidate, DeviceId, Outcome, Protocol, WorkloadId
from fleet.comparison.device_rows import PATH, device_rows
from fleet.comparison.schedules import schedule_lines, side_by_side
from fleet.comparison.series import object_of
from fleet.coverage.reproducer import MeasuredOn, reproducer
from fleet.errors import FleetError, StoreError
from fleet.json_types import Json, JsonDict
from fleet.store.reader import StoreReader

#: Devices whose rows are looked at, and records that are shown; the page notes if there are more.
MOST_DEVICES, MOST_RECORDS = 4, 200
_NARROW = ("outcome", "latency_secs", "candidate_id", PATH)
_RECORD_FIELDS = (
    *("outcome", "latency_secs", "run_secs", "warmup_secs", "number", "origin", "attempt", "measured_at"),
    *("error", "environment_id", "model_version"),
)
_WIDE = ("candidate_id", *_RECORD_FIELDS, "quality", "protocol", "dialect", "trace")


class CandidateError(FleetError):
    """A candidate that the store does not have."""


def candidate_view(
    reader: StoreReader, workload_id: str, candidate_id: str, devices: Sequence[str], best_on: str = ""
) -> JsonDict:
    """All that is known of one candidate.

    Args:
        reader: The store.
        workload_id: Its workload.
        candidate_id: The candidate.
        devices: Devices that have measured the workload; the first ones are looked at.
        best_on: Device whose best candidate it is compared with; the first that has measured it if empty.

    Returns:
        `records` (with `device_id` and raw repeats) and `records_of`, `devices_seen` and `devices_of`,
        `dialect`, `best` (`candidate_id`, `device_id`, `secs`, `mine_secs`), `schedules` (`side_by_side`),
        and `script` with `why_no_script`.

    Raises:
        CandidateError: None of the devices has measured it.
        StoreError: The store cannot be read.
    """
    looked = list(devices[:MOST_DEVICES])
    is_of_workload = pc.field("workload_id") == workload_id
    narrow = device_rows(reader, _NARROW, looked, where=is_of_workload)
    paths: dict[str, set[str]] = {}
    for name, batch in narrow.items():
        mine_rows = batch.filter(pc.equal(batch.column("candidate_id"), candidate_id))
        if mine_rows.num_rows:
            paths[name] = set(mine_rows.column(PATH).to_pylist())
    if not paths:
        raise CandidateError(
            f"no record of candidate {candidate_id!r:.80} of workload {workload_id!r:.80} on "
            f"{len(looked)} of the {len(devices)} devices that measured that workload"
        )
    best = {str(name): fastest for name, batch in narrow.items() if (fastest := _fastest(batch))}
    device_id = best_on if best_on in best else next(iter(paths))
    other = best.get(device_id)
    other_id = other["candidate_id"] if other else candidate_id
    # The wide columns are read of the files alone that hold one of the two.
    files = set[str]().union(*paths.values(), {other[PATH]} if other else ())
    wide = device_rows(reader, _WIDE, looked, where=is_of_workload, paths=files)
    records: list[JsonDict] = []
    traces: dict[str, Candidate] = {}
    for name, batch in sorted(wide.items()):
        is_one = pc.is_in(batch.column("candidate_id"), pa.array([candidate_id, other_id]))
        for row in batch.filter(is_one).to_pylist():
            trace, dialect, row_candidate = row.pop("trace"), row.pop("dialect"), row["candidate_id"]
            traces[row_candidate] = Candidate(
                workload_id=WorkloadId(workload_id), trace=trace, dialect=dialect
            )
            if row_candidate == candidate_id:
                records.append({"device_id": str(name), **row})
    mine = traces[candidate_id]
    other_lines = schedule_lines(traces[other_id].trace) if other else []
    script, why = _script(reader, mine, records)
    return {
        "workload_id": workload_id,
        "candidate_id": candidate_id,
        "records": [_record_row(record) for record in records[:MOST_RECORDS]],
        "records_of": len(records),
        "devices_seen": len(looked),
        "devices_of": len(devices),
        "dialect": mine.dialect,
        "best": other and _beside(records, device_id, other),
        "schedules": side_by_side(schedule_lines(mine.trace), other_lines),
        "script": script,
        "why_no_script": why,
    }


def _fastest(batch: pa.RecordBatch) -> JsonDict | None:
    """The row of the fastest record; None if none ran."""
    is_ok = pc.equal(batch.column("outcome"), Outcome.OK.value)
    ok = batch.filter(pc.and_(is_ok, pc.is_valid(batch.column("latency_secs"))))
    rows: list[JsonDict] = ok.take(pc.sort_indices(ok.column("latency_secs"))).slice(0, 1).to_pylist()
    return rows[0] if rows else None


def _beside(records: Sequence[Json], device_id: str, other: Json) -> JsonDict:
    mine = [record["latency_secs"] for record in records if record["device_id"] == device_id]
    return {
        "candidate_id": other["candidate_id"],
        "device_id": device_id,
        "secs": other["latency_secs"],
        "mine_secs": min((secs for secs in mine if secs), default=None),
    }


def _script(reader: StoreReader, mine: Candidate, records: Sequence[Json]) -> tuple[str, str]:
    """The reproducer, or why there is none."""
    measurements = (
        MeasuredOn(device_id=DeviceId(row["device_id"]), origin=str(row["origin"]), protocol=_protocol(row))
        for row in records
    )
    try:
        return reproducer(reader, mine, measurements), ""
    except StoreError as error:
        return "", str(error)


def _protocol(record: Json) -> Protocol:
    try:
        return protocol_from_json(json.loads(record["protocol"]))
    except (AgentError, ValueError, TypeError):
        return Protocol()


def _record_row(record: Json) -> JsonDict:
    quality = object_of(record["quality"])
    return {
        "device_id": record["device_id"],
        **{name: record[name] for name in _RECORD_FIELDS},
        "interval": quality.get("interval"),
        "marks": [name for name in ("suspect", "stopped_early", "quarantined") if quality.get(name)],
    }
