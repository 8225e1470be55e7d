"""Tables of tests that are written as texts."""

from __future__ import annotations


def rows(table: str) -> list[tuple[str, str]]:
    """The two columns of each line `left -> right`."""
    return [
        (left.strip(), right.strip())
        for left, _, right in (line.partition("->") for line in table.strip().splitlines())
    ]
