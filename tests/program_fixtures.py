"""Unscheduled programs in the JSON form that TVM saves modules in, written without TVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.records import Workload, WorkloadId, canonical_json


class _Nodes:
    """A JSON graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"type": "None"}]

    def add(self, kind: str, data: Any) -> int:
        self.nodes.append({"type": kind, "data": data})
        return len(self.nodes) - 1

    def integer(self, value: int) -> int:
        return self.add("ir.IntImm", {"value": self.add("int", value)})

    def array(self, items: Sequence[int]) -> int:
        return self.add("ffi.Array", list(items))

    def block(
        self, name: str, axes: Sequence[tuple[int, bool]], reads: Sequence[int], writes: Sequence[int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """A block, and (loop variable, extent) of a loop for each of its axes."""
        loops = [(self.add("ir.Var", {}), self.integer(extent)) for extent, _ in axes]
        iter_vars = [self.add("tirx.IterVar", {"iter_type": 2 if reduced else 0}) for _, reduced in axes]
        regions = [
            self.array([self.add("tirx.BufferRegion", {"source": buffer}) for buffer in buffers])
            for buffers in (reads, writes)
        ]
        block = self.add(
            "s_tir.SBlock",
            {
                "iter_vars": self.array(iter_vars),
                "reads": regions[0],
                "writes": regions[1],
                "name_hint": self.add("ffi.String", name),
                "body": 0,
            },
        )
        values = self.array([variable for variable, _ in loops])
        return self.add("s_tir.SBlockRealize", {"iter_values": values, "block": block}), loops

    def loops_around(self, body: int, loops: Sequence[tuple[int, int]]) -> int:
        for variable, extent in reversed(loops):
            body = self.add("tirx.For", {"loop_var": variable, "extent": extent, "body": body})
        return body

    def module(self, statements: Sequence[int]) -> str:
        body = self.add("tirx.SeqStmt", {"seq": self.array(statements)})
        root = self.add("s_tir.SBlock", {"name_hint": self.add("ffi.String", "root"), "body": body})
        realize = self.add("s_tir.SBlockRealize", {"block": root})
        self.add("tirx.PrimFunc", {"body": realize})
        return canonical_json({"root_index": len(self.nodes) - 1, "nodes": self.nodes})


def nrm_module(rows: int = 1, size: int = 256) -> str:
    """C sums the squares of a matrix over both axes, D takes the root: the suite's NRM."""
    nodes = _Nodes()
    image, total, result = (nodes.add("ir.Var", {}) for _ in range(3))
    summed, loops = nodes.block("C", [(rows, False), (size, True), (size, True)], [image], [total])
    rooted, outer = nodes.block("D", [(rows, False)], [total], [result])
    return nodes.module([nodes.loops_around(summed, loops), nodes.loops_around(rooted, outer)])


def shared_nest_module() -> str:
    """Two blocks in one nest of 4 x 8, the second with a loop of 3 of its own; then a block without loops."""
    nodes = _Nodes()
    image, made, result, scalar = (nodes.add("ir.Var", {}) for _ in range(4))
    first, loops = nodes.block("first", [(4, False), (8, False)], [image], [made])
    second, inner = nodes.block("second", [(4, False), (8, False), (3, True)], [made], [result])
    body = nodes.add("tirx.SeqStmt", {"seq": nodes.array([first, nodes.loops_around(second, inner[2:])])})
    last, _ = nodes.block("last", [], [result], [scalar])
    return nodes.module([nodes.loops_around(body, loops), last])


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
