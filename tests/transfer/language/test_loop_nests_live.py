"""Loops that the steps of live candidates name are those of TVM's schedule, in CPU and CUDA spaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload
from agents.records import Family
from transfer.language.meta_schedule import MetaScheduleReader, begins_postprocessing
from transfer.language.primitives import Kind

pytestmark = pytest.mark.tvm

#: Instructions that take a loop, and its place among their inputs; then the steps that they become.
TAKERS = {"ComputeAt": 1, "ReverseComputeAt": 1} | dict.fromkeys(
    ("Split", "Fuse", "Bind", "Annotate", "RFactor"), 0
)
TAKING = {Kind.SP, Kind.FU, Kind.AN, Kind.RF, Kind.CA}


def loops_in_tvm(module: Any, trace: str) -> Iterator[tuple[int, int]]:
    """Depth and extent of the loop that each instruction takes, in the schedule that it meets."""
    from tvm.s_tir.schedule import Schedule, Trace

    steps, decisions = json.loads(trace)
    for place, (kind, inputs, attributes, _) in enumerate(steps):
        if begins_postprocessing(kind, attributes):
            return
        if kind in TAKERS and inputs[TAKERS[kind]].startswith("l"):  # blocks are annotated too
            schedule = Schedule(module, error_render_level="none")
            before = [decision for decision in decisions if decision[0] < place]
            Trace.apply_json_to_schedule([steps[:place], before], schedule)
            names = [name for step in steps[:place] for name in step[3]]
            outputs = [output for step in schedule.trace.insts for output in step.outputs]
            loop = dict(zip(names, outputs, strict=True))[inputs[TAKERS[kind]]]
            node = schedule.get_sref(loop)
            if node.stmt is not None:  # a sampled location may be none
                extent, depth = int(node.stmt.extent), 0
                while (node := node.parent) is not None:
                    depth += type(node.stmt).__name__ == "For"
                yield depth, extent


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
    extents = []
    for one in candidates:
        taking = [step for step in reader.read(one.trace, workload) if step.kind in TAKING and step.loops]
        outside: dict[int, int] = {}  # loops around a stage that are not its own
        for step, (depth, extent) in zip(taking, loops_in_tvm(module, one.trace), strict=True):
            owner = step.targets[0] if step.kind is Kind.CA else step.stage
            assert outside.get(owner, 0) + step.loops[0] == depth, (step, one.trace)
            if step.kind is Kind.CA:
                outside[step.stage] = depth + 1
            if step.kind is Kind.SP:
                extents.append(step.numbers[1])
                assert extents[-1] in (0, extent), (step, one.trace)
    assert sum(map(bool, extents)) > len(extents) / 2
