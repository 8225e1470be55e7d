"""A schedule as lines for people, and two of them side by side with what differs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

#: Lines of one schedule that are shown, and characters of one line.
MOST_LINES, MOST_CHARS = 400, 300
#: Variables of a trace: blocks, loops, values. One step more in a schedule renumbers all that follow.
_VARIABLE = re.compile(r"\b([blv])\d+\b")


def schedule_lines(trace: str) -> list[str]:
    """The steps of a trace, one a line; a trace of another shape gives a line for each of its parts."""
    try:
        value = json.loads(trace)
    except (ValueError, RecursionError):
        return [trace[:MOST_CHARS]]
    if _is_meta_schedule(value):
        decisions = {
            decision[0]: decision[1]
            for decision in value[1]
            if isinstance(decision, list) and len(decision) == 2 and isinstance(decision[0], int)
        }
        lines = [_step(place, step, decisions) for place, step in enumerate(value[0])]
    elif isinstance(value, list):
        lines = [json.dumps(step) for step in value]
    elif isinstance(value, Mapping):
        lines = [f"{_text(key)} = {json.dumps(part)}" for key, part in value.items()]
    else:
        lines = [json.dumps(value)]
    return [line[:MOST_CHARS] for line in lines]


def side_by_side(mine: list[str], other: list[str]) -> dict[str, Any]:
    """Two schedules in rows; numbers of variables make no difference.

    Returns:
        `rows` of [my line or None, other line or None, whether they differ], `of` (how many rows there are)
        and `different` (how many differ).
    """
    rows: list[list[Any]] = []
    first, second = ([_VARIABLE.sub(r"\1", line) for line in lines[:MOST_LINES]] for lines in (mine, other))
    matcher = SequenceMatcher(a=first, b=second, autojunk=False)
    for kind, start, stop, begin, end in matcher.get_opcodes():
        mine_lines, other_lines = mine[start:stop], other[begin:end]
        for place in range(max(len(mine_lines), len(other_lines))):
            pair = [lines[place] if place < len(lines) else None for lines in (mine_lines, other_lines)]
            rows.append([*pair, kind != "equal"])
    return {
        "rows": rows,
        "of": max(len(mine), len(other), len(rows)),
        "different": sum(bool(row[2]) for row in rows),
    }


def _is_meta_schedule(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(part, list) for part in value)
        and all(isinstance(step, list) and len(step) == 4 for step in value[0])
    )


def _step(place: int, step: list[Any], decisions: Mapping[Any, Any]) -> str:
    name, inputs, attributes, outputs = step
    assigned = f"{_names(outputs)} = " if outputs else ""
    arguments = ", ".join(_names(values) for values in (inputs, attributes) if values != [])
    decided = f"  # decision: {json.dumps(decisions[place])}" if place in decisions else ""
    return f"{assigned}{_text(name)}({arguments}){decided}"


def _names(values: Any) -> str:
    return ", ".join(map(_text, values)) if isinstance(values, list) else _text(values)


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)
