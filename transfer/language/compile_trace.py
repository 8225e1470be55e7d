"""Instructions of one MetaSchedule design space, compiled to a template of primitives with holes.

Walks the instructions once with symbolic values: a sampled factor is a reference into the decisions, a loop
knows its stage, its original axis and its extent as far as the trace tells. A sampled compute location moves
loops between nests, so what follows the first one is compiled once for each set of locations met: a few
instructions at the end of a trace. Called by `transfer.language.meta_schedule` only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from transfer.language.budget import WalkBudget
from transfer.language.program import ProgramStage
from transfer.language.trace_stages import StageTable
from transfer.language.trace_steps import HANDLERS, PREFIX, other_step
from transfer.language.trace_values import CompiledSpace, Sampled, Tail
from transfer.language.trace_walk import Instruction, Walker

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
