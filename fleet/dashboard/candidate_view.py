"""One candidate: its raw repeats by device, its schedule beside the best one's, a script to build it again.

Called by `fleet.dashboard.dashboard`. Reads the rows of the devices that have measured the workload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agents.codec import protocol_from_json
from agents.errors import AgentError
from agents.records import Candidate, DeviceId, Outcome, Protocol, WorkloadId
from fleet.coverage.reproducer import MeasuredOn, reproducer
from fleet.dashboard.device_timeline import object_of
from fleet.dashboard.schedule_lines import schedule_lines, side_by_side
from fleet.dashboard.store_reads import PATH, device_rows
from fleet.errors import FleetError, StoreError
from fleet.store.reader import StoreReader

#: Devices whose rows are looked at, and records that are shown; the page says where there are more.
MOST_DEVICES, MOST_RECORDS = 4, 200
#: Columns of a device's fastest record: seconds, candidate, file.
_OF_BEST = ("latency_secs", "candidate_id", PATH)
_NARROW = ("outcome", *_OF_BEST)
_RECORD_FIELDS = (
    *("outcome", "latency_secs", "run_secs", "warmup_secs", "number", "origin", "attempt", "measured_at"),
    *("error", "environment_id", "model_version"),
)
_WIDE = ("workload_id", "candidate_id", *_RECORD_FIELDS, "quality", "protocol", "schema", "dialect", "trace")


class CandidateError(FleetError):
    """A candidate that the store does not have."""


def candidate_view(
    reader: StoreReader, workload_id: str, candidate_id: str, devices: Sequence[str], best_on: str = ""
) -> dict[str, Any]:
    """All that is known of one candidate.

    Args:
        reader: The store.
        workload_id: Its workload.
        candidate_id: The candidate.
        devices: Devices that have measured the workload; the first ones are looked at.
        best_on: Device whose best candidate it is compared with; the first one that has measured it if empty.

    Returns:
        `records` (with `device_id` and raw repeats) and `records_of`, `devices_seen` and `devices_of`,
        `dialect`, `best` (`candidate_id`, `device_id`, `secs`, `mine_secs`), `schedules` (`side_by_side`),
        and `script` with `why_no_script`.

    Raises:
        CandidateError: None of the devices has measured it.
        StoreError: The store cannot be read.
    """
    looked = list(devices[:MOST_DEVICES])
    best: dict[str, Mapping[str, Any]] = {}
    holders: dict[str, set[str]] = {}
    for name, batch in device_rows(reader, _NARROW, looked, workload_id=workload_id):
        _keep_best(best, str(name), batch)
        matches = batch.filter(pc.equal(batch.column("candidate_id"), candidate_id))
        if matches.num_rows:
            holders.setdefault(str(name), set()).update(matches.column(PATH).to_pylist())
    if not holders:
        raise CandidateError(
            f"no record of candidate {candidate_id!r:.80} of workload {workload_id!r:.80} on "
            f"{len(looked)} of the {len(devices)} devices that measured that workload"
        )
    device_id = best_on if best_on in best else next(iter(holders))
    other = best.get(device_id)
    # The wide columns are read of the files alone that hold one of the two.
    paths = set[str]().union(*holders.values(), {other[PATH]} if other else ())
    names = pa.array([candidate_id, other["candidate_id"] if other else candidate_id])
    records: list[dict[str, Any]] = []
    traces: dict[str, Candidate] = {}
    for name, batch in device_rows(reader, _WIDE, looked, workload_id=workload_id, paths=paths):
        for row in batch.filter(pc.is_in(batch.column("candidate_id"), names)).to_pylist():
            trace, dialect, row_candidate = row.pop("trace"), row.pop("dialect"), row["candidate_id"]
            if row_candidate == candidate_id:
                records.append({"device_id": str(name), **row})
            traces[row_candidate] = Candidate(
                workload_id=WorkloadId(workload_id), trace=trace, dialect=dialect
            )
    mine = traces[candidate_id]
    script, why = _script(reader, mine, records)
    return {
        "workload_id": workload_id,
        "candidate_id": candidate_id,
        "records": [_record_row(record) for record in records[:MOST_RECORDS]],
        "records_of": len(records),
        "devices_seen": len(looked),
        "devices_of": len(devices),
        "dialect": mine.dialect,
        "best": None if other is None else _compared(records, device_id, other),
        "schedules": side_by_side(
            schedule_lines(mine.trace), schedule_lines(traces[other["candidate_id"]].trace) if other else []
        ),
        "script": script,
        "why_no_script": why,
    }


def _keep_best(best: dict[str, Mapping[str, Any]], device_id: str, rows: pa.RecordBatch) -> None:
    ok = rows.filter(
        pc.and_(pc.equal(rows.column("outcome"), Outcome.OK.value), pc.is_valid(rows["latency_secs"]))
    )
    if not ok.num_rows:
        return
    place = int(pc.index(ok.column("latency_secs"), pc.min(ok.column("latency_secs"))).as_py())
    [fastest] = ok.slice(place, 1).select(list(_OF_BEST)).to_pylist()
    if device_id not in best or fastest["latency_secs"] < best[device_id]["latency_secs"]:
        best[device_id] = fastest


def _compared(
    records: Sequence[Mapping[str, Any]], device_id: str, other: Mapping[str, Any]
) -> dict[str, Any]:
    mine = [
        record["latency_secs"]
        for record in records
        if record["device_id"] == device_id and record["latency_secs"]
    ]
    return {
        "candidate_id": other["candidate_id"],
        "device_id": device_id,
        "secs": other["latency_secs"],
        "mine_secs": min(mine, default=None),
    }


def _script(reader: StoreReader, mine: Candidate, records: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The reproducer, or why there is none."""
    measurements = (
        MeasuredOn(device_id=DeviceId(row["device_id"]), origin=str(row["origin"]), protocol=_protocol(row))
        for row in records
    )
    try:
        return reproducer(reader, mine, measurements), ""
    except StoreError as error:
        return "", str(error)


def _protocol(record: Mapping[str, Any]) -> Protocol:
    try:
        return protocol_from_json(json.loads(record["protocol"]))
    except (AgentError, ValueError, TypeError):
        return Protocol()


def _record_row(record: Mapping[str, Any]) -> dict[str, Any]:
    quality = object_of(record["quality"])
    marks = [name for name in ("suspect", "stopped_early", "quarantined") if quality.get(name)]
    return {
        "device_id": record["device_id"],
        **{name: record[name] for name in _RECORD_FIELDS},
        "interval": quality.get("interval"),
        "marks": marks,
    }
