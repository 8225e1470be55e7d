"""The A/A run of a device: its batches from what the store has, and when it is due in a daemon.

A collection plans it where it runs. In a daemon `fleet.engine.coordinator` asks now and then, and a thread
reads, so nothing waits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from agents.records import NOISE, DeviceId, DeviceSpec, WorkloadId, is_live
from fleet.coverage.coverage import Coverage
from fleet.planner.batch_plan import (
    NOISE_EVERY_SECS,
    NOISE_SAMPLED,
    DeviceBatch,
    noise_sample,
    plan_noise,
)
from fleet.planner.imported_candidates import ours
from fleet.planner.job_planner import JobPlanner
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from fleet.store.trace_lookup import StoreThread, find_records

#: Runs that are planned at once: in a fleet that began together all are due at once.
_MOST_OPEN = 4
#: A run that could not be planned, or whose jobs wait, is looked at again after this.
_RETRY_SECS = 1800.0


class NoiseRuns:
    """A/A runs of all devices.

    Args:
        specs: The devices; more may come.
        count: Candidates of a run; 0 for no runs.
    """

    def __init__(
        self,
        coverage: Coverage,
        thread: StoreThread,
        planner: JobPlanner,
        store: Store,
        specs: Mapping[DeviceId, DeviceSpec],
        *,
        count: int,
        seed: int,
    ) -> None:
        self._coverage, self._thread, self._planner = coverage, thread, planner
        self._store, self._specs = store, specs
        self._count, self._seed = count, seed
        self._next_at: dict[DeviceId, float] = {}
        #: Last runs that their agents' clocks put into the future, and when they were first seen.
        self._ahead: dict[DeviceId, tuple[float, float]] = {}
        #: Devices whose runs are being planned.
        self._open: set[DeviceId] = set()

    def is_due(self, device_id: DeviceId, now: float, wall: float) -> bool:
        """Whether a device that is up should have its run now.

        A device with few records has none yet: its first run would be all that it measures. `now` are seconds
        that the coordinator ran, `wall` Unix seconds: the records of the last run carry such.
        """
        if not self._count or len(self._open) >= _MOST_OPEN or now < self._next_at.get(device_id, 0.0):
            return False
        is_new = self._coverage.records(device_id) < NOISE_SAMPLED * self._count
        return not is_new and self._age_secs(device_id, now, wall) >= NOISE_EVERY_SECS

    def _age_secs(self, device_id: DeviceId, now: float, wall: float) -> float:
        """How long ago a device had its last run; one from the future is as old as it is known here."""
        at = self._coverage.noise_at(device_id)
        if at <= wall:
            return wall - at
        if self._ahead.get(device_id, (0.0, 0.0))[0] != at:
            self._ahead[device_id] = at, now
        return now - self._ahead[device_id][1]

    def begin(self, device_id: DeviceId, environment_id: str, now: float, wall: float) -> None:
        """Have the run of a device planned; times as in `is_due`.

        Raises:
            StoreFull: No room to keep what is to be read; it stays due.
        """
        # The thread reads what is durable.
        self._store.settle()
        self._next_at[device_id] = now + _RETRY_SECS
        # Other candidates every day.
        seed = self._seed + int(wall // NOISE_EVERY_SECS)
        question = partial(
            plan_run,
            spec=self._specs[device_id],
            environment_id=environment_id,
            workload_ids=frozenset(self._planner.workloads_of(device_id)),
            count=self._count,
            seed=seed,
        )
        self._open.add(device_id)
        self._thread.ask(question, partial(self._planned, device_id))

    def postpone(self, device_id: DeviceId, now: float) -> None:
        """Look at a device again later: the jobs of its last run still wait."""
        self._next_at[device_id] = now + _RETRY_SECS

    def _planned(self, device_id: DeviceId, batches: list[DeviceBatch] | None) -> None:
        """Hand in what the thread has planned, in the order in which it must be measured."""
        self._open.discard(device_id)
        # One that left meanwhile measures nothing.
        for batch in (batches or ()) if self._planner.workloads_of(device_id) else ():
            family = self._coverage.families[device_id]
            for candidate in batch.candidates:
                self._coverage.candidates.add((family, candidate.workload_id), [candidate])
            part = [(candidate.workload_id, candidate.candidate_id) for candidate in batch.candidates]
            self._planner.submit(self._planner.factory.job(device_id, part, NOISE, batch.attempt))


def plan_run(
    reader: StoreReader,
    *,
    spec: DeviceSpec,
    environment_id: str,
    workload_ids: Collection[WorkloadId],
    count: int,
    seed: int,
) -> list[DeviceBatch]:
    """Plan the A/A run of a device with candidates of some workloads, in its environment of now.

    Returns:
        As `plan_noise` does. A live device gets candidates of our own only.
    """
    with StateReader(reader.path / STATE) as state:
        measured = {
            candidate_id
            for workload_id in workload_ids
            for candidate_id in state.recorded(workload_id, spec.device_id, environment_id)
        }
    sample = noise_sample(measured, count=count, seed=seed)
    records = find_records(reader, spec.device_id, sample)
    present = (record for record in records if record.environment_id == environment_id)
    chosen = ours(present) if is_live(spec) else present
    return plan_noise(chosen, workload_ids, count=count, seed=seed)
