"""Loops and stages as values: what `transfer.language.loop_nest` keeps and its callers read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from transfer.language.primitives import Kind


class Loop(NamedTuple):
    """One loop."""

    #: Iterations; 0 unknown.
    extent: int
    #: Own axis of the stage that it came from; -1 for fused axes and unit loops.
    axis: int = -1
    annotation: str = ""
    #: Whether the extent rests on the bound inference of a compute-at instead of on steps.
    inferred: bool = False
    #: Whether it runs over reduction axes only; None unknown.
    reduction: bool | None = None


@dataclass(slots=True)
class Stage:
    """One stage and its own loops, outermost first."""

    number: int
    name: str = ""
    role: str = ""
    loops: list[Loop] = field(default_factory=list)
    #: (stage, position among its own loops) that the loops stand in; None at the root.
    at: tuple[int, int] | None = None
    inlined: bool = False
    #: Whether `loops` is all of them; else further ones may show up behind.
    complete: bool = False
    #: Axes of the stage, 0 unknown.
    axes: int = 0
    #: Whether an opaque step changed it: nothing is known of its loops any more.
    lost: bool = False


class Mismatch(NamedTuple):
    """A step that contradicts the ones before it."""

    #: Number of the step among those applied, from 0.
    step: int
    kind: Kind
    stage: int
    what: str
    expected: int
    got: int
