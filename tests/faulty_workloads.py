"""Workloads whose program misbehaves for real: it calls a function of the C library that does so."""

from __future__ import annotations

from typing import Any

from agents.records import Candidate, Workload
from agents.workloads import workload_from_module

#: A schedule that changes nothing.
EMPTY_TRACE = "[[],[]]"


def calling(name: str, function: str, *arguments: int) -> tuple[Workload, Candidate]:
    """A workload that calls `function` of libc for each of four numbers, and its only candidate."""
    import tvm
    from tvm import te, tirx

    source = te.placeholder((4,), name="A", dtype="float32")

    def element(i: Any) -> Any:
        call = tirx.call_extern("int32", function, *[tirx.IntImm("int32", value) for value in arguments])
        return source[i] + tirx.Cast("float32", call)

    result = te.compute((4,), element, name="B")
    module = tvm.IRModule({"main": te.create_prim_func([source, result])})
    workload = workload_from_module(module, name=name, operator="faulty")
    return workload, Candidate(workload_id=workload.workload_id, trace=EMPTY_TRACE)
