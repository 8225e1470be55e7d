"""What a state file has of some candidates, asked many at a time: one by one takes three times as long.

`fleet.state.turn` asks before it adds results, and so do the questions of `fleet.state`.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from agents.records import CandidateId
from fleet.state.schema import IN_GROUP

#: Candidates of one question at most; SQLite takes some 32,000 values.
MOST_VALUES = 1000

#: Numbers of a workload, a device and an environment.
Group = tuple[int, int, int]
#: Of a candidate: its outcomes, by attempt.
Attempts = dict[int, int]


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


def packed_ids(candidate_ids: Iterable[CandidateId]) -> Iterator[bytes]:
    """Yield ids that were checked before as SQLite has them."""
    return map(bytes.fromhex, candidate_ids)


def parts(candidates: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield some values at a time; a part whose length is no power of two repeats its last one."""
    every = list(candidates)
    for start in range(0, len(every), MOST_VALUES):
        part = every[start : start + MOST_VALUES]
        # A statement of each length would be made anew again and again.
        length = min(MOST_VALUES, 1 << (len(part) - 1).bit_length())
        yield part + part[-1:] * (length - len(part))


def marks(values: Sequence[bytes]) -> str:
    """The places of some values in a statement."""
    return ", ".join("?" * len(values))
