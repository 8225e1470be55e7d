"""MetaSchedule instructions on blocks as canonical steps: names, places, caches, factored reductions.

Each function takes in one instruction and adds the steps it stands for. Called by
`transfer.language.compile_trace` only.
"""

from __future__ import annotations

from collections.abc import Callable

from transfer.language.primitives import Kind, Role
from transfer.language.trace_loop_steps import PASSING_KEYS, PREFIX
from transfer.language.trace_stages import TraceStage
from transfer.language.trace_values import (
    Product,
    Sampled,
    Step,
    as_int,
    instructions_of,
    location_maker,
)
from transfer.language.trace_walk import Instruction, Walker

#: Instructions that only name blocks; they give no step.
_NAMING = frozenset({"GetSBlock", "GetBlock"})
_RELATING = frozenset({"GetChildBlocks", "GetConsumers", "GetProducers"})
_CACHES = {
    "CacheRead": Kind.CHR,
    "ReindexCacheRead": Kind.CHR,
    "CacheWrite": Kind.CHW,
    "ReindexCacheWrite": Kind.CHW,
}
#: Instructions whose numbers are kept as written.
PLAIN = {
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
    "PadEinsum": Kind.PAD_EINSUM,
}
#: Of these, the ones that leave loops as they are.
_KEEPS_LOOPS = frozenset({Kind.CI, Kind.SA, Kind.SCOPE, Kind.LAYOUT})


def _name_blocks(walker: Walker, instruction: Instruction) -> None:
    name = str(instruction.attributes[0]) if instruction.attributes else ""
    for output in instruction.outputs:
        walker.table.fetch(output, name)


def _relate_blocks(walker: Walker, instruction: Instruction) -> None:
    stage = walker.stage_at(instruction.inputs)
    relation = {"GetConsumers": walker.table.consumers, "GetProducers": walker.table.producers}.get(
        instruction.kind
    )
    walker.table.relate(instruction.outputs, relation(stage) if relation else ())


def _compute_at(walker: Walker, instruction: Instruction) -> None:
    table = walker.table
    stage = walker.stage_at(instruction.inputs)
    where = str(instruction.inputs[1]) if len(instruction.inputs) > 1 else ""
    sampled = walker.values.get(where)
    if sampled is not None:
        place = walker.locations.get(sampled.instruction, 0)
        if place < 0:
            _stay_or_inline(walker, stage, place)
            return
        # A sampled location is a depth in the first consumer's loops. Where the program does not say who
        # consumes, the tiled block does in every space where such a location pays.
        consumers = table.consumers(stage)
        target = consumers[0] if consumers else table.stage_by_key(walker.tiled)
        nest = table.path(target) if target is not None and target is not stage else None
        loop = nest[place] if nest and place < len(nest) else -1
    else:
        loop = walker.loop_at(instruction.inputs, 1)
        target = walker.owner(loop)
        nest = table.path(target) if target is not stage else None
        place = nest.index(loop) if nest and loop in nest else -1
    names = (stage.name, str(stage.role), target.name if target and target is not stage else "")
    infos = [walker.info(loop) for loop in nest or ()]
    # Every candidate will multiply them.
    table.budget.spend(
        sum(len(info.extent.parts) if isinstance(info.extent, Product) else 1 for info in infos)
    )
    owner = walker.owner(loop)
    has_owner = not owner.lost and owner is not stage
    step = Step(
        Kind.CA,
        names,
        stage.number,
        table.position(loop) if has_owner and loop >= 0 else (),
        (owner.number,) if has_owner else (),
    )
    # The tile that a write cache holds has no reduction axes.
    counted = [info.spatial or stage.role is not Role.WRITE_CACHE for info in infos]
    extents = [info.extent for info in infos]
    walker.hole(instructions_of(extents), location_maker(place, extents, counted, step))
    if has_owner and loop >= 0:
        table.move(stage, loop)
    else:
        table.lose(stage)


def _stay_or_inline(walker: Walker, stage: TraceStage, place: int) -> None:
    """Location -2 inlines a block, -1 leaves it at the root."""
    names = (stage.name, str(stage.role), "")
    walker.emit(Step(Kind.CI if place == -2 else Kind.CR, names, stage.number), ())
    if place == -2:
        walker.table.inline(stage, reverse=False)


def _cache(walker: Walker, instruction: Instruction) -> None:
    table, kind = walker.table, _CACHES[instruction.kind]
    source = walker.stage_at(instruction.inputs)
    numbers = [as_int(item) for item in instruction.attributes[:1]]
    scope = str(instruction.attributes[1]) if len(instruction.attributes) > 1 else ""
    buffer = numbers[0] if numbers else 0
    cache = table.create(
        instruction.outputs, source.name, Role.READ_CACHE if kind is Kind.CHR else Role.WRITE_CACHE
    )
    targets: tuple[int, ...] = ()
    if kind is Kind.CHR:
        named = instruction.inputs[1] if len(instruction.inputs) > 1 else []
        named_stages = [table.stage_of(str(name)) for name in named] if isinstance(named, list) else []
        readers = [reader for reader in named_stages if reader is not None] or [source]
        targets = tuple(reader.number for reader in readers)
        table.put_between(cache, source, buffer, readers)
    else:
        table.put_behind(cache, source, buffer)
    names = (source.name, str(source.role), scope)
    walker.emit(Step(kind, names, source.number, targets=targets), numbers)


def _rfactor(walker: Walker, instruction: Instruction) -> None:
    table = walker.table
    loop = walker.loop_at(instruction.inputs)
    info, stage = walker.info(loop), walker.owner(loop)
    step = walker.loop_step(Kind.RF, loop, "")
    partial = table.create(instruction.outputs, stage.name, Role.RFACTOR)
    table.put_before(partial, stage)
    factor_axis = as_int(instruction.attributes[0]) if instruction.attributes else 0
    walker.emit(step, (info.axis, factor_axis, info.extent))
    partial.at, partial.lost = stage.at, stage.lost
    old = stage.own
    stage.own, stage.axes = None, -1
    if old is None or stage.lost:
        return
    # The partial result takes over the nest; the stage keeps its spatial loops and the factored one.
    infos = [walker.info(loop) for loop in old]
    partial.own = [table.add_loop(info._replace(key=partial.key)) for info in infos]
    partial.axes = len(old)
    if all(info.reduction is not None for info in infos):
        stage.own = [
            table.add_loop(info)
            for key, info in zip(old, infos, strict=True)
            if key == loop or not info.reduction
        ]
        stage.axes = len(stage.own)


def _unannotate(walker: Walker, instruction: Instruction) -> None:
    word = str(instruction.attributes[0]).removeprefix(PREFIX) if instruction.attributes else ""
    if word not in PASSING_KEYS:
        stage = walker.stage_at(instruction.inputs)
        walker.emit(Step(Kind.UNANNOTATE, (stage.name, str(stage.role), word), stage.number), ())


def other_step(walker: Walker, instruction: Instruction) -> None:
    """A step of its numbers as written; UNK where nobody knows the instruction."""
    kind = PLAIN.get(instruction.kind, Kind.UNK)
    amounts = [
        walker.amount(item)
        for item in (*instruction.inputs, *instruction.attributes)
        if isinstance(item, int | float) or (isinstance(item, str) and item in walker.values)
    ]
    if kind is Kind.UNK:
        for output in instruction.outputs:
            walker.values[str(output)] = Sampled(instruction.place)
    stage = walker.stage_at(instruction.inputs)
    words = [item for item in instruction.attributes if isinstance(item, str)]
    names = (stage.name, str(stage.role), words[0] if words else "")
    walker.emit(Step(kind, names, stage.number), amounts)
    if kind is Kind.CI:
        walker.table.inline(stage, reverse=instruction.kind == "ReverseComputeInline")
    elif kind not in _KEEPS_LOOPS:
        walker.table.lose(stage)
        walker.table.lose(walker.owner(walker.loop_at(instruction.inputs)))


BLOCK_HANDLERS: dict[str, Callable[[Walker, Instruction], None]] = {
    "ComputeAt": _compute_at,
    "ReverseComputeAt": _compute_at,
    "RFactor": _rfactor,
    "Unannotate": _unannotate,
    **dict.fromkeys(_NAMING, _name_blocks),
    **dict.fromkeys(_RELATING, _relate_blocks),
    **dict.fromkeys(_CACHES, _cache),
}
