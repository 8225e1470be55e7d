"""MetaSchedule instructions on loops, and notes on loops and blocks, as canonical steps.

Each function takes in one instruction and adds the steps it stands for. Called by
`transfer.language.compile_trace` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transfer.language.primitives import REDUCTION, SPATIAL, Kind, Role
from transfer.language.trace_stages import NO_LOOP, LoopInfo, TraceStage
from transfer.language.trace_values import Amount, Sampled, Step, product, resolve, tile_maker
from transfer.language.trace_walk import Instruction, Walker

PREFIX = "meta_schedule."
_PRAGMA_KEYS = frozenset({"unroll_explicit", "unroll_implicit", "auto_unroll_max_step"})
# A note from one schedule rule to the next, taken off again before the trace ends.
PASSING_KEYS = frozenset({"random_compute_producer"})
_LOOP_WORDS = {"Parallel": "parallel", "Vectorize": "vectorize", "Unroll": "unroll"}


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
        walker.emit(step, (info.axis, info.extent, *factors))


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
    positions = [walker.table.position(loop) if loop >= 0 else () for loop in loops]
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
    walker.emit(
        Step(
            Kind.FU,
            (stage.name, str(stage.role), ""),
            stage.number,
            tuple(place for position in positions for place in position) if together else (),
        ),
        (len(loops), extent),
    )


def _reorder(walker: Walker, instruction: Instruction) -> None:
    loops = [walker.loop_at(instruction.inputs, place) for place in range(len(instruction.inputs))]
    stage = walker.owner(loops[0]) if loops else TraceStage(lost=True)
    order = walker.table.reorder(loops) if all(loop >= 0 for loop in loops) else ()
    walker.emit(Step(Kind.RE, (stage.name, str(stage.role), ""), stage.number, order), (len(loops),))


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
    walker.emit(Step(Kind.UNIT_LOOP, (stage.name, str(stage.role), ""), stage.number, position), ())


def _annotate(walker: Walker, instruction: Instruction) -> None:
    key = str(instruction.attributes[0]) if instruction.attributes else ""
    word = key.removeprefix(PREFIX).removeprefix("pragma_")
    if word in PASSING_KEYS:
        return
    value = instruction.inputs[1] if len(instruction.inputs) > 1 else 0
    loop = walker.loop_at(instruction.inputs)
    stage = walker.owner(loop) if loop >= 0 else walker.stage_at(instruction.inputs)
    if word == "tiling_structure" and isinstance(value, str):
        walker.structure = word = value.strip('"')
        stage.role, walker.tiled = Role.TILED, stage.key
        value = 0
    kind = Kind.PR if word in _PRAGMA_KEYS else Kind.AN
    step = (
        walker.loop_step(kind, loop, word)
        if loop >= 0
        else Step(kind, (stage.name, str(stage.role), word), stage.number)
    )
    amount = walker.amount(value)
    walker.emit(step, (amount,) if kind is Kind.PR else (walker.info(loop).axis, amount))


def _annotate_loop(walker: Walker, instruction: Instruction) -> None:
    loop = walker.loop_at(instruction.inputs)
    attributes = instruction.attributes
    word = _LOOP_WORDS.get(instruction.kind) or (str(attributes[0]) if attributes else "")
    info = walker.info(loop)
    walker.emit(walker.loop_step(Kind.AN, loop, word), (info.axis, info.extent))


def _remaining(extent: Amount, factors: Sequence[Amount]) -> Amount:
    """What the open factor of a split stands for; 0 where that waits for decisions."""
    others = [factor for factor in factors if factor != 0]
    if not isinstance(extent, int) or not all(isinstance(factor, int) for factor in others):
        return 0
    whole = resolve(product(others), {})
    return -(-extent // whole) if whole > 0 else 0


LOOP_HANDLERS: dict[str, Callable[[Walker, Instruction], None]] = {
    "GetLoops": _get_loops,
    "Split": _split,
    "Fuse": _fuse,
    "Reorder": _reorder,
    "AddUnitLoop": _unit_loop,
    "Annotate": _annotate,
    "Bind": _annotate_loop,
    **dict.fromkeys(_LOOP_WORDS, _annotate_loop),
}
