"""Lists for people: filtered, sorted and cut into pages on the server. Pure.

A page always has the number of rows (`total`), the number that passes the filter (`matched`) and which
of these it shows (`offset`, `size`). So "none", "none match" and "cut off" differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict

#: Rows of a page, unless another number is asked for, and at most.
PAGE_ROWS, MOST_ROWS = 50, 500

Row = Json
Key = Callable[[Row], Any]


class PageError(FleetError):
    """A list was requested in an order or with a size that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """Which part of a list, and in which order."""

    sort: str = ""
    is_descending: bool = False
    #: Part of a text in the row; case does not matter.
    text: str = ""
    offset: int = 0
    size: int = PAGE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How a list may be ordered and filtered."""

    #: Sorting keys by name; the first is taken where a query names none. Rows whose key is None come last in
    #: both directions.
    keys: Mapping[str, Key]
    #: Fields that the filter looks into.
    texts: Sequence[str]
    #: Whether the first order goes down.
    is_descending: bool = False

    def page(self, rows: Sequence[Row], query: PageQuery) -> JsonDict:
        """One page: `rows`, `total`, `matched`, `offset`, `size`, `sort`, `is_descending`, `is_last`.

        Raises:
            PageError: There is no such order, or the page has no or too many rows.
        """
        sort, is_descending = query.sort, query.is_descending
        if not sort:
            sort, is_descending = next(iter(self.keys)), is_descending or self.is_descending
        if sort not in self.keys:
            raise PageError(f"no order {sort!r:.40}; known: {', '.join(self.keys)}")
        if not 1 <= query.size <= MOST_ROWS or query.offset < 0:
            got = f"got {query.size} from row {query.offset} on"
            raise PageError(f"a page has 1 to {MOST_ROWS} rows, from row 0 on; {got}")
        needle = query.text.casefold()
        matched = [
            row
            for row in rows
            if not needle or any(needle in str(row.get(name) or "").casefold() for name in self.texts)
        ]
        keyed = [(self.keys[sort](row), row) for row in matched]
        with_key = [pair for pair in keyed if pair[0] is not None]
        with_key.sort(key=lambda pair: pair[0], reverse=is_descending)
        ordered = [row for _, row in with_key] + [row for key, row in keyed if key is None]
        return {
            "rows": ordered[query.offset : query.offset + query.size],
            "total": len(rows),
            "matched": len(ordered),
            "offset": query.offset,
            "size": query.size,
            "sort": sort,
            "is_descending": is_descending,
            "is_last": query.offset + query.size >= len(ordered),
        }


_COMPARED = Listing(
    keys={
        "severity": lambda row: row["severity"],
        "name": lambda row: row["name"],
        "change": lambda row: abs(row["change"]),
        "pairs": lambda row: row["pairs"],
    },
    texts=("name", "kind"),
    is_descending=True,
)


def page_of_comparison(comparison: Row, query: PageQuery) -> JsonDict:
    """A comparison (`fleet.comparison.compared`) with one page of its rows.

    Changes that cannot be judged are shown too, after all others.
    """
    return {**comparison, **_COMPARED.page(comparison["rows"], query)}
