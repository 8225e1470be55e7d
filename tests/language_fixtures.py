"""Schedules beside the canonical steps that they mean, as tables that a person can read."""

from __future__ import annotations

from collections.abc import Iterable

from tests.table_fixtures import rows
from transfer.language.primitives import Kind, Primitive


def as_text(step: Primitive) -> str:
    """A step in one line: kind and numbers | names | stage | loops | targets, less what is empty behind."""
    numbers, loops, targets = (" ".join(map(str, part)) for part in (step.numbers, step.loops, step.targets))
    names = " ".join(filter(None, step.names))
    line = f"{step.kind} {numbers} | {names} | {step.stage} | {loops} | {targets}"
    return " ".join(line.split()).rstrip(" |")


def as_lines(steps: Iterable[Primitive]) -> list[str]:
    """Steps, one a line."""
    return [as_text(step) for step in steps]


def step_of(text: str) -> Primitive:
    """The step of such a line; of its names the first may be left out, and a dash is an empty one."""
    what, names, stage, *places = [*text.split("|"), "", "", "", ""]
    kind, _, numbers = what.strip().partition(" ")
    block, role, detail = ("" if word == "-" else word for word in ["-", "-", "-", *names.split()][-3:])
    integers = [tuple(map(int, part.split())) for part in (numbers, *places[:2])]
    return Primitive(Kind(kind), integers[0], (block, role, detail), int(stage.strip() or -1), *integers[1:])


def columns(table: str) -> tuple[str, list[str]]:
    """A schedule (a JSON list) and what it means, from lines `JSON -> step`; either may be left out."""
    pairs = rows(table)
    return f"[{','.join(left for left, _ in pairs if left)}]", [right for _, right in pairs if right]
