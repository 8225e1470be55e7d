"""The loops that canonical steps make of a program, and those that TVM schedules by the same trace.

`LoopNest` applies the steps of MetaSchedule candidates to the stages of an unscheduled program, by rules of
its own. `compare` holds its loops against those of TVM's program where post-processing begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transfer.language.meta_schedule import begins_postprocessing
from transfer.language.primitives import CREATED, Kind, Primitive
from transfer.language.program import ProgramStage

#: Annotations that say how a loop runs; others are notes for the compiler.
_UNITS = ("blockIdx", "threadIdx", "vthread")
LOOP_WORDS = {"unroll", "vectorize", "parallel", *(f"{unit}.{axis}" for unit in _UNITS for axis in "xyz")}
#: Instructions whose outputs are stages that a step made, in the order of their numbers.
_MAKERS = frozenset({"CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "RFactor"})
_LOOP_KINDS = {0: "", 1: "parallel", 2: "vectorize", 3: "unroll"}


class Loop(NamedTuple):
    """One loop; an extent of 0 is left to TVM's bound inference."""

    extent: int
    annotation: str = ""
    is_reduction: bool = False


@dataclass(slots=True)
class Stage:
    """One stage and its own loops, outermost first."""

    name: str
    loops: list[Loop]
    axes: int
    #: (stage, position among its own loops) that the loops stand in; None at the root.
    at: tuple[int, int] | None = None
    is_inlined: bool = False
    #: Whether further loops may show up behind.
    is_open: bool = False


class LoopNest:
    """The stages of a program while steps are applied; a step that contradicts them fails an assertion."""

    def __init__(self, program: Sequence[ProgramStage]) -> None:
        self.stages: dict[int, Stage] = {}
        for number, one in enumerate(program):
            pairs = zip(one.extents, one.reductions, strict=True)
            loops = [Loop(extent, is_reduction=reduction) for extent, reduction in pairs]
            self.stages[number] = Stage(one.name, loops, one.axes, one.at)

    def path(self, number: int) -> list[Loop]:
        """Loops around a stage from the root on."""
        stage = self.stages[number]
        outer = []
        if stage.at is not None:
            own = self.stages[stage.at[0]].loops[stage.at[1] + 1 :]
            outer = self.path(stage.at[0])
            outer = outer[: len(outer) - len(own)]
        return outer + stage.loops

    def apply(self, step: Primitive) -> None:
        if step.kind in (Kind.CHR, Kind.CHW):
            # Its loops follow the region of the buffer, which steps do not tell.
            self._add(Stage(step.names[0], [], 0, is_open=True))
        elif step.stage >= 0:
            stage = self.stages[step.stage]
            if step.loops and step.kind not in (Kind.CA, Kind.UNIT_LOOP):
                self._reach(stage, max(step.loops))
            if step.kind is Kind.SP:
                self._split(step)
            elif step.kind is Kind.FU:
                self._fuse(step)
            elif step.kind is Kind.RE:
                assert sorted(step.loops) == list(range(len(stage.loops)))
                stage.loops, stage.is_open = [stage.loops[place] for place in step.loops], False
            elif step.kind is Kind.AN and step.loops and step.names[2] in LOOP_WORDS:
                place = step.loops[0]
                stage.loops[place] = stage.loops[place]._replace(annotation=step.names[2])
            elif step.kind is Kind.UNIT_LOOP:
                self._put(step.stage, step.loops[0], step.loops[0] - 1, [Loop(1)])
            elif step.kind is Kind.CA:
                stage.loops, stage.is_open = [Loop(0)] * stage.axes, stage.axes == 0
                self._reach(self.stages[step.targets[0]], step.loops[0])
                stage.at = (step.targets[0], step.loops[0])
            elif step.kind is Kind.CI:
                stage.is_inlined, stage.loops, stage.at = True, [], None
            elif step.kind is Kind.RF:
                self._factor(step)

    def _add(self, stage: Stage) -> None:
        self.stages[CREATED + sum(number >= CREATED for number in self.stages)] = stage

    @staticmethod
    def _reach(stage: Stage, position: int) -> None:
        """Make sure of a loop at a position; a stage whose loops are not all known gets it."""
        missing = position + 1 - len(stage.loops)
        assert missing <= 0 or stage.is_open, f"{stage.name} has no loop {position}"
        stage.loops += [Loop(0)] * missing

    def _put(self, number: int, first: int, last: int, new: Sequence[Loop]) -> None:
        """Replace loops; what stands in the nest moves along."""
        self.stages[number].loops[first : last + 1] = new
        for one in self.stages.values():
            if one.at is not None and one.at[0] == number and one.at[1] >= first:
                place = one.at[1]
                grown = len(new) - (last - first + 1)
                one.at = (number, first + len(new) - 1 if place <= last else place + grown)

    def _split(self, step: Primitive) -> None:
        [place] = step.loops
        loop = self.stages[step.stage].loops[place]
        factors, whole = step.numbers[2:], step.numbers[1] or loop.extent
        inner = math.prod(filter(None, factors))
        assert loop.extent in (0, whole)
        assert 0 in factors or inner >= whole
        # A factor that is left open takes what remains.
        pieces = [loop._replace(extent=factor or -(-whole // inner)) for factor in factors]
        self._put(step.stage, place, place, pieces)

    def _fuse(self, step: Primitive) -> None:
        first, last = step.loops[0], step.loops[-1]
        loops = self.stages[step.stage].loops[first : last + 1]
        extent = math.prod(loop.extent for loop in loops)
        assert not extent or step.numbers[1] in (0, extent)
        reduction = all(loop.is_reduction for loop in loops)
        self._put(step.stage, first, last, [Loop(extent or step.numbers[1], is_reduction=reduction)])

    def _factor(self, step: Primitive) -> None:
        stage = self.stages[step.stage]
        self._add(Stage(step.names[0], list(stage.loops), len(stage.loops), stage.at))
        stage.loops = [
            loop for place, loop in enumerate(stage.loops) if not loop.is_reduction or place == step.loops[0]
        ]
        stage.axes = len(stage.loops)


def scheduled_paths(module: Any) -> dict[str, list[tuple[int, str]]]:
    """Extent and annotation of the loops around each block of a `tvm.IRModule`, the root block left out."""
    found = {}

    def walk(statement: Any, path: list[tuple[int, str]]) -> None:
        kind = type(statement).__name__
        if kind == "For":
            binding = statement.thread_binding
            word = _LOOP_KINDS[int(statement.kind)] if binding is None else str(binding.thread_tag)
            walk(statement.body, [*path, (int(statement.extent), word)])
        elif kind == "SeqStmt":
            for one in statement.seq:
                walk(one, path)
        elif kind == "SBlockRealize":
            found[str(statement.block.name_hint)] = path
        else:
            walk(statement.body, path)

    walk(module["main"].body.block.body, [])
    return found


def replay_steps(module: Any, trace: str) -> tuple[Any, list[str]]:
    """Replay a trace up to post-processing: the schedule, and the name of each stage that a step made."""
    from tvm.s_tir.schedule import Schedule, Trace

    steps, decisions = json.loads(trace)
    end = next((n for n, step in enumerate(steps) if begins_postprocessing(step[0], step[2])), len(steps))
    schedule = Schedule(module, error_render_level="none")
    Trace.apply_json_to_schedule([steps[:end], [one for one in decisions if one[0] < end]], schedule)
    names = []
    for step, instruction in zip(steps[:end], list(schedule.trace.insts), strict=True):
        if step[0] in _MAKERS:
            try:
                names.append(str(schedule.get(instruction.outputs[0]).name_hint))
            except Exception:  # inlined later on: TVM says so in one of several error classes
                names.append("")
    return schedule, names


def compare(
    nest: LoopNest, paths: dict[str, list[tuple[int, str]]], made: list[str]
) -> tuple[list[str], int, int]:
    """Compare every loop of every block.

    Args:
        nest: The nest after all steps.
        paths: What `scheduled_paths` gives.
        made: Names of the stages that steps made.

    Returns:
        What disagrees, the loops whose extent the steps determine, and all loops.
    """
    wrong, determined, total = [], 0, 0
    rest = dict(paths)
    for number, stage in nest.stages.items():
        name = made[number - CREATED] if number >= CREATED else stage.name
        path = rest.pop(name, None)
        if stage.is_inlined or path is None:
            wrong += [f"{name} is inlined on one side only"] * (stage.is_inlined != (path is None))
            continue
        mine = nest.path(number)
        if stage.is_open:
            mine += [Loop(0)] * (len(path) - len(mine))
        seen = [
            (loop.extent or extent, loop.annotation) for loop, (extent, _) in zip(mine, path, strict=False)
        ]
        if seen != path or len(mine) != len(path):
            wrong.append(f"{name}: {mine} by its steps, {path} in TVM")
        determined += sum(loop.extent > 0 for loop in stage.loops)
        total += len(stage.loops)
    return wrong + [f"{name} is no stage" for name in rest], determined, total
