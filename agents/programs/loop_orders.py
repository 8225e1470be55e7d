"""A second order of a design space's outermost loops, in which the operand of the last loop is read once.

MetaSchedule tiles a product in levels, and its outermost loops keep their order: rows before columns. So all
columns of the second operand pass by for each block of rows. If the operand is a large weight, it comes from
memory each time. In the other order each block of columns meets all rows before the next one (Goto and van
de Geijn 2008, section 4: which operand stays in which cache).

Works on the instructions of a trace as JSON; imports no TVM.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

#: Levels of tiles into which MetaSchedule splits loops for CPUs, spatial and reducing ones.
_SPATIAL_LEVELS = 4
_TILED = "meta_schedule.tiling_structure"


def tiled_block(steps: Sequence[Any]) -> tuple[str, str] | None:
    """The variable and the name of the block that a design space tiles; None if it tiles none, or several."""
    tiled = [
        inputs[0] for kind, inputs, attributes, _ in steps if kind == "Annotate" and attributes[0] == _TILED
    ]
    names = {outputs[0]: attributes[0] for kind, _, attributes, outputs in steps if kind == "GetSBlock"}
    return (tiled[0], names[tiled[0]]) if len(tiled) == 1 and tiled[0] in names else None


def stationary_order(spatial: int, reads: Sequence[Set[int]]) -> list[int] | None:
    """The order of spatial loops in which the operand of the last one stays.

    Args:
        spatial: Number of spatial loops.
        reads: Of each operand: places of the spatial loops that index it.

    Returns:
        Places in their new order; None if all loops index one operand, or the order is the old one.
    """
    last = spatial - 1
    operands = [read for read in reads if last in read]
    others = [read for read in reads if last not in read]
    if not operands or not others:
        return None
    stays = min(operands, key=len)
    again = [place for place in range(spatial) if place not in stays]
    if not any(place in other for place in again for other in others):
        return None
    order = [place for place in range(spatial) if place in stays] + again
    return order if order != list(range(spatial)) else None


def reordered(steps: Sequence[Any], block: str, reads: Sequence[Set[int]]) -> list[Any] | None:
    """The instructions of a design space with its outermost loops in the other order.

    Args:
        steps: Instructions, JSON.
        block: Variable of the tiled block.
        reads: As of `stationary_order`, with places among the block's loops.

    Returns:
        As many instructions, so that decisions keep their places; None if there is no other order.
    """
    loops: list[str] = next((step[3] for step in steps if step[0] == "GetLoops" and step[1] == [block]), [])
    parts = {step[1][0]: step[3] for step in steps if step[0] == "Split"}
    outer = [parts[loop][0] for loop in loops if len(parts.get(loop, ())) == _SPATIAL_LEVELS]
    order = stationary_order(len(outer), reads)
    place = next((place for place, step in enumerate(steps) if step[0] == "Reorder"), None)
    if order is None or place is None or steps[place][1][: len(outer)] != outer:
        return None
    swapped = [outer[place] for place in order]
    changed = list(steps)
    changed[place] = ["Reorder", [*swapped, *steps[place][1][len(outer) :]], *steps[place][2:]]
    for later in range(place + 1, len(steps)):
        kind, inputs, attributes, outputs = steps[later]
        if kind in ("ComputeAt", "ReverseComputeAt") and inputs[1] == outer[-1]:
            changed[later] = [kind, [inputs[0], swapped[-1]], attributes, outputs]
    return changed
