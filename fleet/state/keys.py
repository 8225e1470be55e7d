"""Keys of the rows of a state file: numbers for texts that stand in millions of rows, and ids of candidates.

Candidates are looked up many at a time: one by one takes three times as long.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agents.records import CandidateId
from fleet.errors import StoreError
from fleet.state.schema import IN_GROUP, damaged

#: Candidates of one question at most; SQLite takes some 32,000 values.
MOST_VALUES = 1000

#: Numbers of a workload, a device and an environment.
Group = tuple[int, int, int]
#: Of a candidate: its outcomes, by attempt.
Attempts = dict[int, int]


class Labels:
    """The table `label`, all of it in memory: some thousands of texts.

    Args:
        connection: Of a state file.
        path: The file, for messages.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
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
            StateDamaged: No text has it.
        """
        text = self._text_of.get(number)
        if text is None:
            raise damaged(self._path, f"no name has the number {number}")
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


def packed_id(candidate_id: CandidateId) -> bytes:
    """The id of a candidate in half the bytes.

    Raises:
        StoreError: It is no even number of the digits 0-9 and a-f.
    """
    try:
        packed = bytes.fromhex(candidate_id)
    except (ValueError, TypeError):
        packed = b""
    # `fromhex` takes blanks and capitals, and two ids must not become one.
    if packed.hex() != candidate_id:
        raise StoreError(f"the candidate {candidate_id!r} cannot be stored: its id is no hexadecimal number")
    return packed


def packed_ids(candidate_ids: Iterable[CandidateId]) -> Iterator[list[bytes]]:
    """Yield ids that were checked before as SQLite has them, as many at a time as a question may have."""
    return parts(map(bytes.fromhex, candidate_ids))


def parts(candidates: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield some values at a time; a part whose length is no power of two repeats its last one."""
    every = list(candidates)
    for start in range(0, len(every), MOST_VALUES):
        part = every[start : start + MOST_VALUES]
        # A statement of each length would be made anew again and again.
        length = min(MOST_VALUES, 1 << (len(part) - 1).bit_length())
        yield part + part[-1:] * (length - len(part))


def marks(values: Sequence[object]) -> str:
    """The places of some values in a statement."""
    return ", ".join("?" * len(values))


def attempts_of(
    connection: sqlite3.Connection, group: Group, candidates: Iterable[bytes]
) -> defaultdict[bytes, Attempts]:
    """Look up what was measured of some candidates of a group, by candidate; nothing of those without any."""
    attempts: defaultdict[bytes, Attempts] = defaultdict(dict)
    for values in parts(candidates):
        for candidate, attempt, outcome in connection.execute(
            f"SELECT candidate, attempt, outcome FROM result WHERE {IN_GROUP}"
            f" AND candidate IN ({marks(values)})",
            (*group, *values),
        ).fetchall():
            attempts[candidate][attempt] = outcome
    return attempts
