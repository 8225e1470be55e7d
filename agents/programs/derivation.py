"""From an imported trace to decisions in a design space of our own: nothing else of it is used.

`agents.programs.design_space` calls it and replays the decisions on its own traces.
Which of our traces an imported one belongs to is told by its first instructions. They are compared, never
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.programs.trace_rules import TraceRefusedError, read_trace
from agents.records import Candidate, canonical_json
from agents.values import Value

#: Blocks had another name in TVM before 0.22.
_RENAMED = {"GetBlock": "GetSBlock"}
#: Annotations whose number belongs to the target: cores, lanes, threads. Ours is taken, so theirs may differ.
_OF_TARGET = frozenset(
    {
        "meta_schedule.parallel",
        "meta_schedule.vectorize",
        "meta_schedule.thread_extent_low_inclusive",
        "meta_schedule.thread_extent_high_inclusive",
    }
)

#: One instruction in the form in which two are compared.
Step = str


class Derivation(Value, frozen=True):
    """What became of imported candidates."""

    #: Candidates of our own, without repeats.
    candidates: tuple[Candidate, ...]
    #: How many were refused, by reason.
    refused: Mapping[str, int]


def comparable(steps: Sequence[Any]) -> list[Step]:
    """The instructions of one of our own design spaces, as `match` takes them."""
    return [_comparable(step) for step in steps]


def match(spaces: Sequence[Sequence[Step]], trace: str) -> tuple[int, list[list[Any]]]:
    """Find the design space whose instructions an imported trace begins with, and its decisions there.

    Args:
        spaces: Our own design spaces (`comparable`).
        trace: The imported trace, JSON text.

    Returns:
        Place of the design space; `[instruction, value]` for every sampling instruction of it, in its order.

    Raises:
        TraceRefusedError: It says what no trace may say, belongs to none of the spaces, or leaves decisions
            out.
    """
    steps, decisions = read_trace(trace)
    longest = max(map(len, spaces), default=0)
    comparable = [_comparable(step) for step in steps[:longest]]
    fitting = [
        place for place, space in enumerate(spaces) if space and comparable[: len(space)] == list(space)
    ]
    if not fitting:
        raise TraceRefusedError("its instructions are those of no design space of ours")
    place = max(fitting, key=lambda number: len(spaces[number]))
    length = len(spaces[place])
    sampled = [number for number, step in enumerate(steps[:length]) if step[0].startswith("Sample")]
    chosen = [decision for decision in decisions if decision[0] < length]
    if sorted(decision[0] for decision in chosen) != sampled:
        raise TraceRefusedError("its decisions are not one for each sampled number")
    return place, sorted(chosen)


def _comparable(step: Any) -> Step:
    kind, inputs, attrs, outputs = step
    kind = _RENAMED.get(kind, kind)
    if kind == "Split":
        attrs = []  # flags that earlier versions lack
    elif kind == "Annotate" and attrs[0] in _OF_TARGET:
        inputs = inputs[:1]
    elif kind == "SampleCategorical":
        attrs = attrs[:1]  # how likely each is says nothing about which was drawn
    return canonical_json([kind, inputs, attrs, outputs])
