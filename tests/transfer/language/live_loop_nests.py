"""Live candidates of TVM's operators, whose loops by the steps are compared with those that TVM schedules.

Draws live candidates of all fourteen operators of TVM's suite from MetaSchedule's CPU and CUDA spaces (which
need no GPU), reads each as canonical steps, applies the steps to the operator's loops, and compares every
loop of every block with TVM's own program at the point where post-processing begins. A loop that the steps
determine must have TVM's extent; loops that compute-at makes get theirs from TVM's bound inference, and are
counted by the role of their stage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload, workload_from_module
from agents.records import Family, Workload
from tests.transfer.language.scheduled_loops import Agreement, compare
from tests.transfer.language.winograd import winograd_module
from transfer.language.meta_schedule import MetaScheduleReader

WINOGRAD = "C2D_WIN_NHWC"
#: Loop level of the suite's write cache of the Winograd product.
_WINOGRAD_LEVEL = {Family.CPU: 2, Family.GPU: 3}
_WINOGRAD_SHAPES = {
    Family.CPU: ((1, 14, 14, 128, 128), (2, 28, 28, 32, 64)),
    Family.GPU: ((1, 14, 14, 128, 128),),
}
#: Shapes of the suite by their number: several on a CPU; under CUDA, where about one draw in forty passes the
#: post-processors, the one of which most do...
_CPU_SHAPES = (0, 1, 3)
_GPU_SHAPES = {
    **dict.fromkeys(("C2D", "C3D", "GRP", "DIL", "TBG"), (1,)),
    **dict.fromkeys(("CBR", "T2D"), (2,)),
    "CAP": (3,),
    **dict.fromkeys(("NRM", "SFM"), (0, 1, 2, 3)),
}
#: ...except for these, of which nearly all pass, while few of their mutations are anything new.
_GPU_RANDOM = frozenset({"NRM", "SFM"})
#: Of the others, CUDA candidates drawn at random; the rest are mutations, as a fleet finds them.
_GPU_PARENTS = 5
_SEED = 5


@dataclass(slots=True)
class Part:
    """Candidates of one operator in the spaces of one family."""

    operator: str
    family: Family
    candidates: int = 0
    agreement: Agreement = field(default_factory=Agreement)
    #: Instructions in the traces up to post-processing, by kind.
    instructions: Counter[str] = field(default_factory=Counter)
    #: What disagreed, with the trace of the candidate.
    wrong: list[dict[str, Any]] = field(default_factory=list)


def suite() -> tuple[str, ...]:
    """Names of the operators of TVM's suite."""
    from tvm.s_tir.meta_schedule.testing import te_workload

    return tuple(te_workload.CONFIGS)


def workloads(operator: str, family: Family) -> list[Workload]:
    """Workloads of an operator whose spaces are drawn from."""
    from tvm.s_tir.meta_schedule.testing import te_workload

    if operator == WINOGRAD:
        return [
            workload_from_module(
                winograd_module(*shape, _WINOGRAD_LEVEL[family]),
                name=f"{operator}_{'x'.join(map(str, shape))}",
                operator=operator,
            )
            for shape in _WINOGRAD_SHAPES[family]
        ]
    shapes = te_workload.CONFIGS[operator][1]
    chosen = _GPU_SHAPES.get(operator, (0,)) if family is Family.GPU else _CPU_SHAPES
    return [operator_workload(operator, shapes[number]) for number in chosen if number < len(shapes)]


def draw(workload: Workload, family: Family, count: int) -> list[str]:
    """Traces of up to `count` distinct candidates that pass the family's post-processors."""
    space = DesignSpace(workload, family)
    if family is Family.CPU or workload.operator in _GPU_RANDOM:
        return [one.trace for one in space.sample(count, seed=_SEED).candidates]
    parents = [one.trace for one in space.sample(min(count, _GPU_PARENTS), seed=_SEED).candidates]
    children = space.evolve(parents, count - len(parents), seed=_SEED).candidates
    return [*parents, *(one.trace for one in children)]


def check(operator: str, family: Family, count: int, reader: MetaScheduleReader) -> Part:
    """Draw candidates of one operator and compare all their loops."""
    import tvm

    part = Part(operator, family)
    chosen = workloads(operator, family)
    for number, workload in enumerate(chosen):
        module = tvm.ir.load_json(workload.module_json)
        for trace in draw(workload, family, count * (number + 1) // len(chosen) - part.candidates):
            agreement, instructions = compare(workload, module, trace, reader)
            part.agreement.add(agreement)
            part.instructions += instructions
            part.candidates += 1
            part.wrong += [
                {"workload": workload.name, "family": family.value, **one._asdict(), "trace": trace}
                for one in agreement.disagreements
            ]
    return part


def check_suite(count: int, reader: MetaScheduleReader) -> list[Part]:
    """Check so many candidates in all, shared out over operators and families."""
    pairs = [(operator, family) for operator in suite() for family in (Family.CPU, Family.GPU)]
    ends = [count * (number + 1) // len(pairs) for number in range(len(pairs))]
    return [
        check(*pair, end - start, reader)
        for pair, start, end in zip(pairs, [0, *ends[:-1]], ends, strict=True)
    ]
