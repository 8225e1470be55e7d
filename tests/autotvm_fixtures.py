"""Records straight from AutoTVM's logs, for tests of what is made of them."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

from agents.records import (
    Candidate,
    Outcome,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
    content_hash,
)
from tests.dataset_fixtures import record_of

_DEVICES = ("arm_cortex-a72", "cuda_gtx1650", "x86_AMD3700X", "x86_inteli7-3770")


def autotvm_records(folder: Path, lines: int) -> tuple[list[Record], dict[WorkloadId, Workload]]:
    """Records of the first lines of one log of each device, and their workloads."""
    records: list[Record] = []
    workloads: dict[WorkloadId, Workload] = {}
    for device in _DEVICES:
        with gzip.open(folder / device / "mobilenet" / "ga.jsonl.gz", "rt") as file:
            for line in itertools.islice(file, lines):
                entry = json.loads(line)
                _, name, arguments, *_ = entry["input"]
                workload = autotvm_workload(name, arguments)
                workloads[workload.workload_id] = workload
                candidate = Candidate(
                    workload_id=workload.workload_id,
                    trace=canonical_json(entry["config"]["entity"]),
                    dialect="autotvm",
                )
                seconds, error, *_ = entry["result"]
                if error:
                    records.append(record_of(candidate, device, outcome=Outcome.RUN_FAILED))
                else:
                    records.append(record_of(candidate, device, *seconds))
    return records, workloads


def autotvm_workload(name: str, arguments: list[object]) -> Workload:
    """The workload of an AutoTVM task, shapes and work left out."""
    module = canonical_json({"dialect": "autotvm", "name": name, "args": arguments})
    return Workload(
        workload_id=WorkloadId(content_hash("autotvm", module)[:16]),
        name=name,
        operator="C2D",
        arg_shapes=(),
        arg_dtypes=(),
        flops=1e6,
        networks=(),
        module_json=module,
    )
