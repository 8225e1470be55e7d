"""The steps of live candidates give the loops of TVM's scheduled program, in CPU and CUDA spaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from agents.records import Family, Workload
from tests.transfer.language.interpreted_loops import LoopNest
from tests.transfer.language.live_loop_nests import WINOGRAD, check, check_suite, draw, suite, workloads
from tests.transfer.language.scheduled_loops import Agreement, compare_nest, replay_steps, scheduled_paths
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


@pytest.mark.slow
@pytest.mark.skipif("FLEET_TEST_LOOP_NESTS" not in os.environ, reason="set it to the number of candidates")
@pytest.mark.timeout(3600)
def test_every_loop_of_the_suite_agrees(reader: MetaScheduleReader) -> None:
    """All operators in both spaces: 2,240 candidates take some ten minutes. Prints what it counted."""
    count, total = int(os.environ["FLEET_TEST_LOOP_NESTS"]), Agreement()
    parts = check_suite(count, reader)
    for part in parts:
        total.add(part.agreement)
        print(part.operator, part.family, dict(part.instructions))
    print(total)
    assert [one for part in parts for one in part.wrong] == []
    assert sum(part.candidates for part in parts) == count
    assert total.determined > total.inferred
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
