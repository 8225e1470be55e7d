"""The steps of live candidates give the loops of TVM's scheduled program, in CPU and CUDA spaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agents.records import Family, Workload
from benchmarks.interpreted_loops import LoopNest
from benchmarks.loop_nests import WINOGRAD, check, draw, suite, workloads
from benchmarks.scheduled_loops import compare_nest, replay_steps, scheduled_paths
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind, Primitive
from transfer.language.program import program_stages

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def reader() -> MetaScheduleReader:
    return MetaScheduleReader()


@pytest.mark.parametrize(
    ("operator", "family", "count"),
    [
        # A tiled block with padding and caches, factored reductions, sampled locations that depend on each
        # other, inlining both ways, the rules that only Winograd has.
        ("C2D", Family.CPU, 12),
        ("CBR", Family.CPU, 12),
        ("NRM", Family.CPU, 24),
        ("SFM", Family.CPU, 48),
        (WINOGRAD, Family.CPU, 12),
        ("C1D", Family.GPU, 8),
        ("NRM", Family.GPU, 8),
        ("SFM", Family.GPU, 8),
    ],
)
def test_every_loop_agrees(operator: str, family: Family, count: int, reader: MetaScheduleReader) -> None:
    part = check(operator, family, count, reader)
    assert part.candidates == count
    assert part.wrong == []
    assert part.agreement.determined > part.agreement.inferred
    assert reader.unknown == {}


def test_the_suite_has_fourteen_operators() -> None:
    assert len(suite()) == 14
    assert WINOGRAD in suite()


@pytest.fixture(scope="module")
def padded() -> tuple[Workload, Any, str]:
    import tvm

    [workload] = workloads("T2D", Family.GPU)
    [trace] = draw(workload, Family.CPU, 1)
    return workload, tvm.ir.load_json(workload.module_json), trace


def _replace(step: Primitive) -> Iterator[Primitive]:
    """Steps that are wrong by one thing."""
    if step.kind is Kind.SP:
        axis, extent, *factors = step.numbers
        yield step._replace(numbers=(axis, extent, factors[0] + 1, *factors[1:]))
        yield step._replace(loops=(step.loops[0] + 1,))
    if step.kind is Kind.RE:
        yield step._replace(loops=(*step.loops[1:], step.loops[0]))
    if step.kind is Kind.CA:
        yield step._replace(loops=(step.loops[0] + 1,))


def test_a_step_that_is_wrong_by_one_is_found_out(
    padded: tuple[Workload, Any, str], reader: MetaScheduleReader
) -> None:
    workload, module, trace = padded
    steps = reader.read(trace, workload)
    schedule, made, _ = replay_steps(module, trace)
    paths = scheduled_paths(schedule.mod)

    def disagreements(sequence: tuple[Primitive, ...]) -> list[Any]:
        nest = LoopNest.of_program(program_stages(workload.module_json))
        for one in sequence:
            nest.apply(one)
        return list(compare_nest(nest, paths, made).disagreements)

    assert disagreements(steps) == []
    tried = 0
    for place, step in enumerate(steps):
        for wrong in _replace(step):
            tried += 1
            assert disagreements((*steps[:place], wrong, *steps[place + 1 :])), wrong
    assert tried >= 10
