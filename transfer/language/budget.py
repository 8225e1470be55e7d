"""How much work a text from a stranger may cause.

A few kilobytes can describe a graph whose walk never ends, or a list that is looked through once an item. So
every walk over such a text has a budget that grows with the text, and gives up beyond it. Real programs take
less than a fifth of theirs. Used by all readers of this folder and by `transfer.access`.
"""

from __future__ import annotations

from transfer.errors import BudgetError

#: Visits that any text may cause, however short, and those that each of its characters adds.
_LEAST_VISITS = 10_000
_VISITS_A_CHARACTER = 1


class Budget:
    """Visits that one walk may still make.

    Args:
        text_chars: Length of the text that is walked.
        what: What it is, for the message.
    """

    __slots__ = ("_left", "_what")

    def __init__(self, text_chars: int, what: str) -> None:
        self._left = _LEAST_VISITS + _VISITS_A_CHARACTER * text_chars
        self._what = what

    def spend(self, visits: int) -> None:
        """Take some visits off; to look at one item of a list is one.

        Raises:
            BudgetError: That many are not left.
        """
        self._left -= visits
        if self._left < 0:
            raise BudgetError(f"{self._what} takes more work to read than any real one of its size")


__all__ = ["Budget"]
