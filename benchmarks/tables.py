"""Figures of benchmarks for people: intervals, Markdown tables, pages of whole results and their commands."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fleet.json_types import Json, JsonDict
from transfer.data.intervals import Estimate


def interval(estimate: Estimate | None) -> list[float] | None:
    """A figure with its interval, for JSON; None where there is none."""
    if estimate is None:
        return None
    return [round(value, 4) for value in (estimate.value, estimate.low, estimate.high)]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table; rows whose figures are all empty are left out."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, *figures in rows:
        if any(figures) or not figures:
            lines.append(f"| {' | '.join(map(str, (name, *figures)))} |")
    return lines


def page(title: str, command: str, result: Json, note: str = "") -> list[str]:
    """A result as Markdown: a table of its figures, and one of each part whose entries are alike.

    Args:
        title: Of the page.
        command: That made it.
        result: What a benchmark prints as JSON. Lists of lists are left out: they are no figures.
        note: What its words mean.
    """
    lines = [f"# {title}", "", f"`{command}`", "", "Made by that command; do not edit."]
    return [*lines, *([note] if note else []), "", *sections(result)][:-1]


def sections(values: Json, level: int = 2) -> list[str]:
    """A result as Markdown: a table of its figures, and one of each part, under headings from a level on."""
    figures = {name: value for name, value in values.items() if _is_figure(value) and text_of(value)}
    lines: list[str] = []
    if figures:
        shown = [(f"`{name}`", text_of(value)) for name, value in figures.items()]
        lines += [*markdown_table(("figure", "value"), shown), ""]
    for name, part in values.items():
        if name in figures or not part:
            continue
        if isinstance(part, list):
            part = {str(place): one for place, one in enumerate(part, start=1) if isinstance(one, dict)}
        rows = {key: _flat(row) for key, row in part.items() if isinstance(row, dict)}
        cells_of = itertools.chain.from_iterable(row.values() for row in rows.values())
        if rows and len(rows) == len(part) and all(map(_is_figure, cells_of)):
            columns = list(dict.fromkeys(itertools.chain(*rows.values())))
            cells = [(key, *(text_of(row.get(column)) for column in columns)) for key, row in rows.items()]
            lines += [f"{'#' * min(level, 6)} {name}", "", *markdown_table(("", *columns), cells), ""]
        elif inside := sections(part, level + 1):
            lines += [f"{'#' * min(level, 6)} {name}", "", *inside]
    return lines


def _flat(row: Json) -> JsonDict:
    """A row in which the figures of a part have names of their own."""
    flat: JsonDict = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name} {key}": one for key, one in value.items()}
        else:
            flat[name] = value
    return flat


def _is_figure(value: object) -> bool:
    if isinstance(value, list | tuple):
        return not any(isinstance(one, list | tuple | dict) for one in value)
    return not isinstance(value, dict)


def text_of(value: object) -> str:
    """A value of a table; three numbers are a figure with its interval."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list | tuple):
        if len(value) == 3 and all(isinstance(one, float) for one in value):
            figure, low, high = map(text_of, value)
            return f"{figure} [{low}, {high}]"
        return ", ".join(map(text_of, value))
    return str(value)


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Write a page, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def words_of(options: Any, text: Callable[[object], str] = str) -> list[str]:
    """The words of a command line that give some options.

    Args:
        options: Of a benchmark.
        text: How a value is written.
    """
    words: list[str] = []
    for one in fields(options):
        value = getattr(options, one.name)
        if value is not None and value != one.default:
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            words += [f"--{one.name.replace('_', '-')}", *map(text, values)]
    return words


def command_of(name: str, options: Any) -> str:
    """The command line that gives some options, for a page that shows how its figures were made.

    Where things lie on this host is nobody's business: of an absolute path the last folders are shown.
    """
    return shlex.join(["python", "-m", f"benchmarks.{name}", *words_of(options, _shown)])


def _shown(value: object) -> str:
    is_absolute = isinstance(value, Path) and value.is_absolute()
    return str(Path(*Path(str(value)).parts[-3:])) if is_absolute else str(value)
