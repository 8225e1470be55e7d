"""A network's time against the minutes of its search, beside its rivals' lines: a picture of the report.

Pure. `fleet/templates/tuning.html` draws it as SVG in the units of this module, so it needs no script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Size of the picture, and its field: the left, right, upper and lower end. Names stand right of the field.
WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 40, 266, 22, 222
#: Least distance of two names, and of two ticks.
_NAME_HEIGHT, _TICK_HEIGHT = 15.0, 14.0
#: Steps of a scale of latencies and of minutes.
_STEPS = (1.0, 2.0, 5.0)
_LATENCY_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_MOST_MINUTES = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A side's line: where it lies, where its name stands, and whether it is ours."""

    name: str
    y: float
    name_y: float
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Journey:
    """The picture; places in its units."""

    name: str
    #: Corners of the steps in which the search got faster.
    path: str
    lines: Sequence[Line]
    #: (place, text) of each tick.
    latencies: Sequence[tuple[float, str]]
    minutes: Sequence[tuple[float, str]]


def journey(
    name: str, curve: Sequence[tuple[float, float]], sides: Mapping[str, float], ours: str
) -> Journey | None:
    """Draw a network's search.

    Args:
        name: Of the network.
        curve: (seconds since the request began, seconds of all tuned programs together).
        sides: Latency in seconds of each line, by what people read there.
        ours: The side among them that the search made.

    Returns:
        The picture; None where not all programs ran.
    """
    if not curve or not sides:
        return None
    values = [*(secs for _, secs in curve), *sides.values()]
    low, high = math.log(min(values) / 1.08), math.log(max(values) * 1.08)
    end_secs = max(curve[-1][0], 1.0)

    def across(secs: float) -> float:
        return LEFT + (RIGHT - LEFT) * secs / end_secs

    def down(latency: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (math.log(latency) - low) / (high - low)

    corners = [(across(curve[0][0]), down(curve[0][1]))]
    for at_secs, latency in curve[1:]:
        corners += [(across(at_secs), corners[-1][1]), (across(at_secs), down(latency))]
    places = sorted((down(secs), side) for side, secs in sides.items())
    names = spread([y for y, _ in places], _NAME_HEIGHT, TOP, BOTTOM)
    return Journey(
        name=name,
        path=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners),
        lines=[
            Line(f"{side} {1e3 * sides[side]:.3g} ms", y, name_y, side == ours)
            for (y, side), name_y in zip(places, names, strict=True)
        ],
        latencies=_latencies(low, high, down),
        minutes=_minutes(end_secs / 60),
    )


def spread(places: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Move ascending places apart, as little as it takes, within bounds that have room for them."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, low, moved[-1] + distance if moved else low))
    for number in reversed(range(len(moved))):
        most = moved[number + 1] - distance if number + 1 < len(moved) else high
        moved[number] = min(moved[number], most)
    return moved


def _latencies(low: float, high: float, down: Callable[[float], float]) -> list[tuple[float, str]]:
    first, last = math.floor(low / math.log(10)), math.ceil(high / math.log(10))
    values = [step * 10.0**power for power in range(first, last + 1) for step in _LATENCY_STEPS]
    ticks: list[tuple[float, str]] = []
    for value in values:
        if low <= math.log(value) <= high and (not ticks or ticks[-1][0] - down(value) >= _TICK_HEIGHT):
            ticks.append((down(value), f"{1e3 * value:.4g}"))
    return ticks


def _minutes(end: float) -> list[tuple[float, str]]:
    steps = (step * 10.0**power for power in range(-3, 6) for step in _STEPS)
    step = next(step for step in steps if end / step <= _MOST_MINUTES)
    count = math.floor(end / step) + 1
    return [(LEFT + (RIGHT - LEFT) * place * step / end, f"{place * step:.4g}") for place in range(count)]
