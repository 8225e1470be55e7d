"""Whether steps mean what they say: `python -m benchmarks.loop_nests --json`.

Draws live candidates of all fourteen operators of TVM's suite from MetaSchedule's CPU and CUDA spaces (which
need no GPU), reads each as canonical steps, applies the steps to the operator's loops, and compares every
loop of every block with TVM's own program at the point where post-processing begins. A loop that the steps
determine must have TVM's extent; loops that compute-at makes get theirs from TVM's bound inference, and are
counted by the role of their stage. Every disagreement is reported with its candidate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload, workload_from_module
from agents.records import Family, Workload
from benchmarks.scheduled_loops import Agreement, compare
from benchmarks.winograd import winograd_module
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
    shapes: list[str] = field(default_factory=list)
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
        part.shapes.append(workload.name)
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


def _fields(agreement: Agreement) -> dict[str, Any]:
    kinds = sorted({*agreement.steps_determined, *agreement.steps_inferred})
    loops = agreement.determined + agreement.inferred
    return {
        "blocks": agreement.blocks,
        "loops_compared": loops,
        "loops_determined": agreement.determined,
        "loops_inferred": agreement.inferred,
        "determined_share": round(agreement.determined / max(1, loops), 4),
        "annotated_loops": agreement.annotated,
        "inferred_by_role": dict(sorted(agreement.inferred_by_stage.items())),
        "disagreements": len(agreement.disagreements),
        "steps_by_kind": {
            kind: {
                "determined": agreement.steps_determined[kind],
                "inferred": agreement.steps_inferred[kind],
            }
            for kind in kinds
        },
    }


def report(parts: list[Part], reader: MetaScheduleReader, secs: float) -> dict[str, Any]:
    """The whole answer, ready for JSON."""
    total = Agreement()
    for part in parts:
        total.add(part.agreement)
    families = sorted({part.family for part in parts})
    return {
        "candidates": sum(part.candidates for part in parts),
        "operators": len({part.operator for part in parts if part.candidates}),
        **_fields(total),
        "unknown_instructions": dict(reader.unknown),
        "instruction_kinds": {
            family.value: sorted(
                sum((part.instructions for part in parts if part.family is family), Counter())
            )
            for family in families
        },
        "parts": [
            {
                "operator": part.operator,
                "family": part.family.value,
                "candidates": part.candidates,
                "shapes": part.shapes,
                **_fields(part.agreement),
            }
            for part in parts
        ],
        "wrong": [one for part in parts for one in part.wrong],
        "seconds": round(secs, 1),
    }


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{answer['candidates']} candidates of {answer['operators']} operators, {answer['blocks']} blocks, "
        f"{answer['loops_compared']} loops: {answer['loops_determined']} determined "
        f"({100 * answer['determined_share']:.1f} %), {answer['loops_inferred']} from bound inference, "
        f"{answer['disagreements']} disagreements, {answer['seconds']} s"
    )
    yield f"{'operator':14} {'space':5} {'candidates':>10} {'determined':>10} {'inferred':>9} {'wrong':>6}"
    for part in answer["parts"]:
        yield (
            f"{part['operator']:14} {part['family']:5} {part['candidates']:10} {part['loops_determined']:10} "
            f"{part['loops_inferred']:9} {part['disagreements']:6}"
        )
    yield f"{'step':14} {'determined':>10} {'inferred':>9}"
    for kind, counts in answer["steps_by_kind"].items():
        yield f"{kind:14} {counts['determined']:10} {counts['inferred']:9}"
    for family, kinds in answer["instruction_kinds"].items():
        yield f"instructions, {family}: {' '.join(kinds)}"
    yield f"unknown instructions: {answer['unknown_instructions'] or 'none'}"
    for one in answer["wrong"]:
        yield f"{one['workload']} {one['family']}, {one['stage']}, {one['what']}"
        yield f"  steps {one['interpreter']}, TVM {one['tvm']}"


def main() -> None:
    """Print the report; end with 1 where something disagrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--candidates", type=int, default=2240, help="in all, over operators and families")
    options = parser.parse_args()
    started = time.perf_counter()
    reader = MetaScheduleReader()
    pairs = [(operator, family) for operator in suite() for family in (Family.CPU, Family.GPU)]
    parts: list[Part] = []
    for number, (operator, family) in enumerate(pairs):
        due = options.candidates * (number + 1) // len(pairs) - options.candidates * number // len(pairs)
        parts.append(check(operator, family, due, reader))
        print(f"{operator} {family.value}: {parts[-1].candidates} candidates", file=sys.stderr)
    answer = report(parts, reader, time.perf_counter() - started)
    print(json.dumps(answer) if options.json else "\n".join(_lines(answer)))
    sys.exit(1 if answer["disagreements"] else 0)


if __name__ == "__main__":
    main()
