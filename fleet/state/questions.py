"""What is asked of a state file about candidates: which there are, and which a device has not measured.

`fleet.state.state_file` answers while it writes; `StateReader` beside it, from another process.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agents.records import Candidate, CandidateId, DeviceId, WorkloadId
from fleet.state.contents import Contents
from fleet.state.rows import (
    LOST,
    OK,
    OUTCOMES,
    CandidateTraits,
    KeptResult,
    Result,
    Tally,
    add_traits,
    unpack_trace,
    whole_candidates,
)
from fleet.state.schema import (
    IN_GROUP,
    Group,
    Labels,
    attempts_of,
    marks,
    open_reader,
    packed_id,
    packed_ids,
    reading,
)

# What is asked of a state file about results: what was measured where, how often, and how fast it was.
#
# Few candidates are looked up by their keys; what is counted stands in the tallies.

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


class ResultQuestions(Contents):
    """Questions about results."""

    def are_stored(self, results: Sequence[Result]) -> list[bool]:
        """Say of each result whether there is one of the same five fields."""
        places: list[tuple[Group, bytes, int]] = []
        groups: dict[Group, list[bytes]] = defaultdict(list)
        for result in results:
            group = self._group(result.workload_id, result.device_id, result.environment_id)
            places.append((group, packed_id(result.candidate_id), result.attempt))
            groups[group].append(places[-1][1])
        with reading(self.path):
            attempts = {
                group: attempts_of(self._connection, group, candidates)
                for group, candidates in groups.items()
            }
        return [attempt in attempts[group].get(candidate, ()) for group, candidate, attempt in places]

    def attempts(
        self,
        workload_id: WorkloadId,
        device_id: DeviceId,
        environment_id: str,
        candidate_ids: Iterable[CandidateId],
    ) -> Iterator[tuple[CandidateId, int, bool]]:
        """Yield what a device has of some candidates: id, attempt, and whether that was lost."""
        group = self._group(workload_id, device_id, environment_id)
        with reading(self.path):
            attempts = attempts_of(self._connection, group, map(bytes.fromhex, candidate_ids))
        for candidate, outcomes in attempts.items():
            candidate_id = CandidateId(candidate.hex())
            for attempt, outcome in outcomes.items():
                yield candidate_id, attempt, outcome == LOST

    def measured_among(
        self,
        workload_id: WorkloadId,
        device_id: DeviceId,
        environment_id: str,
        candidate_ids: Iterable[CandidateId],
    ) -> set[CandidateId]:
        """Those of some candidates that a device has measured, and not only lost."""
        attempts = self.attempts(workload_id, device_id, environment_id, candidate_ids)
        return {candidate_id for candidate_id, _, is_lost in attempts if not is_lost}

    def recorded(
        self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str | None = None
    ) -> set[CandidateId]:
        """Candidates of a workload that a device has results of, lost ones too, in one environment or any."""
        find = self._labels.find
        where, values = "workload = ? AND device = ?", [find(workload_id), find(device_id)]
        if environment_id is not None:
            where, values = f"{where} AND environment = ?", [*values, find(environment_id)]
        return set(self._ids(f"SELECT candidate FROM result WHERE {where}", *values))

    def fastest(
        self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str
    ) -> list[tuple[float, CandidateId]]:
        """The few fastest candidates of a workload on a device: seconds and id, the best first."""
        rows = self._rows(
            f"SELECT latency_secs, candidate FROM fastest WHERE {IN_GROUP} ORDER BY 1, 2",
            *self._group(workload_id, device_id, environment_id),
        )
        return [(secs, CandidateId(value.hex())) for secs, value in rows]

    def best_latencies(self) -> dict[tuple[WorkloadId, DeviceId], float]:
        """Seconds of the fastest candidate of each workload on each device, in any environment."""
        text = self._labels.text
        return {
            (WorkloadId(text(workload)), DeviceId(text(device))): secs
            for workload, device, secs in self._rows(
                "SELECT workload, device, min(latency_secs) FROM fastest GROUP BY workload, device"
            )
        }

    def lost(self, device_id: DeviceId) -> list[tuple[WorkloadId, str, CandidateId, int]]:
        """Candidates whose every measurement on a device in an environment was lost.

        Returns:
            Workload, environment, id, and the attempt that comes next.
        """
        text = self._labels.text
        rows = self._rows(
            "SELECT workload, environment, candidate, max(attempt) + 1 FROM result AS lost"
            f" WHERE device = ? AND outcome = {LOST} AND NOT EXISTS (SELECT 1 FROM result"
            " WHERE workload = lost.workload AND device = lost.device"
            " AND environment = lost.environment AND candidate = lost.candidate"
            f" AND outcome != {LOST}) GROUP BY environment, workload, candidate",
            self._labels.find(device_id),
        )
        return [
            (WorkloadId(text(workload)), text(environment), CandidateId(value.hex()), attempt)
            for workload, environment, value, attempt in rows
        ]

    def results(self) -> Iterator[KeptResult]:
        """Yield what stands in the file of every result, in no order that means anything."""
        text = self._labels.text
        for workload, device, environment, candidate, attempt, outcome, secs in self._rows(
            "SELECT workload, device, environment, candidate, attempt, outcome, latency_secs FROM result"
        ):
            self._demand(outcome in OUTCOMES and isinstance(candidate, bytes), "its results")
            yield (
                *(text(workload), text(device), text(environment)),
                *(candidate.hex(), attempt, OUTCOMES[outcome], secs),
            )

    def tallies(self, device_id: DeviceId | None = None) -> list[Tally]:
        """Sums over the results of a device, or of all, by workload and environment."""
        text = self._labels.text
        where, values = (
            ("", ()) if device_id is None else (" WHERE device = ?", (self._labels.find(device_id),))
        )
        return [
            Tally(WorkloadId(text(workload)), DeviceId(text(device)), text(environment), *sums)
            for workload, device, environment, *sums in self._rows(f"SELECT * FROM tally{where}", *values)
        ]

    def device_sums(self) -> dict[DeviceId, tuple[int, int, float]]:
        """Of each device: results, those with outcome `ok`, Unix seconds of the last one."""
        text = self._labels.text
        return {
            DeviceId(text(device)): (records, ok, measured_at)
            for device, records, ok, measured_at in self._rows(
                "SELECT device, sum(records), sum(ok), max(measured_at) FROM tally GROUP BY device"
            )
        }

    def devices_with(self, prefix: str) -> list[DeviceId]:
        """Devices with results of workloads whose ids begin so."""
        query = "SELECT DISTINCT device FROM tally JOIN label ON label.number = workload WHERE text GLOB ?"
        return [DeviceId(self._labels.text(device)) for (device,) in self._rows(query, f"{prefix}*")]

    def wrong_tallies(self) -> int:
        """How many sums over results are not what the results make."""
        return int(self._number(_WRONG_TALLIES))

    def _group(self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str) -> Group:
        find = self._labels.find
        return find(workload_id), find(device_id), find(environment_id)


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
        known_ids: set[CandidateId] = set()
        for values in packed_ids(candidate_ids):
            known_ids.update(
                self._ids(
                    f"SELECT id FROM candidate WHERE {_IN_SPACE} AND id IN ({marks(values)}){condition}",
                    *(*self._space(family, workload_id), *values),
                )
            )
        return known_ids

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

    def damaged_candidates(self) -> int:
        """How many candidates have a trace that cannot be read, or that is of another id."""
        rows = self._rows("SELECT * FROM candidate ORDER BY number")
        whole = sum(1 for _ in whole_candidates(rows, self._labels.texts))
        return self._number("SELECT count(*) FROM candidate") - whole

    def traits(self, families: Sequence[str], workload_id: WorkloadId) -> dict[CandidateId, CandidateTraits]:
        """What is known of the candidates of a workload, in the order in which they became known.

        One that several families know has the origin that it has in the first of them, and is blocked where
        it is in any.
        """
        traits: dict[CandidateId, CandidateTraits] = {}
        query = f"SELECT id, dialect, origin, is_blocked FROM candidate WHERE {_IN_SPACE} ORDER BY number"
        for family in families:
            for value, *others in self._rows(query, *self._space(family, workload_id)):
                add_traits(traits, CandidateId(value.hex()), CandidateTraits(*others))
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
