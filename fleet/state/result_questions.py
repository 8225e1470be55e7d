"""What is asked of a state file about results: what was measured where, how often, and how fast it was.

`fleet.state.questions` has these questions among others. Few candidates are looked up by their keys; what is
counted stands in the tallies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from agents.records import CandidateId, DeviceId, WorkloadId
from fleet.state.contents import Contents
from fleet.state.keys import Group, attempts_of, packed_id
from fleet.state.rows import LOST, OK, OUTCOMES, KeptResult, Result, Tally
from fleet.state.schema import IN_GROUP, reading

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

    def tallies(self, device_id: DeviceId) -> list[Tally]:
        """Sums over the results of a device, by workload and environment."""
        text = self._labels.text
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
            for workload, _, environment, records, measured, ok, measured_at, noise_at in self._rows(
                "SELECT * FROM tally WHERE device = ?", self._labels.find(device_id)
            )
        ]

    def record_sums(self) -> list[tuple[DeviceId, WorkloadId, int, int, float]]:
        """Of each device and workload: results, those with outcome `ok`, Unix seconds of the last one."""
        text = self._labels.text
        return [
            (DeviceId(text(device)), WorkloadId(text(workload)), records, ok, measured_at)
            for device, workload, records, ok, measured_at in self._rows(
                "SELECT device, workload, sum(records), sum(ok), max(measured_at) FROM tally"
                " GROUP BY device, workload"
            )
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

    def times(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """When the last result and the last A/A pair were, by workload, device and environment."""
        text = self._labels.text
        return {
            (text(workload), text(device), text(environment)): (measured_at, noise_at)
            for workload, device, environment, measured_at, noise_at in self._rows(
                "SELECT workload, device, environment, measured_at, noise_at FROM tally"
            )
        }

    def wrong_tallies(self) -> int:
        """How many sums over results are not what the results make."""
        return int(self._number(_WRONG_TALLIES))

    def _group(self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str) -> Group:
        find = self._labels.find
        return find(workload_id), find(device_id), find(environment_id)
