"""Tables of tests that are written as texts."""

from __future__ import annotations


def rows(table: str) -> list[tuple[str, str]]:
    """The two columns of each line `left -> right`."""
    return [
        (left.strip(), right.strip())
        for left, _, right in (line.partition("->") for line in table.strip().splitlines())
    ]


def cells(table: str) -> list[list[str]]:
    """The cells of each line, which `|` parts; a line that begins with `#` is a remark."""
    lines = [line for line in table.strip().splitlines() if not line.startswith("#")]
    return [[cell.strip() for cell in line.split("|")] for line in lines]
