"""Loops of live candidates, side by side: as the interpreter of steps has them and as TVM scheduled them.

Knows nothing of how candidates are made or counted.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agents.records import Workload
from tests.transfer.language.interpreted_loops import LoopNest
from transfer.language.compile_trace import begins_postprocessing
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import CREATED
from transfer.language.program import program_stages

#: Instructions whose outputs are stages that a step made, in the order of their numbers.
_MAKERS = frozenset({"CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "RFactor"})
_LOOP_KINDS = {0: "", 1: "parallel", 2: "vectorize", 3: "unroll"}

#: (extent, how it runs) of the loops around a block, outermost first.
Path = tuple[tuple[int, str], ...]


class Disagreement(NamedTuple):
    """One thing that the interpreter and TVM see differently."""

    stage: str
    what: str
    interpreter: str
    tvm: str


@dataclass(slots=True)
class Agreement:
    """What the comparison of one or more candidates found."""

    #: Loops whose extent follows from the steps; all of them are compared.
    determined: int = 0
    #: Loops whose extent is TVM's bound inference, taken from there: their number and place are compared.
    inferred: int = 0
    #: Loops whose annotation a step set.
    annotated: int = 0
    blocks: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)
    #: Inferred loops by the stage they belong to.
    inferred_by_stage: Counter[str] = field(default_factory=Counter)
    steps_determined: Counter[str] = field(default_factory=Counter)
    steps_inferred: Counter[str] = field(default_factory=Counter)

    def add(self, other: Agreement) -> None:
        """Count another comparison in."""
        self.determined += other.determined
        self.inferred += other.inferred
        self.annotated += other.annotated
        self.blocks += other.blocks
        self.disagreements += other.disagreements
        self.inferred_by_stage += other.inferred_by_stage
        self.steps_determined += other.steps_determined
        self.steps_inferred += other.steps_inferred


def scheduled_paths(module: Any) -> dict[str, Path]:
    """Loops around each block of a `tvm.IRModule` with one PrimFunc `main`, the root block left out."""
    found: dict[str, Path] = {}

    def walk(statement: Any, path: Path) -> None:
        kind = type(statement).__name__
        if kind == "For":
            binding = statement.thread_binding
            word = (
                str(binding.thread_tag)
                if binding is not None
                else _LOOP_KINDS.get(int(statement.kind), str(int(statement.kind)))
            )
            walk(statement.body, (*path, (int(statement.extent), word)))
        elif kind == "SeqStmt":
            for one in statement.seq:
                walk(one, path)
        elif kind == "SBlockRealize":
            found[str(statement.block.name_hint)] = path
        elif kind == "IfThenElse":
            walk(statement.then_case, path)
            if statement.else_case is not None:
                walk(statement.else_case, path)
        elif hasattr(statement, "body"):
            walk(statement.body, path)

    walk(module["main"].body.block.body, ())
    return found


def replay_steps(module: Any, trace: str) -> tuple[Any, list[str], Counter[str]]:
    """Replay a trace up to post-processing.

    Args:
        module: The unscheduled `tvm.IRModule`.
        trace: JSON text of the candidate's trace.

    Returns:
        The `tvm.s_tir.Schedule`, the name of each stage that a step made ("" where it was inlined), and the
        instructions by kind.
    """
    from tvm.s_tir.schedule import Schedule, Trace

    steps, decisions = json.loads(trace)
    end = next((n for n, step in enumerate(steps) if begins_postprocessing(step[0], step[2])), len(steps))
    schedule = Schedule(module, error_render_level="none")
    Trace.apply_json_to_schedule([steps[:end], [one for one in decisions if one[0] < end]], schedule)
    names: list[str] = []
    for step, instruction in zip(steps[:end], list(schedule.trace.insts), strict=True):
        if step[0] in _MAKERS:
            try:
                names.append(str(schedule.get(instruction.outputs[0]).name_hint))
            except Exception:  # inlined later on: TVM says so in one of several error classes
                names.append("")
    return schedule, names, Counter(step[0] for step in steps[:end])


def compare(
    workload: Workload, module: Any, trace: str, reader: MetaScheduleReader
) -> tuple[Agreement, Counter[str]]:
    """Compare every loop of every block of one candidate.

    Args:
        workload: What the candidate schedules.
        module: Its `tvm.IRModule`, loaded.
        trace: JSON text of the candidate's trace.
        reader: Kept between calls, since it compiles each design space once.

    Returns:
        What was found, and the instructions of the trace up to post-processing, by kind.
    """
    nest = LoopNest.of_program(program_stages(workload.module_json))
    for step in reader.read(trace, workload):
        nest.apply(step)
    schedule, made, instructions = replay_steps(module, trace)
    return compare_nest(nest, scheduled_paths(schedule.mod), made), instructions


def compare_nest(nest: LoopNest, paths: dict[str, Path], made: list[str]) -> Agreement:
    """Compare an interpreted nest with the loops around the blocks of the scheduled program.

    Args:
        nest: The nest after all steps; takes in the extents that bound inference found.
        paths: What `scheduled_paths` gives.
        made: Names of the stages that steps made.
    """
    agreement = Agreement()
    wrong = agreement.disagreements
    wrong += [
        Disagreement(
            str(one.stage), f"step {one.step} {one.kind}: {one.what}", str(one.expected), str(one.got)
        )
        for one in nest.mismatches
    ]
    left = dict(paths)
    for number, stage in sorted(nest.stages.items()):
        name = made[number - CREATED] if number >= CREATED else stage.name
        path = left.pop(name, None)
        if stage.inlined or path is None:
            if stage.inlined != (path is None):
                wrong.append(
                    Disagreement(name, "inlined", str(stage.inlined), "block exists" if path else "no block")
                )
            continue
        agreement.blocks += 1
        own = path[len(nest.path(number)) - len(stage.loops) :] if len(path) >= len(nest.path(number)) else ()
        determined = [bool(loop.extent) and not loop.inferred for loop in stage.loops]
        agreement.determined += sum(determined)
        agreement.inferred += len(own) - sum(determined)
        agreement.inferred_by_stage[stage.role or "original"] += len(own) - sum(determined)
        agreement.annotated += sum(bool(loop.annotation) for loop in stage.loops)
        nest.supply(number, [extent for extent, _ in own])
    for number, stage in sorted(nest.stages.items()):
        name = made[number - CREATED] if number >= CREATED else stage.name
        if name in paths and not stage.inlined:
            seen = tuple((loop.extent, loop.annotation) for loop in nest.path(number))
            if seen != paths[name] or stage.lost:
                wrong.append(Disagreement(name, "loops", str(seen), str(paths[name])))
    wrong += [Disagreement(name, "block", "no stage", "exists") for name in left]
    agreement.steps_determined.update({str(kind): count for kind, count in nest.determined.items()})
    agreement.steps_inferred.update({str(kind): count for kind, count in nest.inferred.items()})
    return agreement
