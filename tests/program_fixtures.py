"""Unscheduled programs in the JSON form that TVM saves modules in, written without TVM."""

from __future__ import annotations

import json

from agents.records import Workload, WorkloadId, canonical_json

_NRM = """
     0 None
     1 ir.Var {}
     2 ir.Var {}
     3 ir.Var {}
     4 ir.Var {}
     5 int ROWS
     6 ir.IntImm {"value": 5}
     7 ir.Var {}
     8 int SIZE
     9 ir.IntImm {"value": 8}
    10 ir.Var {}
    11 int SIZE
    12 ir.IntImm {"value": 11}
    13 tirx.IterVar {"iter_type": 0}
    14 tirx.IterVar {"iter_type": 2}
    15 tirx.IterVar {"iter_type": 2}
    16 tirx.BufferRegion {"source": 1}
    17 ffi.Array [16]
    18 tirx.BufferRegion {"source": 2}
    19 ffi.Array [18]
    20 ffi.Array [13, 14, 15]
    21 ffi.String "C"
    22 s_tir.SBlock {"body": 0, "iter_vars": 20, "name_hint": 21, "reads": 17, "writes": 19}
    23 ffi.Array [4, 7, 10]
    24 s_tir.SBlockRealize {"block": 22, "iter_values": 23}
    25 ir.Var {}
    26 int ROWS
    27 ir.IntImm {"value": 26}
    28 tirx.IterVar {"iter_type": 0}
    29 tirx.BufferRegion {"source": 2}
    30 ffi.Array [29]
    31 tirx.BufferRegion {"source": 3}
    32 ffi.Array [31]
    33 ffi.Array [28]
    34 ffi.String "D"
    35 s_tir.SBlock {"body": 0, "iter_vars": 33, "name_hint": 34, "reads": 30, "writes": 32}
    36 ffi.Array [25]
    37 s_tir.SBlockRealize {"block": 35, "iter_values": 36}
    38 tirx.For {"body": 24, "extent": 12, "loop_var": 10}
    39 tirx.For {"body": 38, "extent": 9, "loop_var": 7}
    40 tirx.For {"body": 39, "extent": 6, "loop_var": 4}
    41 tirx.For {"body": 37, "extent": 27, "loop_var": 25}
    42 ffi.Array [40, 41]
    43 tirx.SeqStmt {"seq": 42}
    44 ffi.String "root"
    45 s_tir.SBlock {"body": 43, "name_hint": 44}
    46 s_tir.SBlockRealize {"block": 45}
    47 tirx.PrimFunc {"body": 46}
"""
_SHARED_NEST = """
     0 None
     1 ir.Var {}
     2 ir.Var {}
     3 ir.Var {}
     4 ir.Var {}
     5 ir.Var {}
     6 int 4
     7 ir.IntImm {"value": 6}
     8 ir.Var {}
     9 int 8
    10 ir.IntImm {"value": 9}
    11 tirx.IterVar {"iter_type": 0}
    12 tirx.IterVar {"iter_type": 0}
    13 tirx.BufferRegion {"source": 1}
    14 ffi.Array [13]
    15 tirx.BufferRegion {"source": 2}
    16 ffi.Array [15]
    17 ffi.Array [11, 12]
    18 ffi.String "first"
    19 s_tir.SBlock {"body": 0, "iter_vars": 17, "name_hint": 18, "reads": 14, "writes": 16}
    20 ffi.Array [5, 8]
    21 s_tir.SBlockRealize {"block": 19, "iter_values": 20}
    22 ir.Var {}
    23 int 4
    24 ir.IntImm {"value": 23}
    25 ir.Var {}
    26 int 8
    27 ir.IntImm {"value": 26}
    28 ir.Var {}
    29 int 3
    30 ir.IntImm {"value": 29}
    31 tirx.IterVar {"iter_type": 0}
    32 tirx.IterVar {"iter_type": 0}
    33 tirx.IterVar {"iter_type": 2}
    34 tirx.BufferRegion {"source": 2}
    35 ffi.Array [34]
    36 tirx.BufferRegion {"source": 3}
    37 ffi.Array [36]
    38 ffi.Array [31, 32, 33]
    39 ffi.String "second"
    40 s_tir.SBlock {"body": 0, "iter_vars": 38, "name_hint": 39, "reads": 35, "writes": 37}
    41 ffi.Array [22, 25, 28]
    42 s_tir.SBlockRealize {"block": 40, "iter_values": 41}
    43 tirx.For {"body": 42, "extent": 30, "loop_var": 28}
    44 ffi.Array [21, 43]
    45 tirx.SeqStmt {"seq": 44}
    46 tirx.BufferRegion {"source": 3}
    47 ffi.Array [46]
    48 tirx.BufferRegion {"source": 4}
    49 ffi.Array [48]
    50 ffi.Array []
    51 ffi.String "last"
    52 s_tir.SBlock {"body": 0, "iter_vars": 50, "name_hint": 51, "reads": 47, "writes": 49}
    53 ffi.Array []
    54 s_tir.SBlockRealize {"block": 52, "iter_values": 53}
    55 tirx.For {"body": 45, "extent": 10, "loop_var": 8}
    56 tirx.For {"body": 55, "extent": 7, "loop_var": 5}
    57 ffi.Array [56, 54]
    58 tirx.SeqStmt {"seq": 57}
    59 ffi.String "root"
    60 s_tir.SBlock {"body": 58, "name_hint": 59}
    61 s_tir.SBlockRealize {"block": 60}
    62 tirx.PrimFunc {"body": 61}
"""


def graph_of(table: str) -> dict[str, object]:
    """A graph as TVM saves it: a node a line, with its number, type and data; the last is the root."""
    nodes = []
    for line in table.strip().splitlines():
        _, kind, *data = line.split(maxsplit=2)
        nodes.append({"type": kind, "data": json.loads(data[0])} if data else {"type": kind})
    return {"root_index": len(nodes) - 1, "nodes": nodes}


def nrm_module(rows: int = 1, size: int = 256) -> str:
    """C sums the squares of a matrix over both axes, D takes the root: the suite's NRM."""
    return canonical_json(graph_of(_NRM.replace("ROWS", str(rows)).replace("SIZE", str(size))))


def shared_nest_module() -> str:
    """Two blocks in one nest of 4 x 8, the second with a loop of 3 of its own; then a block without loops."""
    return canonical_json(graph_of(_SHARED_NEST))


def program_workload(module_json: str) -> Workload:
    """A workload with this program."""
    return Workload(
        workload_id=WorkloadId("00000000000000aa"),
        name="program",
        operator="NRM",
        arg_shapes=((1, 256, 256), (1,)),
        arg_dtypes=("float32", "float32"),
        flops=1.0,
        networks=(),
        module_json=module_json,
    )


def nrm_workload() -> Workload:
    """NRM of one 256 x 256 matrix, which `dataset_fixtures.NRM_TRACE` schedules."""
    return program_workload(nrm_module())
