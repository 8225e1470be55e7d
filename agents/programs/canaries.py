"""Canaries: three fixed programs whose speed shows what a device is like right now.

One is bound by arithmetic, one by memory bandwidth, one by the latency of single loads. They are ordinary
workloads with one ordinary candidate each, so whatever builds and times candidates takes them too. Made in
a worker process (`child.py`); imports TVM when called. It knows no device: a family's canaries are the same
programs everywhere, and `quality.py` judges their times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agents.records import Candidate, Family, Workload, canonical_json

#: Of the chain's array. A CPU's 512 KB of int32 fit the private second-level cache of most cores. An array
#: of 8 MB, out in the cache that all cores share, took from 0.2 to 1.5 times its usual time while builders
#: ran elsewhere on the host: that is the device's usual state, and no drift of it. This one stays within 1 %.
#: On a GPU 8 MB, more than its first-level caches.
_CHAIN_ELEMENTS = {Family.CPU: 1 << 17, Family.GPU: 1 << 21}
#: Of each family's canaries: rows, columns, depth and repeats of the product; elements of each of the three
#: arrays of the stream, which no cache holds (22 and 88 MiB); steps of the chain.
_MATMULS = {Family.CPU: (64, 64, 64, 192), Family.GPU: (2048, 2048, 32, 32)}
_ELEMENTS = {Family.CPU: 22 << 18, Family.GPU: 22 << 20}
_STEPS = {Family.CPU: 300_000, Family.GPU: 8192}
#: The chain's next index is this one times 645 and more: too wide a jump for a prefetcher, and below 2**31.
_CHAIN_FACTOR = 645
#: Rooflines that differ by less in every number, as logarithms, are the same.
_SAME_LOG = 0.05


@dataclass(frozen=True, slots=True)
class Canary:
    """One fixed program."""

    #: What it is bound by: `compute`, `memory` or `latency`.
    name: str
    workload: Workload
    #: Its only schedule.
    candidate: Candidate


def make_canaries(family: Family) -> tuple[Canary, ...]:
    """Make the canaries of a family: compute, memory, latency.

    Their ids are the same in every process. On a CPU each runs on one thread, for about 1 to 5 ms on an x86
    core of 3 to 4 GHz; the chain takes several times longer where neighbours hold the shared cache, which is
    for it to show. On a GPU they are sized for some tenths of a millisecond, more on a small one.
    """
    rows, columns, depth, repeats = _MATMULS[family]
    is_cpu = family is Family.CPU
    product = repeated_matmul(rows, columns, depth=depth, repeats=repeats)
    chain = _chain(_CHAIN_ELEMENTS[family], steps=_STEPS[family])
    return (
        # On a CPU 48 KiB in all: a tile reads 5 KiB again and again, and keeps its sums in registers.
        _canary("compute", product, tile_for_cpu if is_cpu else tile_for_gpu),
        _canary("memory", _stream(_ELEMENTS[family]), _vectorise if is_cpu else _spread_over_gpu),
        # On a CPU there is nothing to reorder.
        _canary("latency", chain, None if is_cpu else _bind_one_thread),
    )


def roofline(family: Family, secs: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """What the canaries' times say of a device: the two roofs of its roofline, and its latency.

    The roofline model (Williams et al., Communications of the ACM 52(4), 2009) bounds a program by peak
    arithmetic and memory bandwidth. Here both are what fixed programs reached, on a CPU with one thread.

    Args:
        family: Of the device.
        secs: Usual time of each canary by name; unknown names and times that are no positive number are left
            out.

    Returns:
        (name, value) sorted by name: `bytes_per_sec` of a stream beyond the caches, `flops_per_sec` of 32-bit
        floats, `loads_per_sec` of loads that wait for each other.
    """
    rows, columns, depth, repeats = _MATMULS[family]
    work = {
        "memory": ("bytes_per_sec", 3.0 * 4 * _ELEMENTS[family]),
        "compute": ("flops_per_sec", 2.0 * rows * columns * depth * repeats),
        "latency": ("loads_per_sec", float(_STEPS[family])),
    }
    return tuple(
        (name, float(f"{amount / secs[canary]:.6g}"))
        for canary, (name, amount) in work.items()
        if secs.get(canary, 0.0) > 0 and math.isfinite(secs[canary])
    )


def is_same_roofline(roofline: tuple[tuple[str, float], ...], other: tuple[tuple[str, float], ...]) -> bool:
    """Whether two readings of a roofline tell the same within what a steady device scatters."""
    first, second = dict(roofline), dict(other)
    return first.keys() == second.keys() and all(
        abs(math.log(first[name] / second[name])) < _SAME_LOG for name in first
    )


def _canary(name: str, module: Any, apply_schedule: Callable[[Any], None] | None) -> Canary:
    from tvm.s_tir.schedule import Schedule

    from agents.programs.design_space import plain_json
    from agents.programs.workloads import workload_from_module

    workload = workload_from_module(module, name=f"canary_{name}", operator="canary")
    schedule = Schedule(module)
    if apply_schedule is not None:
        apply_schedule(schedule)
    trace = canonical_json(plain_json(schedule.trace.as_json()))
    return Canary(name, workload, Candidate(workload_id=workload.workload_id, trace=trace, origin="canary"))


def repeated_matmul(rows: int, columns: int, *, depth: int, repeats: int) -> Any:
    """C[i, j] = sum over r, k of A[k, i] * B[k, j]: much arithmetic on little data."""
    import tvm
    from tvm import te

    a = te.placeholder((depth, rows), name="A")
    b = te.placeholder((depth, columns), name="B")
    again = te.reduce_axis((0, repeats), "r")
    k = te.reduce_axis((0, depth), "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[k, i] * b[k, j], axis=[again, k]), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _stream(elements: int) -> Any:
    """C[i] = A[i] + B[i]: 12 bytes moved for one addition."""
    import tvm
    from tvm import te

    a = te.placeholder((elements,), name="A")
    b = te.placeholder((elements,), name="B")
    c = te.compute((elements,), lambda i: a[i] + b[i], name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c])})


def _chain(elements: int, *, steps: int) -> Any:
    """Loads of which each needs the one before: index = (index * 645 + data[index] + step) mod elements.

    The step belongs in it. With zeros and ones as data the index alone would soon run in a short cycle,
    which fits into any cache.
    """
    import tvm
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            data = T.arg("data", T.buffer((elements,), "int32"))
            end = T.arg("end", T.buffer((1,), "int32"))
            with T.serial(0, 1) as only, T.sblock("chain"):
                place = T.axis.spatial(1, only)
                T.reads(data[0:elements])
                T.writes(end[place])
                index = T.sblock_alloc_buffer((1,), "int32", scope="local")
                T.buffer_store(index, 0, [0])
                with T.serial(0, steps) as step:
                    following = index[0] * _CHAIN_FACTOR + data[index[0]] + step
                    T.buffer_store(index, following & (elements - 1), [0])
                T.buffer_store(end, index[0], [place])
        return tvm.IRModule({"main": builder.get()})


def tile_for_cpu(schedule: Any, lanes: int = 16) -> None:
    """Tiles of 4 x 16 sums: as many vectors as hide the latency of a multiply-add, with AVX2 and AVX-512."""
    block = schedule.get_sblock("C")
    i, j, again, k = schedule.get_loops(block)
    i, i_in = schedule.split(i, [None, 4])
    j, j_in = schedule.split(j, [None, lanes])
    schedule.reorder(i, j, again, k, i_in, j_in)
    copy = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(copy, j)
    schedule.unroll(i_in)
    schedule.vectorize(j_in)
    schedule.decompose_reduction(block, again)
    *_, rows, columns = schedule.get_loops(copy)
    schedule.unroll(rows)
    schedule.vectorize(columns)


def _vectorise(schedule: Any) -> None:
    [i] = schedule.get_loops(schedule.get_sblock("C"))
    _, lanes = schedule.split(i, [None, 16])
    schedule.vectorize(lanes)


def tile_for_gpu(schedule: Any) -> None:
    """256 threads with 8 x 8 sums each: 16 loads from the first-level cache for 64 multiply-adds."""
    block = schedule.get_sblock("C")
    i, j, again, k = schedule.get_loops(block)
    i, i_thread, i_in = schedule.split(i, [None, 16, 8])
    # Neighbouring threads take neighbouring columns, so that their loads fall into one line.
    j, j_virtual, j_thread = schedule.split(j, [None, 8, 16])
    schedule.reorder(i, j, j_virtual, i_thread, j_thread, again, k, i_in)
    schedule.bind(i, "blockIdx.y")
    schedule.bind(j, "blockIdx.x")
    schedule.bind(j_virtual, "vthread.x")
    schedule.bind(i_thread, "threadIdx.y")
    schedule.bind(j_thread, "threadIdx.x")
    copy = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(copy, j_thread)
    schedule.unroll(i_in)
    schedule.decompose_reduction(block, again)
    schedule.unroll(schedule.get_loops(copy)[-1])


def _spread_over_gpu(schedule: Any) -> None:
    [i] = schedule.get_loops(schedule.get_sblock("C"))
    block, thread, lanes = schedule.split(i, [None, 256, 4])
    schedule.bind(block, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(lanes)


def _bind_one_thread(schedule: Any) -> None:
    [only] = schedule.get_loops(schedule.get_sblock("chain"))
    schedule.bind(only, "threadIdx.x")
