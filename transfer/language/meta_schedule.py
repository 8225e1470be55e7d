"""MetaSchedule traces as primitive sequences.

A trace is the JSON text `[instructions, decisions]` of `tvm.s_tir.schedule.Trace.as_json`: an instruction is
`[kind, inputs, attributes, outputs]`, a decision `[instruction index, value]`. Random variables are named
`b0`, `l3`, `v10`; string literals keep their quotes. Candidates of one design space differ in their decisions
only, so the instructions are compiled once to a template with a few holes, and a further trace costs the
parse of its decisions. Called by `transfer.features.extractor`; needs no TVM.

Post-processing is left out: it follows from what stands before it, records may come with or without it, and
a search adds it only on some paths. It begins at `EnterPostproc`, or, where a trace was replayed without one,
at the first instruction that only post-processors make (see `compile_trace`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from agents.records import Workload
from transfer.errors import BudgetError, TraceError
from transfer.language.primitives import MAX_NUMBER, MAX_TEXT, Primitive, WalkBudget, parse_json
from transfer.language.program import ProgramStage, program_stages
from transfer.language.trace_stages import StageTable
from transfer.language.trace_steps import HANDLERS, PREFIX, other_step
from transfer.language.trace_values import CompiledSpace, Sampled, Tail
from transfer.language.trace_walk import Instruction, Walker

# Instructions of one MetaSchedule design space, compiled to a template of primitives with holes.
#
# Walks the instructions once with symbolic values: a sampled factor is a reference into the decisions, a
# loop knows its stage, its original axis and its extent as far as the trace tells. A sampled compute
# location moves loops between nests, so what follows the first one is compiled once for each set of
# locations met: a few instructions at the end of a trace.

#: Keys of the notes on the root block (or a cache block, on a GPU) for the post-processors, which begin by
#: taking them off: RewriteParallelVectorizeUnroll and RewriteCooperativeFetch.
POSTPROCESSED_KEYS = frozenset(
    PREFIX + word
    for word in ("parallel", "vectorize", "unroll_explicit", "unroll_implicit", "cooperative_fetch")
)
#: The same for a search in text.
POSTPROCESSED_PATTERN = "|".join(map(re.escape, sorted(POSTPROCESSED_KEYS)))
_TILES = frozenset({"SamplePerfectTile", "SamplePartitionedTile"})
_LOCATION = "SampleComputeLocation"


def compile_plan(
    instructions: Sequence[Sequence[Any]], program: Sequence[ProgramStage], text_chars: int
) -> CompiledSpace:
    """Compile well-formed instructions `[kind, inputs, attributes, outputs]`, up to post-processing.

    Args:
        instructions: Those of one design space.
        program: Stages of the workload; `()` where it is not known.
        text_chars: Length of the text that the instructions stand in: how much work they may cause.

    Raises:
        BudgetError: They cause more, at once or under some sampled locations.
    """
    parsed: list[Instruction] = []
    for index, (kind, inputs, attributes, outputs) in enumerate(instructions):
        if begins_postprocessing(kind, attributes):
            break
        parsed.append(Instruction(index, kind, inputs, attributes, outputs))
    locations = tuple(instruction.place for instruction in parsed if instruction.kind == _LOCATION)
    cut = next(
        (number for number, instruction in enumerate(parsed) if instruction.kind == _LOCATION), len(parsed)
    )
    head = Walker(StageTable(program, WalkBudget(text_chars, "the MetaSchedule trace")))
    for instruction in parsed[:cut]:
        _take(head, instruction)
    rest = parsed[cut:]

    def follow(sampled: tuple[int, ...]) -> Tail:
        budget = WalkBudget(text_chars, "the MetaSchedule trace")
        walker = head.fork(dict(zip(locations, sampled, strict=True)), budget)
        for instruction in rest:
            _take(walker, instruction)
        return walker.result()

    return CompiledSpace(head.result(), locations, follow)


def begins_postprocessing(kind: str, attributes: list[Any]) -> bool:
    """Whether an instruction is one that only post-processors make."""
    if kind == "Unannotate":
        return bool(attributes) and str(attributes[0]) in POSTPROCESSED_KEYS
    return kind in ("EnterPostproc", "DecomposeReduction")


def _take(walker: Walker, instruction: Instruction) -> None:
    _HANDLERS.get(instruction.kind, other_step)(walker, instruction)


def _sample_tile(walker: Walker, instruction: Instruction) -> None:
    for place, output in enumerate(instruction.outputs):
        walker.values[output] = Sampled(instruction.place, place)


def _sample_choice(walker: Walker, instruction: Instruction) -> None:
    choices = instruction.attributes[0] if instruction.attributes else ()
    sampled = Sampled(instruction.place, choices=tuple(choices) if isinstance(choices, list) else ())
    walker.values.update(dict.fromkeys(instruction.outputs, sampled))


def _sample_location(walker: Walker, instruction: Instruction) -> None:
    for output in instruction.outputs:
        walker.values[output] = Sampled(instruction.place)


_HANDLERS: dict[str, Callable[[Walker, Instruction], None]] = {
    **HANDLERS,
    "SampleCategorical": _sample_choice,
    _LOCATION: _sample_location,
    **dict.fromkeys(_TILES, _sample_tile),
}


#: Plans kept before starting over; a design space is one plan, a network has a few hundred at most. Texts of
#: strangers may be long: so many characters of them, which take up to twenty times as many bytes.
_PLAN_LIMIT = 4096
_PLAN_CHARS = 12_000_000
#: Characters that a step or a decision kept by a plan counts as.
_STEP_CHARS = 16
#: Programs kept before starting over, one a workload, and their stages.
_PROGRAM_LIMIT = 4096
_STAGE_LIMIT = 65_536

# Where post-processing begins, as TVM writes it: only speeds up the look-up of a plan. Text in another form
# has all of its instructions as the key.
_ENTER = '["EnterPostproc",[],[],[]]'
_UNANNOTATE = '["Unannotate",["b'
_UNANNOTATE_KEY = re.compile(rf'\["Unannotate",\["b\d+"\],\["(?:{POSTPROCESSED_PATTERN})"\],\[\]\]')


class MetaScheduleReader:
    """Reads traces; keeps the compiled form of each design space met."""

    def __init__(self) -> None:
        # By workload ("" where its program is not known) and the text of the instructions.
        self._plans: dict[tuple[str, str], CompiledSpace] = {}
        #: Characters that the plans count as.
        self._plan_chars = 0
        self._programs: dict[str, tuple[ProgramStage, ...] | BudgetError] = {}
        self._stages = 0

    def read(self, trace: str, workload: Workload | None = None) -> tuple[Primitive, ...]:
        """Read one trace.

        Args:
            trace: JSON text `[instructions, decisions]`.
            workload: What it schedules. Without it, or where its module cannot be read, stages are numbered
                in the order of their first mention, and extents and readers that only the program tells
                stay unknown.

        Returns:
            The steps before post-processing, sampled values put in.

        Raises:
            TraceError: The text is not such a trace, or is larger than any.
        """
        plan, decisions = self._plan(trace, workload)
        before = plan.size
        try:
            return plan.fill(decisions)
        finally:
            # A faulty candidate leaves as much behind as a sound one.
            self._plan_chars += _STEP_CHARS * (plan.size - before)

    def check(self, trace: str, workload: Workload | None = None) -> None:
        """Raise what `read` would, in a third of the time where many traces of a design space are checked.

        Raises:
            TraceError: The text is not such a trace.
        """
        plan, decisions = self._plan(trace, workload)
        before = plan.size
        try:
            plan.check(decisions)
        finally:
            self._plan_chars += _STEP_CHARS * (plan.size - before)

    def space(self, trace: str, workload: Workload) -> tuple[CompiledSpace, dict[int, Any]]:
        """The compiled design space of a trace, and its decisions with tuples for lists.

        Raises:
            TraceError: The text is not such a trace.
        """
        space, decisions = self._plan(trace, workload)
        return space, {
            place: tuple(value) if isinstance(value, list) else value for place, value in decisions.items()
        }

    def _plan(self, trace: str, workload: Workload | None) -> tuple[CompiledSpace, dict[int, Any]]:
        """The compiled design space of a trace, and its decisions."""
        if len(trace) > MAX_TEXT:
            raise TraceError(f"MetaSchedule trace has {len(trace)} characters, at most {MAX_TEXT} are read")
        if self._plan_chars > _PLAN_CHARS:
            # Here and not where a space is new: the candidates of one space alone may take that much.
            self._forget()
        split = _split_text(trace)
        program = self.program(workload) if workload is not None else ()
        owner = workload.workload_id if workload is not None and program else ""
        plan = self._plans.get((owner, split[0])) if split is not None else None
        if split is None or plan is None:
            instructions, decisions = _parse(trace)
            plan = compile_plan(instructions, program, len(trace))
            if split is not None:
                if len(self._plans) >= _PLAN_LIMIT:
                    self._forget()
                self._plans[owner, split[0]] = plan
                self._plan_chars += len(split[0])
        else:
            decisions = split[1]
        return plan, _by_instruction(decisions)

    def _forget(self) -> None:
        self._plans.clear()
        self._plan_chars = 0

    def program(self, workload: Workload) -> tuple[ProgramStage, ...]:
        """Stages of a workload's program, read once; `()` where its module cannot be read.

        Raises:
            BudgetError: The module takes more work to read than any real one.
        """
        stages = self._programs.get(workload.workload_id)
        if stages is None:
            if len(self._programs) >= _PROGRAM_LIMIT or self._stages > _STAGE_LIMIT:
                self._programs.clear()
                self._stages = 0
            try:
                stages = program_stages(workload.module_json)
                self._stages += len(stages)
            except BudgetError as error:
                stages = error
            self._programs[workload.workload_id] = stages
        if isinstance(stages, BudgetError):
            raise BudgetError(str(stages))
        return stages


def _split_text(trace: str) -> tuple[str, list[Any]] | None:
    """Key of the design space, and the decisions, without parsing the instructions; None if that fails."""
    # Decisions hold no quote, so they begin at the first "]],[" after the last one.
    start = trace.find("]],[[", trace.rfind('"'))
    if start < 0 or not trace.endswith("]"):
        return None
    try:
        decisions = json.loads(trace[start + 3 : -1])
    except (ValueError, RecursionError):
        return None
    return trace[: _head_end(trace, start)], decisions


def _head_end(trace: str, end: int) -> int:
    """Where post-processing begins in the text of the instructions; `end` where that is not seen."""
    place = trace.find(_ENTER, 0, end)
    if place >= 0:
        return place
    place = trace.find(_UNANNOTATE, 0, end)
    while place >= 0 and not _UNANNOTATE_KEY.match(trace, place):
        place = trace.find(_UNANNOTATE, place + 1, end)
    return place if place >= 0 else end


def _parse(trace: str) -> tuple[list[Any], list[Any]]:
    """Parse a whole trace and check its outer form.

    Raises:
        TraceError: It is not JSON, or not `[instructions, decisions]`.
    """
    value = parse_json(trace, "MetaSchedule trace")
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value)):
        raise TraceError(f"MetaSchedule trace must be [instructions, decisions], begins {trace[:60]!r}")
    for place, instruction in enumerate(value[0]):
        well_formed = (
            isinstance(instruction, list)
            and len(instruction) == 4
            and isinstance(instruction[0], str)
            and all(isinstance(part, list) for part in instruction[1:])
            and all(isinstance(output, str) for output in instruction[3])
        )
        if not well_formed:
            raise TraceError(
                f"MetaSchedule instruction {place} must be [kind, inputs, attributes, outputs], "
                f"got {str(instruction)[:80]}"
            )
    return value[0], value[1]


def _by_instruction(decisions: list[Any]) -> dict[int, Any]:
    """Decisions by the index of their instruction.

    Raises:
        TraceError: One is not `[instruction index, integer or list of integers]`.
    """
    value_by_instruction: dict[int, Any] = {}
    for decision in decisions:
        try:
            index, value = decision
        except (TypeError, ValueError):
            raise TraceError(f"MetaSchedule decision must be [index, value], got {decision!r:.80}") from None
        for number in (index, *value) if type(value) is list else (index, value):
            # Booleans are no numbers here, and what exceeds 64 bits is no extent.
            if type(number) is not int or not -MAX_NUMBER <= number <= MAX_NUMBER:
                raise TraceError(f"MetaSchedule decision {decision!r:.80} must hold 64-bit integers only")
        value_by_instruction[index] = value
    return value_by_instruction
