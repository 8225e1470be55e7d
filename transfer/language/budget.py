"""How much work a text from a stranger may cause: its length, its items, the steps of a walk over it.

A few kilobytes can describe a graph whose walk never ends, or a list that is looked through once an item. So
every walk over such a text has a budget that grows with the text, and gives up beyond it. Real programs take
less than a fifth of theirs. Used by all readers of this folder and by `transfer.features.access`.
"""

from __future__ import annotations

import json
from typing import Any

from transfer.errors import BudgetError, TraceError

#: Visits that any text may cause, however short, and those that each of its characters adds.
_LEAST_VISITS = 10_000
_VISITS_A_CHARACTER = 1


class WalkBudget:
    """Visits that one walk may still make.

    Args:
        text_chars: Length of the text that is walked.
        what: What it is, for the message.
    """

    __slots__ = ("_remaining", "_what")

    def __init__(self, text_chars: int, what: str) -> None:
        self._remaining = _LEAST_VISITS + _VISITS_A_CHARACTER * text_chars
        self._what = what

    def spend(self, visits: int) -> None:
        """Take some visits off; to look at one item of a list is one.

        Raises:
            BudgetError: That many are not left.
        """
        self._remaining -= visits
        if self._remaining < 0:
            raise BudgetError(f"{self._what} takes more work to read than any real one of its size")


#: Longest text that is read; the longest trace of the logs at hand takes 10 KB.
MAX_TEXT = 1 << 20


def parse_list(text: str, *, what: str, items: str, most: int) -> list[Any]:
    """Parse a list.

    Args:
        text: JSON.
        what: What it is, and ...
        items: ... what it lists, for the message.
        most: Items at most.

    Raises:
        TraceError: It is not a JSON list of at most `most` items.
    """
    if len(text) > MAX_TEXT:
        raise TraceError(f"{what} has {len(text)} characters, at most {MAX_TEXT} are read")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{what} is not JSON ({error}); it begins {text[:60]!r}") from error
    if not isinstance(value, list):
        raise TraceError(f"{what} must be a list of {items}, begins {text[:60]!r}")
    if len(value) > most:
        raise TraceError(f"{what} has {len(value)} {items}, at most {most} are read")
    return value
