"""The state of a walk over the instructions of a MetaSchedule trace, and the steps it collects.

The handlers of `trace_steps` read and change it, one instruction at a time.
Called by them and by `transfer.language.meta_schedule` only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transfer.language.primitives import Kind, Primitive, WalkBudget
from transfer.language.trace_stages import NO_LOOP, UNKNOWN_STAGE, LoopInfo, StageTable, TraceStage
from transfer.language.trace_values import (
    Amount,
    Fill,
    Hole,
    Product,
    Sampled,
    Tail,
    as_int,
    instructions_of,
    resolve,
)


class Instruction(NamedTuple):
    """One instruction of a trace, as written."""

    place: int
    kind: str
    inputs: list[Any]
    attributes: list[Any]
    outputs: list[Any]


class Walker:
    """What is known at one point of a walk over instructions, and the steps collected so far.

    Args:
        table: Stages and loops of the program.
        locations: Sampled compute locations by the instruction that sampled them.

    Attributes:
        values: Sampled numbers by variable.
        tiled: Key of the stage with the multi-level tiling.
        structure: Its tiling structure, such as `SSRSRS`.
    """

    def __init__(self, table: StageTable, locations: dict[int, int] | None = None) -> None:
        self._template: list[Primitive] = []
        self._holes: list[Hole] = []
        self.table = table
        self.values: dict[str, Sampled] = {}
        self.locations = locations or {}
        self.tiled = UNKNOWN_STAGE
        self.structure = ""

    def fork(self, locations: dict[int, int], budget: WalkBudget) -> Walker:
        """A walk that continues from here, with an empty template, under some sampled locations."""
        other = Walker(self.table.copy(budget), locations)
        other.values = self.values.copy()
        other.tiled, other.structure = self.tiled, self.structure
        return other

    def result(self) -> Tail:
        """Template and holes so far."""
        return Tail(tuple(self._template), tuple(self._holes))

    def emit(self, step: Primitive, *amounts: Amount) -> None:
        """Add a step with its numbers; one that waits for decisions leaves a hole."""
        integers = tuple(amount for amount in amounts if isinstance(amount, int))
        if len(integers) == len(amounts):
            self._template.append(step._replace(numbers=integers))
        else:
            # Every candidate will multiply what is fused.
            self.table.budget.spend(
                sum(len(amount.parts) for amount in amounts if isinstance(amount, Product))
            )
            self.hole(
                instructions_of(amounts),
                lambda decisions: step._replace(
                    numbers=tuple(resolve(amount, decisions) for amount in amounts)
                ),
            )

    def hole(self, reads: tuple[int, ...], make: Fill) -> None:
        """Leave a place in the template for a step that the decisions of some instructions make."""
        self._holes.append(Hole(len(self._template), reads, make))
        self._template.append(Primitive(Kind.UNK))

    def amount(self, item: Any) -> Amount:
        """What an input stands for: a sampled value, a number, or 0 for `None` and anything else."""
        return self.values.get(item, 0) if isinstance(item, str) else as_int(item)

    def stage_at(self, inputs: list[Any]) -> TraceStage:
        """Stage of the block variable that comes first; a lost one where nobody knows it."""
        stage = self.table.stage_of(str(inputs[0])) if inputs else None
        return stage or TraceStage(lost=True)

    def loop_at(self, inputs: list[Any], place: int = 0) -> int:
        """Identity of a loop variable, -1 unknown."""
        return self.table.loops.get(str(inputs[place]), -1) if len(inputs) > place else -1

    def info(self, loop: int) -> LoopInfo:
        """What is known of a loop."""
        return self.table.infos[loop] if loop >= 0 else NO_LOOP

    def owner(self, loop: int) -> TraceStage:
        """Stage of a loop; a lost one where nobody knows it."""
        owner = self.table.owner(loop) if loop >= 0 else None
        return owner or TraceStage(lost=True)

    def position(self, loop: int) -> tuple[int, ...]:
        """Position of a loop among its stage's own loops, `()` where unknown."""
        return self.table.position(loop) if loop >= 0 else ()

    def loop_step(self, kind: Kind, loop: int, detail: str) -> Primitive:
        """A step on one loop, its numbers left out."""
        return self.owner(loop).step(kind, detail, self.position(loop))

    def put(self, instruction: Instruction, old: list[int], new: list[int]) -> None:
        """Let outputs stand for new loops, in the place of old ones."""
        self.table.loops.update(zip(instruction.outputs, new, strict=False))
        if all(loop >= 0 for loop in old):
            self.table.replace(old, new)
