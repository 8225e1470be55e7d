"""What a planner asks a state file: which candidates there are, and which a device has not measured.

`fleet.state.state_file` answers while it writes; `StateReader` beside it, from another process.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.state.attempts import Group, attempts_of, marks, packed_ids, parts
from fleet.state.collection_questions import CollectionQuestions
from fleet.state.labels import Labels
from fleet.state.rows import LOST, OK, OUTCOMES, KeptResult, Result, Tally, packed_id, unpack_trace
from fleet.state.schema import IN_GROUP, open_reader, state_errors

#: Sums that are made of the results, and those that are kept: how many stand on one side alone.
_WRONG_TALLIES = f"""
WITH made AS (
    SELECT workload, device, environment, count(*),
        count(DISTINCT CASE WHEN outcome != {LOST} THEN candidate END), sum(outcome = {OK})
    FROM result GROUP BY workload, device, environment
), kept AS (SELECT workload, device, environment, records, measured, ok FROM tally)
SELECT (SELECT count(*) FROM (SELECT * FROM made EXCEPT SELECT * FROM kept))
    + (SELECT count(*) FROM (SELECT * FROM kept EXCEPT SELECT * FROM made))
"""


class Questions(CollectionQuestions):
    """Questions about results and candidates."""

    def are_stored(self, results: Sequence[Result]) -> list[bool]:
        """Say of each result whether there is one of the same five fields."""
        find = self._labels.find
        places: list[tuple[Group, bytes, int]] = []
        groups: dict[Group, list[bytes]] = defaultdict(list)
        for result in results:
            group = find(result.workload_id), find(result.device_id), find(result.environment_id)
            places.append((group, packed_id(result.candidate_id), result.attempt))
            groups[group].append(places[-1][1])
        with state_errors("reading the state file", self.path):
            attempts = {
                group: attempts_of(self._connection, group, candidates)
                for group, candidates in groups.items()
            }
        return [attempt in attempts[group].get(candidate, ()) for group, candidate, attempt in places]

    def results(self) -> Iterator[KeptResult]:
        """Yield what stands in the file of every result, in no order that means anything."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            for workload, device, environment, candidate, attempt, outcome, secs in self._connection.execute(
                "SELECT workload, device, environment, candidate, attempt, outcome, latency_secs FROM result"
            ):
                if outcome not in OUTCOMES or not isinstance(candidate, bytes):
                    raise self._damage("its results")
                yield (
                    *(text(workload), text(device), text(environment)),
                    *(candidate.hex(), attempt, OUTCOMES[outcome], secs),
                )

    def times(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """When the last result and the last A/A pair were, by workload, device and environment."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            return {
                (text(workload), text(device), text(environment)): (measured_at, noise_at)
                for workload, device, environment, measured_at, noise_at in self._connection.execute(
                    "SELECT workload, device, environment, measured_at, noise_at FROM tally"
                )
            }

    def wrong_tallies(self) -> int:
        """How many sums over results are not what the results make."""
        with state_errors("reading the state file", self.path):
            [count] = self._connection.execute(_WRONG_TALLIES).fetchone()
        return int(count)

    def tallies(self, device_id: DeviceId) -> list[Tally]:
        """Sums over the results of a device, by workload and environment."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            return [
                Tally(
                    workload_id=WorkloadId(text(workload)),
                    environment_id=text(environment),
                    records=records,
                    measured=measured,
                    ok=ok,
                    measured_at=measured_at,
                    noise_at=noise_at,
                )
                for workload, _, environment, records, measured, ok, measured_at, noise_at in (
                    self._connection.execute(
                        "SELECT * FROM tally WHERE device = ?", (self._labels.find(device_id),)
                    )
                )
            ]

    def record_sums(self) -> list[tuple[DeviceId, WorkloadId, int, int, float]]:
        """Of each device and workload: results, those with outcome `ok`, Unix seconds of the last one."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            return [
                (DeviceId(text(device)), WorkloadId(text(workload)), records, ok, measured_at)
                for device, workload, records, ok, measured_at in self._connection.execute(
                    "SELECT device, workload, sum(records), sum(ok), max(measured_at) FROM tally"
                    " GROUP BY device, workload"
                )
            ]

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
        find = self._labels.find
        with state_errors("reading the state file", self.path):
            rows = self._connection.execute(
                "SELECT number, id FROM candidate"
                " WHERE family = ? AND workload = ? AND number > ? AND NOT is_blocked AND NOT EXISTS"
                f" (SELECT 1 FROM result WHERE {IN_GROUP} AND candidate = candidate.id AND outcome != ?)"
                " ORDER BY number LIMIT ?",
                (
                    *(find(family), find(workload_id), after),
                    *(find(workload_id), find(device_id), find(environment_id), LOST, limit),
                ),
            )
            return [(number, CandidateId(value.hex())) for number, value in rows]

    def candidates(
        self, families: Sequence[str], workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> dict[CandidateId, Candidate]:
        """Some candidates of a workload with their traces; those that no family knows are left out.

        Raises:
            StateDamaged: A trace cannot be read, or is that of another candidate.
        """
        find = self._labels.find
        candidates: dict[CandidateId, Candidate] = {}
        bases: dict[int, str] = {}
        with state_errors("reading the state file", self.path):
            for family in families:
                for values in parts(packed_ids(candidate_ids)):
                    for value, dialect, origin, trace, base in self._connection.execute(
                        "SELECT id, dialect, origin, trace, base FROM candidate"
                        f" WHERE family = ? AND workload = ? AND id IN ({marks(values)})",
                        (find(family), find(workload_id), *values),
                    ).fetchall():
                        candidate = Candidate(
                            workload_id=workload_id,
                            dialect=dialect,
                            origin=origin,
                            trace=self._trace(value, trace, base, bases),
                        )
                        if candidate.candidate_id != value.hex():
                            raise self._damage(f"the trace of candidate {value.hex()}")
                        candidates[candidate.candidate_id] = candidate
        return candidates

    def waiting_candidates(self) -> list[tuple[str, WorkloadId, CandidateId, int]]:
        """Candidates that nobody has measured, oldest first: family, workload, id and number of each."""
        text = self._labels.text
        with state_errors("reading the state file", self.path):
            return [
                (text(family), WorkloadId(text(workload)), CandidateId(value.hex()), number)
                for family, workload, value, number in self._connection.execute(
                    "SELECT family, workload, id, number FROM candidate WHERE is_waiting ORDER BY number"
                )
            ]

    def _trace(self, value: bytes, packed: bytes, base: int | None, bases: dict[int, str]) -> str:
        try:
            if base is not None and base not in bases:
                [first] = self._connection.execute(
                    "SELECT trace FROM candidate WHERE number = ?", (base,)
                ).fetchone()
                bases[base] = unpack_trace(first, None)
            return unpack_trace(packed, None if base is None else bases[base])
        except (ValueError, TypeError) as error:
            raise self._damage(f"the trace of candidate {value.hex()}") from error


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
            with state_errors("reading the state file", path):
                connection.execute("BEGIN")
                super().__init__(connection, Labels(connection), path)
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
