"""Stages and loops that the variables of a MetaSchedule trace stand for while its instructions are walked.

Loops have an identity of their own, so that a loop fetched twice, or through another block, is known again:
it belongs to one stage, whose own loops are those it does not share with the nest it is computed at. Called
by `transfer.language.meta_schedule` only; knows nothing of instructions or decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from transfer.language.primitives import CREATED, Kind, Primitive, Role, WalkBudget
from transfer.language.program import ProgramStage
from transfer.language.trace_values import Amount

#: `LoopInfo.stage` and `TraceStage.number` of what the trace does not tell.
UNKNOWN_STAGE = -1
#: `TraceStage.at` of a stage at the root.
ROOT = -1


class LoopInfo(NamedTuple):
    """A loop: the stage it belongs to, the axis it came from (-1: fused, unknown), its extent."""

    key: int = UNKNOWN_STAGE
    axis: int = -1
    #: False for a loop over reduction axes, as far as the tiling tells.
    spatial: bool = True
    extent: Amount = 0
    #: Whether the program's own loop ran over a reduction axis; None where the program is not known.
    reduction: bool | None = None


NO_LOOP = LoopInfo()


@dataclass(slots=True)
class TraceStage:
    """A block while the trace is walked."""

    #: Stable number, `UNKNOWN_STAGE` for the root and for blocks that the trace does not name.
    number: int = UNKNOWN_STAGE
    name: str = ""
    role: Role = Role.OTHER
    #: Key in its table.
    key: int = UNKNOWN_STAGE
    #: Own loops, outermost first; None where their number is not known.
    own: list[int] | None = None
    #: Loop that the own loops stand in.
    at: int = ROOT
    #: Loops that a compute-at makes; -1 unknown.
    axes: int = -1
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    inlined: bool = False
    #: Whether own loops and place are no longer known: positions would be guesses.
    lost: bool = False

    def step(
        self, kind: Kind, detail: str = "", loops: tuple[int, ...] = (), targets: tuple[int, ...] = ()
    ) -> Primitive:
        """A step on this stage, its numbers left out."""
        return Primitive(kind, (), (self.name, str(self.role), detail), self.number, loops, targets)


class StageTable:
    """Every stage and loop met so far.

    Args:
        program: Stages of the workload; `()` where it is not known.
        budget: Pays for every stage and loop that is looked at.

    Attributes:
        infos: What is known of each loop, by its identity.
        blocks: Key of the stage that each block variable stands for.
        loops: Loop that each loop variable stands for.
    """

    def __init__(self, program: Sequence[ProgramStage], budget: WalkBudget) -> None:
        self.budget = budget
        self.infos: list[LoopInfo] = []
        self.blocks: dict[str, int] = {}
        self.loops: dict[str, int] = {}
        self._stages: dict[int, TraceStage] = {}
        self._by_name: dict[str, int] = {}
        self._originals = 0
        self._created = 0
        self._next_buffer = -1
        self._has_program = bool(program)
        for original in program:
            stage = self._add(
                TraceStage(
                    self._originals, original.name, reads=list(original.reads), writes=list(original.writes)
                )
            )
            self._originals += 1
            depth = 0
            if original.at is not None:
                stage.at = (self._stages[original.at[0]].own or [])[original.at[1]]
                depth = len(self.path(stage) or ())
            stage.axes = original.axes
            stage.own = [
                self.add_loop(LoopInfo(stage.key, depth + place, extent=extent, reduction=reduction))
                for place, (extent, reduction) in enumerate(
                    zip(original.extents, original.reductions, strict=True)
                )
            ]
            self._by_name.setdefault(original.name, stage.key)

    def copy(self, budget: WalkBudget) -> StageTable:
        """A table that goes its own way from here, on another budget."""
        other = StageTable((), budget)
        other.infos = self.infos.copy()
        other.blocks = self.blocks.copy()
        other.loops = self.loops.copy()
        other._stages = {
            key: replace(
                stage,
                own=None if stage.own is None else stage.own.copy(),
                reads=stage.reads.copy(),
                writes=stage.writes.copy(),
            )
            for key, stage in self._stages.items()
        }
        other._by_name = self._by_name.copy()
        other._originals, other._created = self._originals, self._created
        other._next_buffer, other._has_program = self._next_buffer, self._has_program
        return other

    def _add(self, stage: TraceStage) -> TraceStage:
        stage.key = len(self._stages)
        self._stages[stage.key] = stage
        return stage

    def add_loop(self, info: LoopInfo) -> int:
        """Give a loop an identity."""
        self.infos.append(info)
        return len(self.infos) - 1

    def stage_of(self, variable: str) -> TraceStage | None:
        """Stage that a block variable stands for."""
        key = self.blocks.get(variable)
        return None if key is None else self._stages[key]

    def stage_by_key(self, key: int) -> TraceStage | None:
        """Stage of a key; None where there is none."""
        return self._stages.get(key)

    def owner(self, loop: int) -> TraceStage | None:
        """Stage that a loop belongs to."""
        return self._stages.get(self.infos[loop].key)

    def fetch(self, variable: str, name: str) -> None:
        """Let a variable stand for the block of a name; a first mention makes a stage of it."""
        if name not in self._by_name:
            if name == "root":
                stage = TraceStage(name=name, role=Role.ROOT)
            elif self._has_program:  # a name that the program lacks
                stage = TraceStage(name=name, lost=True)
            else:
                stage = TraceStage(self._originals, name)
                self._originals += 1
            self._by_name[name] = self._add(stage).key
        self.blocks[variable] = self._by_name[name]

    def relate(self, variables: Sequence[str], stages: Sequence[TraceStage]) -> None:
        """Let variables stand for a block's relatives; for unknown blocks where their number differs."""
        are_paired = len(variables) == len(stages)
        for place, variable in enumerate(variables):
            stage = stages[place] if are_paired else self._add(TraceStage(lost=True))
            self.blocks[variable] = stage.key

    def create(self, variables: Sequence[str], name: str, role: Role) -> TraceStage:
        """Make the stage that a step creates."""
        stage = self._add(TraceStage(CREATED + self._created, name, role))
        self._created += 1
        for variable in variables:
            self.blocks[variable] = stage.key
        return stage

    def path(self, stage: TraceStage) -> list[int] | None:
        """Loops around a stage, outermost first; None where they are not all known."""
        loops: list[int] = []
        owner_count = 0
        while stage.own is not None and not stage.lost:
            self.budget.spend(1 + len(loops) + len(stage.own))
            loops[:0] = stage.own
            if stage.at == ROOT:
                return loops
            owner = self.owner(stage.at)
            if owner is None or owner.own is None:
                return None
            self.budget.spend(len(owner.own))
            if stage.at not in owner.own:
                return None
            loops[:0] = owner.own[: owner.own.index(stage.at) + 1]
            # Continue with the place of the owner: its own loops up to here are taken already.
            stage = TraceStage(own=[], at=owner.at, lost=owner.lost)
            owner_count += 1
            if owner_count > len(self._stages):
                return None
        return None

    def shared(self, stage: TraceStage) -> list[int] | None:
        """Loops around a stage that are not its own."""
        return self.path(TraceStage(own=[], at=stage.at, lost=stage.lost))

    def fresh_loops(self, stage: TraceStage, count: int, first_axis: int) -> list[int]:
        """Make loops of unknown extent for a stage."""
        return [self.add_loop(LoopInfo(stage.key, first_axis + place)) for place in range(count)]

    def position(self, loop: int) -> tuple[int, ...]:
        """Position of a loop among its stage's own loops, `()` where unknown."""
        owner = self.owner(loop)
        if owner is None or owner.lost or owner.own is None:
            return ()
        self.budget.spend(len(owner.own))
        if loop not in owner.own:
            return ()
        return (owner.own.index(loop),)

    def replace(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Put new loops in the place of old ones that follow each other in one stage."""
        owner = self.owner(old[0]) if old else None
        if owner is None or owner.own is None:
            return
        self.budget.spend(len(owner.own) + len(self._stages))
        if old[0] not in owner.own:
            return
        start = owner.own.index(old[0])
        gone = set(old)
        owner.own[start:] = [*new, *(loop for loop in owner.own[start:] if loop not in gone)]
        for stage in self._stages.values():
            if stage.at in gone:
                stage.at = new[-1] if new else ROOT

    def reorder(self, loops: Sequence[int]) -> tuple[int, ...]:
        """Permute loops of one stage among the places that they hold.

        Returns:
            The old position of each new place; `()` where they are not loops of one known stage, or one is
            named twice.
        """
        owner = self.owner(loops[0]) if loops else None
        if owner is None or owner.own is None:
            return ()
        self.budget.spend(len(loops) + len(owner.own) + len(self._stages))
        before = owner.own
        old_place = {loop: place for place, loop in enumerate(before)}
        named = set(loops)
        if len(named) != len(loops):
            return ()
        order = iter([loop for loop in loops if loop in old_place])
        after = [next(order) if loop in named else loop for loop in before]
        owner.own = after
        for stage in self._stages.values():
            # What stands in the nest stays at the same depth.
            if stage.at in old_place:
                stage.at = after[old_place[stage.at]]
        if owner.lost or not named.issubset(before):
            return ()
        return tuple(old_place[loop] for loop in after)

    def move(self, stage: TraceStage, loop: int) -> None:
        """Compute a stage at a loop: its own loops are made anew, one an axis."""
        stage.at, stage.lost = loop, False
        around = self.shared(stage)
        stage.own = (
            self.fresh_loops(stage, stage.axes, len(around))
            if around is not None and stage.axes >= 0
            else None
        )

    def lose(self, stage: TraceStage) -> None:
        """Forget loops and place of a stage that an instruction changed in an unknown way."""
        stage.own, stage.lost = None, True

    def consumers(self, stage: TraceStage) -> list[TraceStage]:
        """Stages that read what a stage writes, as far as the program or the trace tells."""
        return [other for other in self._others(stage) if not set(other.reads).isdisjoint(stage.writes)]

    def producers(self, stage: TraceStage) -> list[TraceStage]:
        """Stages that write what a stage reads."""
        return [other for other in self._others(stage) if not set(other.writes).isdisjoint(stage.reads)]

    def _others(self, stage: TraceStage) -> list[TraceStage]:
        """Stages but for this one and those inlined; pays for a look at the buffers of every stage."""
        self.budget.spend(sum(1 + len(other.reads) + len(other.writes) for other in self._stages.values()))
        return [other for other in self._stages.values() if other is not stage and not other.inlined]

    def _new_buffer(self) -> int:
        self._next_buffer -= 1
        return self._next_buffer

    def put_between(
        self, cache: TraceStage, stage: TraceStage, buffer: int, readers: Iterable[TraceStage]
    ) -> None:
        """Let a cache of one of the buffers that a stage reads feed some readers of it."""
        old = stage.reads[buffer] if 0 <= buffer < len(stage.reads) else self._new_buffer()
        new = self._new_buffer()
        cache.reads, cache.writes = [old], [new]
        for reader in readers:
            self.budget.spend(len(reader.reads))
            if old not in reader.reads:
                reader.reads.append(old)
            reader.reads = [new if read == old else read for read in reader.reads]

    def put_behind(self, created: TraceStage, stage: TraceStage, buffer: int) -> None:
        """Let a created stage write one of the buffers of a stage, which writes a new one instead."""
        new = self._new_buffer()
        if not 0 <= buffer < len(stage.writes):
            buffer = len(stage.writes)
            stage.writes.append(self._new_buffer())
        created.reads, created.writes = [new], [stage.writes[buffer]]
        stage.writes[buffer] = new

    def put_before(self, created: TraceStage, stage: TraceStage) -> None:
        """Let a created stage do what a stage did, which then only finishes its result."""
        new = self._new_buffer()
        created.reads, created.writes = stage.reads, [new]
        stage.reads = [new]

    def inline(self, stage: TraceStage, *, reverse: bool) -> None:
        """Merge a stage into its consumers, or into its producers."""
        if reverse:
            for producer in self.producers(stage):
                self.budget.spend(len(stage.reads) + len(stage.writes))
                merged = [read for read in stage.reads if read not in producer.writes]
                producer.reads = list(dict.fromkeys([*producer.reads, *merged]))
                producer.writes = stage.writes.copy()
        else:
            for consumer in self.consumers(stage):
                self.budget.spend(len(stage.reads) + len(consumer.reads))
                others = [read for read in consumer.reads if read not in stage.writes]
                consumer.reads = list(dict.fromkeys([*others, *stage.reads]))
        stage.inlined, stage.own = True, []
