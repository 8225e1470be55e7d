"""The steps of live candidates give the loops of TVM's scheduled program, in CPU and CUDA spaces."""

from __future__ import annotations

import pytest

from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload
from agents.records import Family
from tests.transfer.language.loop_nests import LoopNest, compare, replay_steps, scheduled_paths
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Primitive
from transfer.language.program import program_stages

pytestmark = pytest.mark.tvm


def interpreted(module_json: str, steps: tuple[Primitive, ...]) -> LoopNest:
    nest = LoopNest(program_stages(module_json))
    for one in steps:
        nest.apply(one)
    return nest


@pytest.mark.parametrize(
    "case",
    [
        # A tiled block with padding and caches, factored reductions, sampled locations that depend on each
        # other, inlining both ways.
        *("C2D 0 cpu 8", "CBR 0 cpu 8", "NRM 0 cpu 12", "SFM 1 cpu 24"),
        *("C1D 0 gpu 4", "SFM 0 gpu 4"),
    ],
)
def test_every_loop_agrees(case: str) -> None:
    import tvm
    from tvm.s_tir.meta_schedule.testing import te_workload

    operator, shape, family, count = case.split()
    workload = operator_workload(operator, te_workload.CONFIGS[operator][1][int(shape)])
    module, reader = tvm.ir.load_json(workload.module_json), MetaScheduleReader()
    candidates = DesignSpace(workload, Family(family)).sample(int(count), seed=5).candidates
    assert len(candidates) == int(count)
    determined = total = 0
    for one in candidates:
        schedule, made = replay_steps(module, one.trace)
        nest = interpreted(workload.module_json, reader.read(one.trace, workload))
        wrong, *counts = compare(nest, scheduled_paths(schedule.mod), made)
        assert not wrong, one.trace
        determined, total = determined + counts[0], total + counts[1]
    assert determined > total / 2
