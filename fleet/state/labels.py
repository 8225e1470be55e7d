"""Numbers for texts that stand in millions of rows: ids of devices, environments, workloads and families."""

from __future__ import annotations

import sqlite3


class UnnamedError(sqlite3.DatabaseError):
    """Rows name a text by a number that none has; for SQLite, the file is whole."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class Labels:
    """The table `label`, all of it in memory: some thousands of texts.

    Args:
        connection: Of a state file.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._number_of: dict[str, int] = {}
        self._text_of: dict[int, str] = {}
        self._uncommitted: list[str] = []
        for number, text in connection.execute("SELECT number, text FROM label"):
            self._number_of[text] = number
            self._text_of[number] = text
        self._next = max(self._text_of, default=0) + 1

    def find(self, text: str) -> int:
        """Number of a text; -1, which no row has, for one that stands nowhere."""
        return self._number_of.get(text, -1)

    def text(self, number: int) -> str:
        """The text that has a number.

        Raises:
            UnnamedError: No text has it: the file is damaged.
        """
        text = self._text_of.get(number)
        if text is None:
            raise UnnamedError(f"no name has the number {number}")
        return text

    def number(self, text: str) -> int:
        """Number of a text; a new one gets one within the open transaction."""
        number = self._number_of.get(text)
        if number is None:
            # A file that was made again may lack numbers.
            number, self._next = self._next, self._next + 1
            self._connection.execute("INSERT INTO label VALUES (?, ?)", (number, text))
            self._number_of[text], self._text_of[number] = number, text
            self._uncommitted.append(text)
        return number

    def commit(self) -> None:
        """Keep the new ones: the transaction is on the disk."""
        self._uncommitted.clear()

    def rollback(self) -> None:
        """Forget the new ones: the transaction was taken back."""
        for text in self._uncommitted:
            del self._text_of[self._number_of.pop(text)]
        self._uncommitted.clear()
