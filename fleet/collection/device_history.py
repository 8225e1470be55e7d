"""What devices have measured so far, as a collection needs to know it. It measures nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Family, Outcome, Record, WorkloadId
from agents.trust import is_imported, is_live
from fleet.collection.batch_plan import DeviceProgress
from fleet.collection.family_history import FamilyHistory
from fleet.collection.trust import devices_of_family, ours
from fleet.drivers.session import EngineSession
from fleet.state.rows import Tally
from fleet.store.noise import Reading
from fleet.store.noise_columns import READING_COLUMNS, readings
from fleet.store.reader import environment_before
from fleet.store.trace_lookup import find_records

_ATTEMPT_COLUMNS = ("candidate_id", "environment_id", "attempt", "outcome")


class DeviceHistory:
    """What the devices of a collection have measured in their present environments.

    The state file is asked each time: all that was measured for the collection is in it.
    """

    def __init__(self, engine: EngineSession, specs: Mapping[DeviceId, DeviceSpec]) -> None:
        self._engine, self._specs = engine, specs
        self._environments: dict[DeviceId, str] = {}

    def has_live(self, family: Family) -> bool:
        """Whether programs run for a family: not where all of its devices are replay devices."""
        return any(spec.family is family and is_live(spec) for spec in self._specs.values())

    @contextmanager
    def of_family(self, family: Family) -> Iterator[FamilyHistory]:
        """What the family's devices have measured; where one of the collection is live, the live ones."""
        live = self.has_live(family)
        device_ids = devices_of_family(self._engine.store().devices(), family, live=live)
        with self._engine.state() as state:
            yield FamilyHistory(state, self._engine.store, family, device_ids, live=live)

    def environment_id(self, device_id: DeviceId) -> str:
        """The environment that a device had when it was first asked about."""
        if device_id not in self._environments:
            self._environments[device_id] = self._engine.environment_id(device_id)
        return self._environments[device_id]

    def progress(self, device_id: DeviceId, pool: Mapping[WorkloadId, Sequence[Candidate]]) -> DeviceProgress:
        """What a device has of some candidates."""
        progress = DeviceProgress()
        if self._engine.parted_at(device_id) is not None:
            self._read_parted(device_id, pool, progress)
        else:
            for attempt in self._attempts(device_id, pool):
                progress.add(*attempt)
        return progress

    def recorded(self, device_id: DeviceId, candidates: Iterable[Candidate]) -> set[CandidateId]:
        """Those of some candidates that a device has results of."""
        by_workload: dict[WorkloadId, list[Candidate]] = {}
        for candidate in candidates:
            by_workload.setdefault(candidate.workload_id, []).append(candidate)
        return {candidate_id for candidate_id, _, _ in self._attempts(device_id, by_workload)}

    def noise_at(self, device_id: DeviceId) -> float:
        """Unix seconds of the last whole A/A run of a device; 0 for never."""
        return max((tally.noise_at for tally in self._tallies(device_id)), default=0.0)

    def candidate_ids(self, device_id: DeviceId) -> Iterator[CandidateId]:
        """Yield all candidates that a device has results of; of a live device, none of imported workloads."""
        environment_id, tallies = self.environment_id(device_id), self._tallies(device_id)
        with self._engine.state() as state:
            for tally in tallies:
                yield from state.recorded(tally.workload_id, device_id, environment_id)

    def records(self, device_id: DeviceId, candidate_ids: Collection[CandidateId]) -> Iterator[Record]:
        """Yield the records of some candidates; of a live device, those of our own."""
        environment_id = self.environment_id(device_id)
        records = find_records(self._engine.store(), device_id, candidate_ids)
        present = (record for record in records if record.environment_id == environment_id)
        return ours(present) if is_live(self._specs[device_id]) else present

    def readings(self, device_id: DeviceId, workload_ids: Collection[WorkloadId]) -> Iterator[Reading]:
        """Yield what was read of candidates of some workloads: only the table says how well."""
        environment_id = self.environment_id(device_id)
        with self._engine.state() as state:
            names = {
                candidate_id
                for workload_id in workload_ids
                for candidate_id in state.recorded(workload_id, device_id, environment_id)
            }
        for _, batch in self._engine.store().columns(READING_COLUMNS, device_ids=[device_id]):
            for reading in readings(device_id, batch):
                if reading.environment_id == environment_id and reading.candidate_id in names:
                    yield reading

    def _attempts(
        self, device_id: DeviceId, pool: Mapping[WorkloadId, Sequence[Candidate]]
    ) -> Iterator[tuple[CandidateId, int, bool]]:
        """Yield id and attempt of each result of some candidates, and whether it was lost."""
        environment_id = self.environment_id(device_id)
        with self._engine.state() as state:
            for workload_id, candidates in pool.items():
                names = [candidate.candidate_id for candidate in candidates]
                yield from state.attempts(workload_id, device_id, environment_id, names)

    def _tallies(self, device_id: DeviceId) -> list[Tally]:
        """Sums over what a device has of each workload; a live device, of our own ones."""
        environment_id, live = self.environment_id(device_id), is_live(self._specs[device_id])
        with self._engine.state() as state:
            return [
                tally
                for tally in state.tallies(device_id)
                if tally.environment_id == environment_id and not (live and is_imported(tally.workload_id))
            ]

    def _read_parted(
        self, device_id: DeviceId, pool: Mapping[WorkloadId, Sequence[Candidate]], progress: DeviceProgress
    ) -> None:
        """Read the same from the table, which alone knows when each result was measured."""
        names = {candidate.candidate_id for candidates in pool.values() for candidate in candidates}
        present = self.environment_id(device_id)
        before = environment_before(present)
        for _, batch in self._engine.store().columns(_ATTEMPT_COLUMNS, device_ids=[device_id]):
            columns = (batch.column(name).to_pylist() for name in _ATTEMPT_COLUMNS)
            for candidate_id, environment_id, attempt, outcome in zip(*columns, strict=True):
                if candidate_id not in names:
                    continue
                if environment_id == before:
                    progress.add_outdated(candidate_id, attempt)
                elif environment_id == present:
                    progress.add(candidate_id, attempt, outcome == Outcome.LOST.value)
