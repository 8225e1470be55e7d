"""A stranger's database for a live device: forged hashes, a foreign module, traces with attacks in them.

Called by `benchmarks.hostile_live` and the tests. Imports TVM when a program is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_attacks import calling_map, foreign_ir
from benchmarks.hostile_modules import packed
from benchmarks.hostile_traces import trace as any_trace

#: Rows and columns of every matrix of the public program.
EXTENT = 64
TARGET = {"kind": "llvm", "num-cores": 1}
#: Ways to run code, and ways to put them into a trace.
_KINDS, _WAYS = 5, 5


def programs(marker: str) -> tuple[Any, Any]:
    """A public program, an error function of a product, and a stranger's that calls the C library besides."""
    import tvm
    from tvm import te, tirx

    shape = (EXTENT, EXTENT)

    def made(called: bool) -> Any:
        left, right = te.placeholder(shape, name="A"), te.placeholder(shape, name="B")
        along = te.reduce_axis((0, EXTENT), name="k")
        product = te.compute(
            shape, lambda i, j: te.sum(left[i, along] * right[along, j], axis=along), name="C"
        )

        def element(i: Any, j: Any) -> Any:
            value = tirx.erf(product[i, j])
            if not called:
                return value
            call = tirx.call_extern("int32", "mkdir", marker, tirx.IntImm("int32", 448))
            return value + tirx.Cast("float32", call)

        result = te.compute(shape, element, name="D")
        return tvm.IRModule({"main": te.create_prim_func([left, right, result])})

    return made(False), made(True)


def attack(number: int, marker: str) -> list[list[Any]]:
    """Instructions that run code where they are replayed on the public program.

    Args:
        number: Tells which; they repeat after five.
        marker: Folder that the code makes; empty where it ends the process.
    """
    begin = ["GetSBlock", [], ["C", "main"], ["b9001"]]
    kind = number % _KINDS
    if kind < 2:
        return [begin, ["TransformLayout", ["b9001", calling_map(marker)], [0, 1 - kind, None, 0], []]]
    if kind < 4:
        # What is read first has the indices (i, k), what is written (i, j).
        name, last = (("ReindexCacheRead", 2), ("ReindexCacheWrite", 1))[kind - 2]
        made = calling_map(marker, dimensions=3, results=2, mirrored=last)
        return [begin, [name, ["b9001", made], [0, "global"], ["b9002"]]]
    loops = ["GetLoops", ["b9001"], [], ["l9003", "l9004", "l9005"]]
    return [begin, loops, ["Annotate", ["l9003", f'"{foreign_ir(marker)}"'], ["pragma_import_llvm"], []]]


def attacked(honest: Sequence[list[Any]], number: int, markers: str, rng: Random) -> list[Any]:
    """A trace: an attack alone, in front of an honest trace, behind it; an honest one; or anything.

    Args:
        honest: Traces of the public program's design space; at least one.
        number: Tells which; every third attack ends the process instead of leaving a marker.
        markers: Beginning of the marker's name.
        rng: Of the traces that are anything.
    """
    steps, decisions = honest[number % len(honest)]
    marker = "" if number % 3 == 2 else f"{markers}-{number}"
    foreign = attack(number, marker)
    way = number // _KINDS % _WAYS
    if way == 0:
        return [foreign, []]
    if way == 1:
        return [[*steps, *foreign], decisions]
    if way == 2:
        return [[*foreign, *steps], [[place + len(foreign), choice] for place, choice in decisions]]
    return [steps, decisions] if way == 3 else any_trace(rng, marker)


def write_database(folder: Path, workload_id: str, modules: Sequence[bytes], traces: Sequence[Any]) -> Path:
    """Write a database whose workloads all claim one hash; returns the file of its tuning records."""
    lines = [json.dumps([str(int(workload_id, 16)), packed(module)]) for module in modules]
    (folder / "database_workload.json").write_text("\n".join(lines) + "\n")
    args = [["TENSOR", "float32", [EXTENT, EXTENT]]] * 3
    records = [
        json.dumps([place % len(modules), [trace, [1e-5 * (place + 1)], TARGET, args]])
        for place, trace in enumerate(traces)
    ]
    log = folder / "database_tuning_record.json"
    log.write_text("\n".join(records) + "\n")
    return log
