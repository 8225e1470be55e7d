"""Schedules beside the canonical steps that they mean, as tables that a person can read."""

from __future__ import annotations

from collections.abc import Iterable

from transfer.language.primitives import Primitive


def as_text(step: Primitive) -> str:
    """A step in one line: kind and numbers | names | stage | loops | targets, less what is empty behind."""
    numbers, loops, targets = (" ".join(map(str, part)) for part in (step.numbers, step.loops, step.targets))
    names = " ".join(filter(None, step.names))
    line = f"{step.kind} {numbers} | {names} | {step.stage} | {loops} | {targets}"
    return " ".join(line.split()).rstrip(" |")


def as_lines(steps: Iterable[Primitive]) -> list[str]:
    """Steps, one a line."""
    return [as_text(step) for step in steps]


def rows(table: str) -> list[tuple[str, str]]:
    """The two columns of each line `left -> right`."""
    return [
        (left.strip(), right.strip())
        for left, _, right in (line.partition("->") for line in table.strip().splitlines())
    ]


def columns(table: str) -> tuple[str, list[str]]:
    """A schedule (a JSON list) and what it means, from lines `JSON -> step`; either may be left out."""
    pairs = rows(table)
    return f"[{','.join(left for left, _ in pairs if left)}]", [right for _, right in pairs if right]
