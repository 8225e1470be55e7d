"""A MetaSchedule database of one device, as TVM's `JSONDatabase` loads it; written without TVM.

`database_workload.json` has a line `[structural hash, module]` a workload: the module is base64 of its JSON
text behind the text's length (8 bytes, little-endian). `database_tuning_record.json` has a line
`[workload index, [trace, run_secs, target, args_info]]` a record. A workload's `module_json` is what TVM
itself would put there, less its line breaks, and a record's trace is its JSON already.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from agents.programs.trace_rules import TraceRefusedError, read_trace
from agents.records import Outcome, Workload, WorkloadId, canonical_json
from agents.trust import claimed_id
from fleet.errors import FleetError
from fleet.interchange.export_files import text_lines
from fleet.interchange.export_source import Source, has_module

#: The dialect that such a database holds.
DIALECT = "meta_schedule"
WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


def write_database(folder: Path, source: Source) -> int:
    """Write the `ok` records into a new folder; nothing where there are none.

    All measurements of a candidate are written. TVM takes the one with the least mean of `run_secs`.

    Returns:
        How many records were written.

    Raises:
        FleetError: The store does not know the device's target.
    """
    indices = _indices(source)
    if not indices:
        return 0
    if source.spec is None:
        raise FleetError(
            f"device {source.device_id}: the store does not say what its target is, and TVM needs it; "
            "collect or import into it once more, which stores the device"
        )
    folder.mkdir()
    target = canonical_json(source.spec.target)
    with text_lines(folder / WORKLOADS, WORKLOADS) as lines:
        for workload_id in indices:
            lines.write(_workload_line(source.workloads[workload_id]))
    arguments = {one: _arguments(source.workloads[one]) for one in indices}
    count = 0
    with text_lines(folder / RECORDS, RECORDS) as lines:
        for record in source.records():
            if (
                record.outcome is not Outcome.OK
                or record.dialect != DIALECT
                or record.workload_id not in indices
            ):
                continue
            try:
                read_trace(record.trace)
            except TraceRefusedError as error:
                source.skipped[f"TVM is not to see its trace: {error.reason}"] += 1
                continue
            secs = json.dumps([float(value) for value in record.run_secs])
            inner = f"[{record.trace},{secs},{target},{arguments[record.workload_id]}]"
            lines.write(f"[{indices[record.workload_id]},{inner}]\n")
            count += 1
    if not count:
        for path in (folder / WORKLOADS, folder / RECORDS):
            path.unlink()
        folder.rmdir()
    return count


def _indices(source: Source) -> dict[WorkloadId, int]:
    """Workloads with a fitting record, in the order of their first one; counts what does not fit."""
    indices: dict[WorkloadId, int] = {}
    known = {one: has_module(workload) for one, workload in source.workloads.items()}
    for batch in source.batches(("workload_id", "outcome", "dialect")):
        for row in batch.to_pylist():
            if row["dialect"] != DIALECT:
                source.skipped[f"dialect {row['dialect']}"] += 1
            elif row["outcome"] != Outcome.OK:
                source.skipped["failed: a database holds latencies only"] += 1
            elif not known.get(row["workload_id"]):
                source.skipped["the module of its workload is not known"] += 1
            else:
                indices.setdefault(row["workload_id"], len(indices))
    return indices


def _workload_line(workload: Workload) -> str:
    # TVM reads the hash as a decimal number and works it out again from the module.
    name = str(int(claimed_id(workload.workload_id) or workload.workload_id, 16))
    text = workload.module_json.encode()
    packed = base64.b64encode(len(text).to_bytes(8, "little") + text).decode()
    return json.dumps([name, packed]) + "\n"


def _arguments(workload: Workload) -> str:
    pairs = zip(workload.arg_dtypes, workload.arg_shapes, strict=True)
    return canonical_json([["TENSOR", dtype, list(shape)] for dtype, shape in pairs])
