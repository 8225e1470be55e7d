"""What is asked of a state file about candidates: which there are, and which a device has not measured.

`fleet.state.state_file` answers while it writes; `StateReader` beside it, from another process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.state.keys import Labels, marks, packed_ids
from fleet.state.result_questions import ResultQuestions
from fleet.state.rows import LOST, CandidateTraits, unpack_trace
from fleet.state.schema import IN_GROUP, open_reader, reading

#: What a family knows of a workload.
_IN_SPACE = "family = ? AND workload = ?"


class Questions(ResultQuestions):
    """Questions about results and candidates."""

    def known_among(
        self,
        family: str,
        workload_id: WorkloadId,
        candidate_ids: Iterable[CandidateId],
        *,
        is_settled: bool = False,
    ) -> set[CandidateId]:
        """Those of some candidates that a family knows; `is_settled` for those that wait no more."""
        condition = " AND NOT is_waiting" if is_settled else ""
        known: set[CandidateId] = set()
        for values in packed_ids(candidate_ids):
            known.update(
                self._ids(
                    f"SELECT id FROM candidate WHERE {_IN_SPACE} AND id IN ({marks(values)}){condition}",
                    *(*self._space(family, workload_id), *values),
                )
            )
        return known

    def candidate_count(self, families: Sequence[str], workload_id: WorkloadId) -> int:
        """How many candidates of a workload some families know; those that several know count once."""
        names = [self._labels.find(family) for family in families]
        return self._number(
            f"SELECT count(DISTINCT id) FROM candidate WHERE family IN ({marks(names)}) AND workload = ?",
            *(*names, self._labels.find(workload_id)),
        )

    def blocked(self, family: str, workload_id: WorkloadId) -> set[CandidateId]:
        """Candidates of a workload that a family is not to plan."""
        query = f"SELECT id FROM candidate WHERE {_IN_SPACE} AND is_blocked"
        return set(self._ids(query, *self._space(family, workload_id)))

    def latest(self, family: str, workload_id: WorkloadId, most: int) -> list[CandidateId]:
        """The candidates of a workload that became known last, up to so many, in that order."""
        query = f"SELECT id FROM candidate WHERE {_IN_SPACE} ORDER BY number DESC LIMIT ?"
        return self._ids(query, *self._space(family, workload_id), most)[::-1]

    def last_number(self, family: str, workload_id: WorkloadId) -> int:
        """Number of the candidate of a workload that became known last; 0 where there is none."""
        query = f"SELECT coalesce(max(number), 0) FROM candidate WHERE {_IN_SPACE}"
        return self._number(query, *self._space(family, workload_id))

    def gaps(
        self,
        family: str,
        workload_id: WorkloadId,
        device_id: DeviceId,
        environment_id: str,
        limit: int,
        *,
        after: int = 0,
    ) -> list[tuple[int, CandidateId]]:
        """Candidates that a family knows and a device has not measured, oldest first.

        The order is the same for all devices, so that they measure the same ones. Lost measurements do not
        count, and blocked candidates are left out.

        Args:
            family: Whose candidates.
            workload_id: Of which workload.
            device_id: Who has not measured them.
            environment_id: In which environment.
            limit: Candidates at most.
            after: Number of a candidate before which there is no gap: the search begins behind it.

        Returns:
            Number and id of each.
        """
        rows = self._rows(
            f"SELECT number, id FROM candidate WHERE {_IN_SPACE} AND number > ? AND NOT is_blocked"
            f" AND NOT EXISTS (SELECT 1 FROM result WHERE {IN_GROUP} AND candidate = candidate.id"
            f" AND outcome != {LOST}) ORDER BY number LIMIT ?",
            *(*self._space(family, workload_id), after),
            *(*self._group(workload_id, device_id, environment_id), limit),
        )
        return [(number, CandidateId(value.hex())) for number, value in rows]

    def waiting_candidates(self) -> list[tuple[str, WorkloadId, CandidateId, int]]:
        """Candidates that nobody has measured, oldest first: family, workload, id and number of each."""
        text = self._labels.text
        return [
            (text(family), WorkloadId(text(workload)), CandidateId(value.hex()), number)
            for family, workload, value, number in self._rows(
                "SELECT family, workload, id, number FROM candidate WHERE is_waiting ORDER BY number"
            )
        ]

    def traits(self, families: Sequence[str], workload_id: WorkloadId) -> dict[CandidateId, CandidateTraits]:
        """What is known of the candidates of a workload, in the order in which they became known.

        One that several families know has the origin that it has in the first of them, and is blocked where
        it is in any.
        """
        traits: dict[CandidateId, CandidateTraits] = {}
        query = f"SELECT id, dialect, origin, is_blocked FROM candidate WHERE {_IN_SPACE} ORDER BY number"
        for family in families:
            for value, *others in self._rows(query, *self._space(family, workload_id)):
                candidate_id, trait = CandidateId(value.hex()), CandidateTraits(*others)
                earlier = traits.setdefault(candidate_id, trait)
                if trait.is_blocked and not earlier.is_blocked:
                    traits[candidate_id] = earlier._replace(is_blocked=True)
        return traits

    def candidates(
        self, families: Sequence[str], workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> dict[CandidateId, Candidate]:
        """Some candidates of a workload with their traces; those that no family knows are left out.

        Raises:
            StateDamaged: A trace cannot be read, or is that of another candidate.
        """
        rows = [
            row
            for family in families
            for values in packed_ids(candidate_ids)
            for row in self._rows(
                "SELECT id, dialect, origin, trace, base FROM candidate"
                f" WHERE {_IN_SPACE} AND id IN ({marks(values)})",
                *(*self._space(family, workload_id), *values),
            )
        ]
        candidates: dict[CandidateId, Candidate] = {}
        bases: dict[int, str] = {}
        for value, dialect, origin, packed, base in rows:
            trace = self._trace(value, packed, base, bases)
            candidate = Candidate(workload_id=workload_id, dialect=dialect, origin=origin, trace=trace)
            self._demand(candidate.candidate_id == value.hex(), f"the trace of candidate {value.hex()}")
            candidates[candidate.candidate_id] = candidate
        return candidates

    def _trace(self, value: bytes, packed: bytes, base: int | None, bases: dict[int, str]) -> str:
        try:
            if base is None:
                return unpack_trace(packed, None)
            if base not in bases:
                [[first]] = self._rows("SELECT trace FROM candidate WHERE number = ?", base)
                bases[base] = unpack_trace(first, None)
            return unpack_trace(packed, bases[base])
        except (ValueError, TypeError) as error:
            raise self._damage(f"the trace of candidate {value.hex()}") from error

    def _space(self, family: str, workload_id: WorkloadId) -> tuple[int, int]:
        return self._labels.find(family), self._labels.find(workload_id)


class StateReader(Questions):
    """The file as it is at one moment, read beside the process that writes it.

    Args:
        path: The file.

    Raises:
        StoreError: It is missing, damaged, or has another layout.
    """

    def __init__(self, path: Path) -> None:
        connection = open_reader(path)
        try:
            with reading(path):
                connection.execute("BEGIN")
                super().__init__(connection, Labels(connection, path), path)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Let the log of the writer start over: a reader that stays keeps it growing."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
