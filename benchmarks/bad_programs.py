"""Candidates whose program misbehaves for real, by calling the C library, and what they may leave behind."""

from __future__ import annotations

import time
from typing import Any

import psutil

from agents.records import Candidate, Workload

#: A schedule that changes nothing.
EMPTY_TRACE = "[[],[]]"


def calling(name: str, function: str, *arguments: int) -> tuple[Workload, Candidate]:
    """A workload that calls a function of libc for each of four numbers, and its only candidate."""
    import tvm
    from tvm import te, tirx

    from agents.programs.workloads import workload_from_module

    source = te.placeholder((4,), name="A", dtype="float32")

    def element(i: Any) -> Any:
        call = tirx.call_extern("int32", function, *[tirx.IntImm("int32", value) for value in arguments])
        return source[i] + tirx.Cast("float32", call)

    module = tvm.IRModule({"main": te.create_prim_func([source, te.compute((4,), element, name="B")])})
    workload = workload_from_module(module, name=name, operator="bad")
    return workload, Candidate(workload_id=workload.workload_id, trace=EMPTY_TRACE)


def killers() -> list[tuple[Workload, Candidate]]:
    """Programs that end their process: an abort, a segmentation fault, an exit."""
    return [calling("aborts", "abort"), calling("faults", "raise", 11), calling("exits", "_exit", 3)]


def hung() -> tuple[Workload, Candidate]:
    """A program that does not return."""
    return calling("hangs", "sleep", 600)


def holdings() -> dict[str, float]:
    """Processes, threads, open files and memory (proportional set size) of this process and its children."""
    tree = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        "processes": len(tree),
        "threads": sum(process.num_threads() for process in tree),
        "files": sum(process.num_fds() for process in tree),
        "memory_mb": sum(process.memory_full_info().pss for process in tree) / 2**20,
    }


def end_of(pid: int) -> float:
    """Wait until a process is gone; returns `time.monotonic` then."""
    while psutil.pid_exists(pid):
        time.sleep(0.005)
    return time.monotonic()
