"""A MetaSchedule database of one device, as TVM's `JSONDatabase` loads it; written without TVM.

`database_workload.json` has a line `[structural hash, module]` a workload: the module is base64 of its JSON
text behind the text's length (8 bytes, little-endian). `database_tuning_record.json` has a line
`[workload index, [trace, run_secs, target, args_info]]` a record. A workload's `module_json` is what TVM
itself would put there, less its line breaks, and a record's trace is its JSON already.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

from agents.programs.trace_rules import replay_fault
from agents.records import Outcome, Record, Workload, WorkloadId, canonical_json
from agents.trust import claimed_id
from fleet.errors import FleetError
from fleet.interchange.export_files import text_lines
from fleet.interchange.export_source import NotHeldError, Source, has_module

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


def write_database(folder: Path, source: Source) -> int:
    """Write the `ok` records into a new folder; nothing where there are none.

    All measurements of a candidate are written. TVM takes the one with the least mean of `run_secs`.

    Returns:
        How many records were written.

    Raises:
        FleetError: The store does not know the device's target.
    """
    #: Workloads with a fitting record, in the order of their first one.
    indices: dict[WorkloadId, int] = {}
    arguments: dict[WorkloadId, str] = {}
    target = "" if source.spec is None else canonical_json(source.spec.target)
    module_is_known = {
        workload_id: has_module(workload) for workload_id, workload in source.workloads.items()
    }

    def line(record: Record) -> str:
        if record.outcome is not Outcome.OK:
            raise NotHeldError("failed: a database holds latencies only")
        if fault := replay_fault(record.dialect, record.trace):
            raise NotHeldError(fault)
        if not module_is_known.get(record.workload_id):
            raise NotHeldError("the module of its workload is not known")
        if source.spec is None:
            raise FleetError(
                f"device {source.device_id}: the store does not say what its target is, and TVM needs it; "
                "collect or import into it once more, which stores the device"
            )
        if record.workload_id not in indices:
            indices[record.workload_id] = len(indices)
            arguments[record.workload_id] = _arguments(source.workloads[record.workload_id])
        secs = json.dumps([float(value) for value in record.run_secs])
        inner = f"[{record.trace},{secs},{target},{arguments[record.workload_id]}]"
        return f"[{indices[record.workload_id]},{inner}]\n"

    folder.mkdir()
    count = 0
    with text_lines(folder / RECORDS, RECORDS) as lines:
        for text in source.held(line):
            lines.write(text)
            count += 1
    with text_lines(folder / WORKLOADS, WORKLOADS) as lines:
        lines.writelines(_workload_line(source.workloads[workload_id]) for workload_id in indices)
    if not count:
        shutil.rmtree(folder)
    return count


def _workload_line(workload: Workload) -> str:
    # TVM reads the hash as a decimal number and works it out again from the module.
    name = str(int(claimed_id(workload.workload_id) or workload.workload_id, 16))
    text = workload.module_json.encode()
    packed = base64.b64encode(len(text).to_bytes(8, "little") + text).decode()
    return json.dumps([name, packed]) + "\n"


def _arguments(workload: Workload) -> str:
    pairs = zip(workload.arg_dtypes, workload.arg_shapes, strict=True)
    return canonical_json([["TENSOR", dtype, list(shape)] for dtype, shape in pairs])
