"""MetaSchedule instructions as canonical steps, one function each: on loops, notes, and on blocks.

Each takes in one instruction and adds the steps that it stands for. Called by
`transfer.language.meta_schedule` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transfer.language.primitives import REDUCTION, SPATIAL, Kind, Role
from transfer.language.trace_stages import NO_LOOP, LoopInfo, TraceStage
from transfer.language.trace_values import (
    Amount,
    Product,
    Sampled,
    as_int,
    instructions_of,
    location_maker,
    product,
    resolve,
    tile_maker,
)
from transfer.language.trace_walk import Instruction, Walker

PREFIX = "meta_schedule."
_PRAGMA_KEYS = frozenset({"unroll_explicit", "unroll_implicit", "auto_unroll_max_step"})
# A note from one schedule rule to the next, taken off again before the trace ends.
_PASSING_KEYS = frozenset({"random_compute_producer"})
_LOOP_WORDS = {"Parallel": "parallel", "Vectorize": "vectorize", "Unroll": "unroll"}

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


def _get_loops(walker: Walker, instruction: Instruction) -> None:
    table, outputs = walker.table, instruction.outputs
    stage = walker.stage_at(instruction.inputs)
    shared = table.shared(stage)
    if shared is not None and len(shared) <= len(outputs):
        own = len(outputs) - len(shared)
        if stage.own is None or len(stage.own) != own:
            stage.own = table.fresh_loops(stage, own, len(shared))
        if stage.axes < 0:
            stage.axes = own
        nest = [*shared, *stage.own]
    else:
        stage.own = nest = table.fresh_loops(stage, len(outputs), 0)
        stage.lost = True
    table.loops.update(zip(outputs, nest, strict=True))


def _split(walker: Walker, instruction: Instruction) -> None:
    loop = walker.loop_at(instruction.inputs)
    info, stage = walker.info(loop), walker.owner(loop)
    factors = [walker.amount(item) for item in instruction.inputs[1:]]
    axis_kind = ""
    if stage.role is Role.TILED:
        # The tiling structure gives each kind of axis its own number of levels.
        axis_kind = {walker.structure.count("R"): REDUCTION, walker.structure.count("S"): SPATIAL}.get(
            len(factors), ""
        )
    step = walker.loop_step(Kind.SP, loop, axis_kind)
    # One factor may be left open: what remains of an extent that the program tells.
    open_place = factors.index(0) if factors.count(0) == 1 else -1
    rest = _remaining(info.extent, factors)
    pieces = [
        walker.table.add_loop(
            info._replace(spatial=axis_kind != REDUCTION, extent=rest if place == open_place else factor)
        )
        for place, factor in enumerate(factors)
    ]
    walker.put(instruction, [loop], pieces)
    first = factors[0] if factors else 0
    if isinstance(first, Sampled) and factors == [
        Sampled(first.instruction, place) for place in range(len(factors))
    ]:
        walker.hole((first.instruction,), tile_maker(first.instruction, len(factors), info.axis, step))
    else:
        walker.emit(step, info.axis, info.extent, *factors)


def _fuse(walker: Walker, instruction: Instruction) -> None:
    loops = [walker.loop_at(instruction.inputs, place) for place in range(len(instruction.inputs))]
    infos = [walker.info(loop) for loop in loops]
    first = infos[0] if infos else NO_LOOP
    stage = walker.owner(loops[0]) if loops else TraceStage(lost=True)
    extent: Amount = 0
    if infos:
        parts = [info.extent for info in infos]
        extent = product(parts)
        if all(isinstance(part, int) for part in parts):
            extent = resolve(extent, {})
    positions = [walker.position(loop) for loop in loops]
    fused = first._replace(
        axis=first.axis if len(loops) == 1 else -1,
        spatial=all(info.spatial for info in infos),
        extent=extent,
        reduction=None
        if any(info.reduction is None for info in infos)
        else all(info.reduction for info in infos),
    )
    walker.put(instruction, loops, [walker.table.add_loop(fused)] if loops else [])
    together = all(positions) and all(info.key == first.key for info in infos)
    places = tuple(place for position in positions for place in position) if together else ()
    walker.emit(stage.step(Kind.FU, loops=places), len(loops), extent)


def _reorder(walker: Walker, instruction: Instruction) -> None:
    loops = [walker.loop_at(instruction.inputs, place) for place in range(len(instruction.inputs))]
    stage = walker.owner(loops[0]) if loops else TraceStage(lost=True)
    order = walker.table.reorder(loops) if all(loop >= 0 for loop in loops) else ()
    walker.emit(stage.step(Kind.RE, loops=order), len(loops))


def _unit_loop(walker: Walker, instruction: Instruction) -> None:
    table = walker.table
    loop = walker.loop_at(instruction.inputs)
    stage = walker.owner(loop) if loop >= 0 else walker.stage_at(instruction.inputs)
    position: tuple[int, ...] = ()
    if not stage.lost and stage.own is not None:
        position = table.position(loop) if loop >= 0 else (len(stage.own),)
    unit = table.add_loop(LoopInfo(stage.key, -1, extent=1, reduction=False))
    if position and stage.own is not None:
        stage.own.insert(position[0], unit)
    table.loops.update(dict.fromkeys(instruction.outputs[:1], unit))
    walker.emit(stage.step(Kind.UNIT_LOOP, loops=position))


def _annotate(walker: Walker, instruction: Instruction) -> None:
    key = str(instruction.attributes[0]) if instruction.attributes else ""
    word = key.removeprefix(PREFIX).removeprefix("pragma_")
    if word in _PASSING_KEYS:
        return
    value = instruction.inputs[1] if len(instruction.inputs) > 1 else 0
    loop = walker.loop_at(instruction.inputs)
    stage = walker.owner(loop) if loop >= 0 else walker.stage_at(instruction.inputs)
    if word == "tiling_structure" and isinstance(value, str):
        walker.structure = word = value.strip('"')
        stage.role, walker.tiled = Role.TILED, stage.key
        value = 0
    kind = Kind.PR if word in _PRAGMA_KEYS else Kind.AN
    amounts = [walker.amount(value)] if kind is Kind.PR else [walker.info(loop).axis, walker.amount(value)]
    walker.emit(stage.step(kind, word, walker.position(loop)), *amounts)


def _annotate_loop(walker: Walker, instruction: Instruction) -> None:
    loop = walker.loop_at(instruction.inputs)
    attributes = instruction.attributes
    word = _LOOP_WORDS.get(instruction.kind) or (str(attributes[0]) if attributes else "")
    info = walker.info(loop)
    walker.emit(walker.loop_step(Kind.AN, loop, word), info.axis, info.extent)


def _remaining(extent: Amount, factors: Sequence[Amount]) -> Amount:
    """What the open factor of a split stands for; 0 where that waits for decisions."""
    others = [factor for factor in factors if factor != 0]
    if not isinstance(extent, int) or not all(isinstance(factor, int) for factor in others):
        return 0
    whole = resolve(product(others), {})
    return -(-extent // whole) if whole > 0 else 0


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
    infos = [walker.info(loop) for loop in nest or ()]
    # Every candidate will multiply them.
    table.budget.spend(
        sum(len(info.extent.parts) if isinstance(info.extent, Product) else 1 for info in infos)
    )
    owner = walker.owner(loop)
    has_owner = not owner.lost and owner is not stage
    step = stage.step(
        Kind.CA,
        target.name if target and target is not stage else "",
        walker.position(loop) if has_owner else (),
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
    walker.emit(stage.step(Kind.CI if place == -2 else Kind.CR))
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
    walker.emit(source.step(kind, scope, targets=targets), *numbers)


def _rfactor(walker: Walker, instruction: Instruction) -> None:
    table = walker.table
    loop = walker.loop_at(instruction.inputs)
    info, stage = walker.info(loop), walker.owner(loop)
    step = walker.loop_step(Kind.RF, loop, "")
    partial = table.create(instruction.outputs, stage.name, Role.RFACTOR)
    table.put_before(partial, stage)
    factor_axis = as_int(instruction.attributes[0]) if instruction.attributes else 0
    walker.emit(step, info.axis, factor_axis, info.extent)
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
    if word not in _PASSING_KEYS:
        stage = walker.stage_at(instruction.inputs)
        walker.emit(stage.step(Kind.UNANNOTATE, word))


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
    walker.emit(stage.step(kind, words[0] if words else ""), *amounts)
    if kind is Kind.CI:
        walker.table.inline(stage, reverse=instruction.kind == "ReverseComputeInline")
    elif kind not in _KEEPS_LOOPS:
        walker.table.lose(stage)
        walker.table.lose(walker.owner(walker.loop_at(instruction.inputs)))


HANDLERS: dict[str, Callable[[Walker, Instruction], None]] = {
    "GetLoops": _get_loops,
    "Split": _split,
    "Fuse": _fuse,
    "Reorder": _reorder,
    "AddUnitLoop": _unit_loop,
    "Annotate": _annotate,
    "Bind": _annotate_loop,
    **dict.fromkeys(_LOOP_WORDS, _annotate_loop),
    "ComputeAt": _compute_at,
    "ReverseComputeAt": _compute_at,
    "RFactor": _rfactor,
    "Unannotate": _unannotate,
    **dict.fromkeys(_NAMING, _name_blocks),
    **dict.fromkeys(_RELATING, _relate_blocks),
    **dict.fromkeys(_CACHES, _cache),
}
