"""MetaSchedule databases as an attacker would write them, and honest ones of other hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agents.records import (
    DERIVED,
    DeviceId,
    Outcome,
    Protocol,
    Record,
    Workload,
    canonical_json,
    is_imported,
)
from agents.sandbox.pool import WorkerPool
from fleet.interchange.import_logs import ImportRequest, import_logs
from fleet.store.store import Store
from tests.log_fixtures import module_line, write_log
from tests.program_fixtures import graph_of

LAB, GENERIC = DeviceId("lab"), DeviceId("generic")
#: What is tested here must not depend on how quiet the host is.
QUICK = Protocol(
    repeat=2, extra_repeats=0, min_repeat_ms=1.0, visits=1, reject_interval=0.0, early_stop_ratio=0.0
)
TARGET = {"kind": "llvm", "num-cores": 4}

_EVIL_INDEX_MAP = """
     0 None
     1 ir.PrimType {"span": 0, "dtype": "int64"}
     2 ffi.String "b"
     3 ir.Var {"span": 0, "ty": 1, "name": 2}
     4 ffi.String "i"
     5 ir.Var {"span": 0, "ty": 1, "name": 4}
     6 ffi.String "j"
     7 ir.Var {"span": 0, "ty": 1, "name": 6}
     8 ffi.Array [3, 5, 7]
     9 ir.PrimType {"span": 0, "dtype": "int32"}
    10 ir.Op "tirx.call_extern"
    11 ir.StringType {"span": 0}
    12 ffi.String "system"
    13 ir.StringImm {"span": 0, "ty": 11, "value": 12}
    14 ir.StringType {"span": 0}
    15 ffi.String "COMMAND"
    16 ir.StringImm {"span": 0, "ty": 14, "value": 15}
    17 ffi.Array [13, 16]
    18 ffi.Array []
    19 ir.Call {"span": 0, "ty": 9, "op": 10, "args": 17, "attrs": 0, "ty_args": 18}
    20 prim.Cast {"span": 0, "ty": 1, "value": 19}
    21 prim.Add {"span": 0, "ty": 1, "a": 7, "b": 20}
    22 int 16
    23 ir.IntImm {"span": 0, "ty": 1, "value": 22}
    24 prim.FloorMod {"span": 0, "ty": 1, "a": 21, "b": 23}
    25 ffi.Array [3, 5, 24]
    26 tirx.IndexMap {"initial_indices": 8, "final_indices": 25, "inverse_index_map": 0}
"""


def evil_index_map(command: str) -> str:
    """An index map as TVM writes it, that runs a command wherever a program uses it: j becomes
    (j + system(command)) % 16."""
    graph = graph_of(_EVIL_INDEX_MAP.replace('"COMMAND"', json.dumps(command)))
    return json.dumps({**graph, "metadata": {"tvm_version": "0.27.0"}})


def running_trace(command: str) -> list[Any]:
    """A trace of a GMM whose program runs a command."""
    steps = [
        ["GetSBlock", [], ["Z", "main"], ["b0"]],
        ["CacheWrite", ["b0", []], [0, "global"], ["b1"]],
        ["TransformLayout", ["b0", evil_index_map(command)], [0, 1, None, True], []],
    ]
    return [steps, []]


def linking_trace() -> list[Any]:
    """A trace of a GMM that links foreign LLVM code into the program."""
    steps = [
        ["GetSBlock", [], ["Z", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3", "l4"]],
        ["Annotate", ["l1", '"define void @run() { ret void }"'], ["pragma_import_llvm"], []],
    ]
    return [steps, []]


def with_steps(trace: Any, *steps: Any) -> list[Any]:
    """A trace with more instructions at its end."""
    return [[*trace[0], *steps], trace[1]]


def of_other_host(trace: Any) -> list[Any]:
    """The same schedule as an older TVM on a host with more cores would write it."""
    steps = []
    for kind, inputs, attrs, outputs in trace[0]:
        made = [{"GetSBlock": "GetBlock"}.get(kind, kind), list(inputs), attrs, outputs]
        if kind == "Annotate" and attrs == ["meta_schedule.parallel"]:
            made[1][1] = 64
        steps.append(made)
    return [steps, trace[1]]


def write_database(folder: Path, workload: Workload, module_json: str, traces: list[Any]) -> Path:
    """A database that states the workload's structural hash for a module."""
    line = module_line(int(workload.workload_id, 16), module_json)
    write_log(folder / "database_workload.json", [line])
    pairs = zip(workload.arg_dtypes, workload.arg_shapes, strict=True)
    args = [["TENSOR", dtype, list(shape)] for dtype, shape in pairs]
    lines = [[0, [trace, [1e-4 + n * 1e-7], TARGET, args]] for n, trace in enumerate(traces)]
    write_log(folder / "database_tuning_record.json", lines)
    return folder


def honest_traces(pool: WorkerPool, matmul: Workload) -> list[Any]:
    """Four schedules that another host has found, two of them with an older TVM."""
    question = {"op": "propose", "workload_id": matmul.workload_id, "family": "cpu", "count": 4, "seed": 77}
    traces = pool.ask({**question, "exclude": []}, matmul)["traces"]
    parsed = [json.loads(one) for one in traces]
    return [*parsed[:2], *map(of_other_host, parsed[2:])]


def hostile_traces(honest: list[Any], marker: Path) -> list[Any]:
    """Traces of an attacker: plain ones, and some hidden behind an honest beginning."""
    hidden = running_trace(f"touch {marker}")[0][2]
    hidden[1][0] = "b900"
    tiles = json.loads(json.dumps(honest[0]))
    next(one for one in tiles[1] if isinstance(one[1], list))[1][-1] = 7
    return [
        running_trace(f"touch {marker}"),
        linking_trace(),
        with_steps(honest[0], ["GetSBlock", [], ["Z", "main"], ["b900"]], hidden),
        tiles,
    ]


def forge(store: Store, folder: Path, matmul: Workload, honest: list[Any], hostile: list[Any]) -> None:
    """Import a database that states a public workload's hash for another module."""
    module = json.dumps({"nodes": [{"type": "None"}], "root_index": 0})
    database = write_database(folder / "logs", matmul, module, [*hostile, *honest])
    request = ImportRequest(paths=(database,), device_id=LAB, devices_folder=folder / "none")
    report = import_logs(store, request)
    assert report.imported == len(hostile) + len(honest)


def check_records(records: list[Record], before: int, hostile: list[Any], honest: list[Any]) -> None:
    """What a live device has measured after an import."""
    fresh = records[before:]
    # An honest schedule of this very version is the same text when we have made it again.
    theirs = {canonical_json(one) for one in [*hostile, *honest[2:]]}
    assert not [one for one in fresh if one.trace in theirs or is_imported(one.workload_id)]
    derived = {one.candidate_id: one for one in fresh if one.origin == DERIVED}
    assert len(derived) == len(honest)
    assert {one.outcome for one in derived.values()} == {Outcome.OK}
    # Their decisions are those of the honest ones.
    decisions = [[value for _, value in one[1]] for one in honest]
    for one in derived.values():
        mine = [value for _, value in json.loads(one.trace)[1]]
        assert mine in decisions
