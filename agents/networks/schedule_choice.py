"""Which of its schedules each program of a network is compiled with: the one that is fastest in the network.

A program that is timed alone finds its weights and inputs in a cache. In a network they come from memory, and
an order of the weights that helps one schedule hurts another. So the network is compiled in several ways, and
each program takes the way in which it needed least time. `agents.networks.library` asks; this knows nothing
of networks, and compiles and runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Ways in which a program is compiled at most: each costs the network's compile time.
_MOST_WAYS = 8
#: Share of its time that another way must save: less may be luck.
_LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """How one program is compiled."""

    #: Of its schedule, JSON text.
    trace: str
    #: Whether its weights lie in the order in which the schedule reads them.
    is_ordered: bool


def ways(traces: Sequence[str], has_weights: bool) -> list[Way]:
    """List the ways to compile a program; the first is the likeliest to be fast.

    Args:
        traces: Of its schedules, the fastest one alone first.
        has_weights: Whether an argument is a constant.
    """
    listed = [Way(trace, has_weights) for trace in traces]
    if has_weights and listed:
        listed.insert(1, Way(traces[0], False))
    return listed[:_MOST_WAYS]


def fastest_ways(secs_by_way: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Choose the way of each program.

    Args:
        secs_by_way: Of each way in which the network ran: seconds in a run, by program.

    Returns:
        Place of the way, by program: the first way unless another one is faster beyond luck.
    """
    chosen = {}
    for program, secs in secs_by_way[0].items():
        others = [(way[program], place) for place, way in enumerate(secs_by_way) if program in way]
        best_secs, best = min(others)
        chosen[program] = best if best_secs < secs * (1 - _LEAST_GAIN) else 0
    return chosen
