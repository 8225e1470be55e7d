"""Instructions of one MetaSchedule design space, compiled to a template of primitives with holes.

Walks the instructions once with symbolic values: a sampled factor is a reference into the decisions, a loop
knows its block, its original axis and its extent as far as the trace tells. Called by
`transfer.language.meta_schedule` only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transfer.language.primitives import REDUCTION, SPATIAL, Kind, Primitive, Role
from transfer.language.trace_values import (
    Amount,
    Fill,
    Names,
    Plan,
    Product,
    Sampled,
    as_int,
    location_maker,
    resolve,
    tile_maker,
)

_PREFIX = "meta_schedule."
# Notes on the root block (or a cache block, on a GPU) for the post-processors, which begin by taking them
# off: RewriteParallelVectorizeUnroll and RewriteCooperativeFetch.
_POSTPROCESSED_KEYS = frozenset(
    {"parallel", "vectorize", "unroll_explicit", "unroll_implicit", "cooperative_fetch"}
)
_PRAGMA_KEYS = frozenset({"unroll_explicit", "unroll_implicit", "auto_unroll_max_step"})
# A note from one schedule rule to the next, taken off again before the trace ends.
_PASSING_KEYS = frozenset({"random_compute_producer"})

#: Instructions that only name blocks; they give no step.
_NAMING = frozenset({"GetSBlock", "GetBlock", "GetChildBlocks", "GetConsumers", "GetProducers"})
_TILES = frozenset({"SamplePerfectTile", "SamplePartitionedTile"})
_CACHES = {
    "CacheRead": Kind.CHR,
    "ReindexCacheRead": Kind.CHR,
    "CacheWrite": Kind.CHW,
    "ReindexCacheWrite": Kind.CHW,
}
_LOOP_WORDS = {"Parallel": "parallel", "Vectorize": "vectorize", "Unroll": "unroll"}
#: Instructions whose numbers are kept as written.
_PLAIN = {
    "ComputeInline": Kind.CI,
    "ReverseComputeInline": Kind.CI,
    "StorageAlign": Kind.SA,
    "Blockize": Kind.BLOCKIZE,
    "Tensorize": Kind.TENSORIZE,
    "TransformLayout": Kind.LAYOUT,
    "TransformBlockLayout": Kind.LAYOUT,
    "ReIndex": Kind.REINDEX,
    "DecomposePadding": Kind.DECOMPOSE,
    "SetScope": Kind.SCOPE,
    "AddUnitLoop": Kind.UNIT_LOOP,
    "PadEinsum": Kind.PAD_EINSUM,
}


class Instruction(NamedTuple):
    """One instruction of a trace, as written."""

    place: int
    kind: str
    inputs: list[Any]
    attributes: list[Any]
    outputs: list[Any]


class _Loop(NamedTuple):
    """A loop: the variable of its block, the axis it came from (-1: fused, unknown), its extent."""

    block: str = ""
    axis: int = -1
    spatial: bool = True
    extent: Amount = 0


@dataclass(slots=True)
class _Block:
    name: str = ""
    role: Role = Role.OTHER
    #: Loop variables around the block, outermost first; empty where the trace does not tell.
    nest: list[str] = field(default_factory=list)


def compile_plan(instructions: Sequence[Sequence[Any]]) -> Plan:
    """Compile well-formed instructions `[kind, inputs, attributes, outputs]`, up to post-processing."""
    compiler = _Compiler()
    for index, (kind, inputs, attributes, outputs) in enumerate(instructions):
        if _begins_postprocessing(kind, attributes):
            break
        compiler.take(Instruction(index, kind, inputs, attributes, outputs))
    return Plan(tuple(compiler.template), tuple(compiler.holes), compiler.unknown)


def _begins_postprocessing(kind: str, attributes: list[Any]) -> bool:
    """Whether an instruction is one that only post-processors make."""
    if kind == "Unannotate":
        return bool(attributes) and str(attributes[0]).removeprefix(_PREFIX) in _POSTPROCESSED_KEYS
    return kind in ("EnterPostproc", "DecomposeReduction")


class _Compiler:
    """Walks instructions and collects the template."""

    def __init__(self) -> None:
        self.template: list[Primitive] = []
        self.holes: list[tuple[int, Fill]] = []
        self.unknown: Counter[str] = Counter()
        self._blocks: dict[str, _Block] = {}
        self._loops: dict[str, _Loop] = {}
        self._values: dict[str, Sampled] = {}
        self._tiled: _Block | None = None
        self._structure = ""
        self._handlers: dict[str, Callable[[Instruction], None]] = {
            "GetLoops": self._get_loops,
            "SampleCategorical": self._sample_choice,
            "SampleComputeLocation": self._sample_location,
            "Split": self._split,
            "Fuse": self._fuse,
            "Reorder": self._reorder,
            "ComputeAt": self._compute_at,
            "ReverseComputeAt": self._compute_at,
            "RFactor": self._rfactor,
            "Annotate": self._annotate,
            "Unannotate": self._unannotate,
            "Bind": self._annotate_loop,
            **dict.fromkeys(_LOOP_WORDS, self._annotate_loop),
            **dict.fromkeys(_NAMING, self._name_blocks),
            **dict.fromkeys(_TILES, self._sample_tile),
            **dict.fromkeys(_CACHES, self._cache),
        }

    def take(self, instruction: Instruction) -> None:
        """Take in one instruction."""
        self._handlers.get(instruction.kind, self._other)(instruction)

    def _emit(self, kind: Kind, amounts: Sequence[Amount], names: Names) -> None:
        """Add a step; one that waits for decisions leaves a hole."""
        known = tuple(amount for amount in amounts if isinstance(amount, int))
        kept = tuple(amounts)
        if len(known) == len(kept):
            self.template.append(Primitive(kind, known, names))
        else:
            self._hole(
                lambda decisions: Primitive(kind, tuple(resolve(one, decisions) for one in kept), names)
            )

    def _hole(self, make: Fill) -> None:
        self.holes.append((len(self.template), make))
        self.template.append(Primitive(Kind.UNK))

    def _amount(self, item: Any) -> Amount:
        """What an input stands for: a sampled value, a number, or 0 for `None` and anything else."""
        return self._values.get(item, 0) if isinstance(item, str) else as_int(item)

    def _block_at(self, inputs: list[Any], place: int = 0) -> _Block:
        found = self._blocks.get(str(inputs[place])) if len(inputs) > place else None
        return found or _Block()

    def _loop_at(self, inputs: list[Any], place: int = 0) -> _Loop:
        found = self._loops.get(str(inputs[place])) if len(inputs) > place else None
        return found or _Loop()

    def _block_of(self, loop: _Loop) -> _Block:
        return self._blocks.get(loop.block) or _Block()

    def _name_blocks(self, instruction: Instruction) -> None:
        """GetSBlock names a block; its relatives found by other instructions stay nameless."""
        fetched = instruction.kind in ("GetSBlock", "GetBlock") and instruction.attributes
        name = str(instruction.attributes[0]) if fetched else ""
        for output in instruction.outputs:
            same = next((block for block in self._blocks.values() if name and block.name == name), None)
            self._blocks[output] = same or _Block(name, Role.ROOT if name == "root" else Role.OTHER)

    def _get_loops(self, instruction: Instruction) -> None:
        block = self._block_at(instruction.inputs)
        reference = str(instruction.inputs[0]) if instruction.inputs else ""
        # Loops fetched a second time keep what is known of them, as long as none came or went unseen.
        known = len(block.nest) == len(instruction.outputs)
        for axis, output in enumerate(instruction.outputs):
            self._loops[output] = (
                self._loops.get(block.nest[axis], _Loop()) if known else _Loop(reference, axis)
            )
        block.nest = list(instruction.outputs)

    def _sample_tile(self, instruction: Instruction) -> None:
        for place, output in enumerate(instruction.outputs):
            self._values[output] = Sampled(instruction.place, place)

    def _sample_choice(self, instruction: Instruction) -> None:
        choices = instruction.attributes[0] if instruction.attributes else ()
        for output in instruction.outputs:
            self._values[output] = Sampled(
                instruction.place, choices=tuple(choices) if isinstance(choices, list) else ()
            )

    def _sample_location(self, instruction: Instruction) -> None:
        for output in instruction.outputs:
            self._values[output] = Sampled(instruction.place)

    def _replace(self, block: _Block, old: list[Any], new: list[Any], loops: Sequence[_Loop]) -> None:
        """Put new loops in a nest, at the place of the first old one."""
        for output, loop in zip(new, loops, strict=False):
            self._loops[output] = loop
        if old and old[0] in block.nest:
            start = block.nest.index(old[0])
            rest = [item for item in block.nest[start:] if item not in old]
            block.nest[start:] = [*new, *rest]

    def _split(self, instruction: Instruction) -> None:
        loop = self._loop_at(instruction.inputs)
        block = self._block_of(loop)
        factors = [self._amount(item) for item in instruction.inputs[1:]]
        axis_kind = ""
        if block.role is Role.TILED:
            # The tiling structure gives each kind of axis its own number of levels.
            axis_kind = {self._structure.count("R"): REDUCTION, self._structure.count("S"): SPATIAL}.get(
                len(factors), ""
            )
        pieces = [_Loop(loop.block, loop.axis, axis_kind != REDUCTION, factor) for factor in factors]
        self._replace(block, instruction.inputs[:1], instruction.outputs, pieces)
        names = (block.name, str(block.role), axis_kind)
        first = factors[0] if factors else 0
        if isinstance(first, Sampled) and factors == [
            Sampled(first.instruction, place) for place in range(len(factors))
        ]:
            self._hole(tile_maker(first.instruction, len(factors), loop.axis, names))
        else:
            self._emit(Kind.SP, (loop.axis, loop.extent, *factors), names)

    def _fuse(self, instruction: Instruction) -> None:
        loops = [self._loop_at(instruction.inputs, place) for place in range(len(instruction.inputs))]
        first = loops[0] if loops else _Loop()
        extent = Product(tuple(loop.extent for loop in loops)) if loops else 0
        axis = first.axis if len(loops) == 1 else -1
        fused = _Loop(first.block, axis, all(loop.spatial for loop in loops), extent)
        block = self._block_of(first)
        self._replace(block, instruction.inputs, instruction.outputs, [fused])
        self._emit(Kind.FU, (len(loops), extent), (block.name, str(block.role), ""))

    def _reorder(self, instruction: Instruction) -> None:
        block = self._block_of(self._loop_at(instruction.inputs))
        # Reorder permutes the loops that it names among the places that they hold.
        order = iter([item for item in instruction.inputs if item in block.nest])
        block.nest = [next(order, item) if item in instruction.inputs else item for item in block.nest]
        self._emit(Kind.RE, (len(instruction.inputs),), (block.name, str(block.role), ""))

    def _compute_at(self, instruction: Instruction) -> None:
        block = self._block_at(instruction.inputs)
        block.nest = []
        where = str(instruction.inputs[1]) if len(instruction.inputs) > 1 else ""
        sampled = self._values.get(where)
        # A sampled location is a depth in the consumer's loops. The trace does not say who consumes; the
        # tiled block does in every space where such a location pays.
        target = (self._tiled or _Block()) if sampled else self._block_of(self._loop_at([where]))
        if target is block:
            target = _Block()
        depth: Amount = sampled or (target.nest.index(where) if where in target.nest else -1)
        nest = [self._loops.get(item, _Loop()) for item in target.nest]
        extents = [loop.extent for loop in nest]
        # The tile that a write cache holds has no reduction axes.
        counted = [loop.spatial or block.role is not Role.WRITE_CACHE for loop in nest]
        make = location_maker(depth, extents, counted, (block.name, str(block.role), target.name))
        if sampled or not all(isinstance(extent, int) for extent in extents):
            self._hole(make)
        else:
            self.template.append(make({}))

    def _cache(self, instruction: Instruction) -> None:
        kind = _CACHES[instruction.kind]
        source = self._block_at(instruction.inputs)
        numbers = [as_int(item) for item in instruction.attributes[:1]]
        scope = str(instruction.attributes[1]) if len(instruction.attributes) > 1 else ""
        role = Role.READ_CACHE if kind is Kind.CHR else Role.WRITE_CACHE
        for output in instruction.outputs:
            self._blocks[output] = _Block(source.name, role)
        self._emit(kind, numbers, (source.name, str(source.role), scope))

    def _rfactor(self, instruction: Instruction) -> None:
        loop = self._loop_at(instruction.inputs)
        block = self._block_of(loop)
        for output in instruction.outputs:
            self._blocks[output] = _Block(block.name, Role.RFACTOR)
        factor_axis = as_int(instruction.attributes[0]) if instruction.attributes else 0
        self._emit(Kind.RF, (loop.axis, factor_axis, loop.extent), (block.name, str(block.role), ""))
        block.nest = []

    def _annotate(self, instruction: Instruction) -> None:
        key = str(instruction.attributes[0]) if instruction.attributes else ""
        word = key.removeprefix(_PREFIX).removeprefix("pragma_")
        if word in _PASSING_KEYS:
            return
        value = instruction.inputs[1] if len(instruction.inputs) > 1 else 0
        loop = self._loops.get(str(instruction.inputs[0])) if instruction.inputs else None
        block = self._block_of(loop) if loop else self._block_at(instruction.inputs)
        if word == "tiling_structure" and isinstance(value, str):
            self._structure = word = value.strip('"')
            block.role, self._tiled = Role.TILED, block
            value = 0
        names = (block.name, str(block.role), word)
        if word in _PRAGMA_KEYS:
            self._emit(Kind.PR, (self._amount(value),), names)
        else:
            self._emit(Kind.AN, (loop.axis if loop else -1, self._amount(value)), names)

    def _annotate_loop(self, instruction: Instruction) -> None:
        loop = self._loop_at(instruction.inputs)
        block = self._block_of(loop)
        attributes = instruction.attributes
        word = _LOOP_WORDS.get(instruction.kind) or (str(attributes[0]) if attributes else "")
        self._emit(Kind.AN, (loop.axis, loop.extent), (block.name, str(block.role), word))

    def _unannotate(self, instruction: Instruction) -> None:
        word = str(instruction.attributes[0]).removeprefix(_PREFIX) if instruction.attributes else ""
        if word not in _PASSING_KEYS:
            block = self._block_at(instruction.inputs)
            self._emit(Kind.UNANNOTATE, (), (block.name, str(block.role), word))

    def _other(self, instruction: Instruction) -> None:
        """A step of its numbers as written; UNK, and counted, where nobody knows the instruction."""
        kind = _PLAIN.get(instruction.kind, Kind.UNK)
        if kind is Kind.UNK:
            self.unknown[instruction.kind] += 1
        amounts = [
            self._amount(item)
            for item in (*instruction.inputs, *instruction.attributes)
            if isinstance(item, int | float) or (isinstance(item, str) and item in self._values)
        ]
        if kind is Kind.UNK:
            for output in instruction.outputs:
                self._values[str(output)] = Sampled(instruction.place)
        block = self._block_at(instruction.inputs)
        words = [item for item in instruction.attributes if isinstance(item, str)]
        self._emit(kind, amounts, (block.name, str(block.role), words[0] if words else ""))
