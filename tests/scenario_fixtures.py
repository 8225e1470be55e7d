"""Scenarios that are written as texts: `[title]`, what happens line by line, and indented what is so then."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    **{"=": operator.eq, ">": operator.gt, ">=": operator.ge, "<": operator.lt},
    "has": lambda value, wanted: str(wanted) in str(value),
    "about": lambda value, wanted: bool(value == pytest.approx(wanted)),
    "lacks": lambda value, wanted: str(wanted) not in str(value),
    "~": lambda value, wanted: re.fullmatch(wanted, str(value)) is not None,
}


def read_scenarios(path: Path) -> dict[str, list[str]]:
    """The lines of each scenario of a file by its title; comments are left out."""
    _, *parts = re.split(r"^\[(.+)\]\n", path.read_text(), flags=re.M)
    return {
        title: [line for line in re.sub(r"(^|\s+)# .*", "", body, flags=re.M).splitlines() if line.strip()]
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def play(lines: list[str], act: Callable[[str], object], value_of: Callable[[str], Any]) -> None:
    """Do what the lines say, and check what they say is so then."""
    for line in lines:
        if line.startswith("    "):
            assert is_so(line.strip(), value_of), (line, value_of(line.split()[0]))
        else:
            act(line)


def check_facts(value: Any, facts: str) -> None:
    """Each line `PATH RELATION VALUE` must hold of a value."""
    for line in facts.strip().splitlines():
        assert is_so(line.strip(), lambda path: place_in(value, path)), (line, value)


def fields_of(text: str) -> dict[str, Any]:
    """Values that are written as `name: value, ...`."""
    fields: dict[str, Any] = yaml.safe_load(f"{{{text}}}")
    return fields


def place_in(value: Any, path: str, between: str = ".") -> Any:
    """A value inside of others by its keys with dots between them; None where there is none."""
    for part in filter(None, path.split(between)):
        if isinstance(value, list | tuple):
            value = value[int(part)]
        else:
            value = value.get(part) if value is not None else None
    return value


def is_so(text: str, value_of: Callable[[str], Any]) -> bool:
    """Whether `PATH RELATION VALUE` holds; `is` compares with another path."""
    path, relation, wanted = re.split(r" (=|>=|>|<|about|has|lacks|~|is) ", text, maxsplit=1)
    value = value_of(path)
    if relation == "is":
        return bool(value == value_of(wanted))
    other = wanted if relation in ("has", "lacks", "~") else yaml.safe_load(wanted)
    return (value is not None or other is None) and RELATIONS[relation](value, other)
