"""Collect records: candidates of workloads, each once on every device, into the store.

The driver of a collection, around `selection.py` and `batch_plan.py`: it has the engine draw and measure, and
decides nothing that they could decide. Started again after any interruption it goes on with what is missing,
because random candidates are drawn from a seed and the store tells what has been proposed and measured.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from agents.programs.networks import NETWORKS
from agents.records import (
    REMEASURE,
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Family,
    Outcome,
    Record,
    Workload,
    WorkloadId,
    is_live,
)
from fleet.coverage.coverage import MAX_LOSSES
from fleet.drivers.session import DeviceUnusableError, EngineSession
from fleet.errors import FleetError
from fleet.planner.batch_plan import (
    NOISE_EVERY_SECS,
    DeviceBatch,
    cut_batches,
    plan_jobs,
    remeasure_sample,
)
from fleet.planner.device_history import DeviceHistory
from fleet.planner.noise_runs import plan_run
from fleet.planner.proposals import GENERATIONS, Proposer
from fleet.planner.selection import allocate, choose_configured
from fleet.planner.settings import CollectSettings, Display, Ledger, Pools, Spent, Watcher

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig


#: Batches that a device's agent holds: one runs, one waits, so the device never idles.
_IN_FLIGHT = 2
#: Workloads that are finished before others begin: their candidates are held in memory, some 20 KB each.
_WORKLOADS_AT_ONCE = 64


class Collection:
    """One collection over the devices of a session."""

    def __init__(
        self,
        engine: EngineSession,
        specs: Mapping[DeviceId, DeviceSpec],
        settings: CollectSettings,
        watcher: Watcher,
    ) -> None:
        self._engine = engine
        self._specs = specs
        self._settings = settings
        self._watcher = watcher
        self._families: dict[Family, list[DeviceId]] = {}
        for device_id, spec in specs.items():
            self._families.setdefault(spec.family, []).append(device_id)
        #: Devices on which programs run.
        self._live = [device_id for device_id, spec in specs.items() if is_live(spec)]
        self._history = DeviceHistory(engine, specs)
        self._losses: Counter[tuple[DeviceId, CandidateId]] = Counter()
        #: Why the last lost candidate of a device was lost.
        self.loss_reasons: dict[DeviceId, str] = {}
        #: Devices that fell out, and why.
        self.fallen: dict[DeviceId, str] = {}
        minutes = settings.minutes
        self._ends_at = time.monotonic() + 60 * minutes if minutes is not None else math.inf
        self._ledger = Ledger()
        askable = {
            family: [device_id for device_id in device_ids if device_id in self._live] or device_ids
            for family, device_ids in self._families.items()
        }
        self._proposer = Proposer(
            engine, askable, self._history, settings, watcher, self._ledger, self._leave
        )

    def network_workloads(self, networks: Sequence[str]) -> list[Workload]:
        """The workloads of some networks, as an agent lists them: a live device's, if there is one."""
        askable = [device_id for device_id in (*self._live, *self._specs) if device_id not in self.fallen]
        return self._engine.network_workloads(askable[0], networks)

    def stored_workloads(self, workload_ids: Iterable[WorkloadId]) -> dict[WorkloadId, Workload]:
        """Those of some workloads of the store that the session's devices may be given.

        Live devices get modules of our own only. One that others have brought is listed by an agent where it
        can be.
        """
        stored = self._engine.store().workloads()
        chosen = {workload_id: stored[workload_id] for workload_id in workload_ids if workload_id in stored}
        if not self._live:
            return chosen
        own = self._engine.store().own_workloads()
        networks = {
            name for workload_id in chosen.keys() - own.keys() for name, _ in chosen[workload_id].networks
        }
        if unlisted := sorted(networks & set(NETWORKS)):
            self.network_workloads(unlisted)
            own = self._engine.store().own_workloads()
        return {workload_id: own[workload_id] for workload_id in chosen if workload_id in own}

    def run(self, workloads: Sequence[Workload]) -> None:
        """Do everything for some workloads: random candidates first, then those that evolve from the best.

        The settings' samples are shared out over the workloads (`selection.allocate`).
        """
        samples = self._settings.samples
        minimum = samples if self._settings.minimum is None else min(self._settings.minimum, samples)
        targets = allocate(workloads, samples * len(workloads), minimum)
        for start in range(0, len(workloads), _WORKLOADS_AT_ONCE):
            if self._is_late():
                return
            group = workloads[start : start + _WORKLOADS_AT_ONCE]
            pools = self.propose(group, targets)
            self.measure(pools)
            for generation in range(GENERATIONS):
                if not self._is_late() and self._proposer.evolve(pools, group, targets, generation):
                    self.measure(pools)

    def propose(
        self, workloads: Sequence[Workload], targets: Mapping[WorkloadId, int] | None = None
    ) -> Pools:
        """Fill the pool of each workload with known and random candidates (see `Proposer.begin`).

        `targets` says how many each workload gets; where None, the settings' samples.
        """
        samples = self._settings.samples
        return self._proposer.begin(
            workloads, targets or {workload.workload_id: samples for workload in workloads}
        )

    def measure(
        self,
        pools: Mapping[Family, Mapping[WorkloadId, Sequence[Candidate]]],
        model_version: str = "",
    ) -> None:
        """Measure every candidate of the pools once on every device of its family.

        Candidates that are lost (a device out of reach) are tried again once.

        The version of the model that chose them, if one did, is kept in their records.
        """
        self._run("measure", self._plan(pools), model_version)
        # After the minutes, most of what is left was never tried.
        if not self._is_late() and (again := self._plan(pools)):
            self._run("again", again, model_version)

    def remeasure(self, workloads: Sequence[Workload]) -> None:
        """Measure some candidates of every device a second time, to show how far numbers repeat."""
        workload_ids = {workload.workload_id for workload in workloads}
        count, seed = self._settings.remeasure, self._settings.seed
        jobs: list[DeviceBatch] = []
        for device_id, spec in self._specs.items() if count else ():
            sample = remeasure_sample(self._history.readings(device_id, workload_ids), count=count, seed=seed)
            with self._history.of_family(spec.family) as history:
                candidates = history.candidates(workload_ids, sample)
            again = [structs.replace(candidate, origin=REMEASURE) for candidate in candidates]
            jobs += cut_batches(device_id, again, sample)
        self._run("remeasure", jobs)

    def measure_noise(self, *, only_due: bool = True) -> list[DeviceId]:
        """Make the A/A run of every device: the same candidates twice, nothing changed.

        Args:
            only_due: Leave out devices that had theirs less than a day ago.

        Returns:
            Devices that have no candidate to make it with.
        """
        now = time.time()
        # Other candidates every day; the same after an interruption.
        seed = self._settings.seed + int(now // NOISE_EVERY_SECS)
        workloads = self.stored_workloads(self._engine.store().workloads())
        jobs: list[DeviceBatch] = []
        empty: list[DeviceId] = []
        for device_id, spec in self._specs.items():
            # A run dated days ahead was made by a wrong clock.
            if only_due and abs(now - self._history.noise_at(device_id)) < NOISE_EVERY_SECS:
                continue
            planned = plan_run(
                self._engine.store(),
                spec=spec,
                environment_id=self._history.environment_id(device_id),
                workload_ids=workloads,
                count=self._settings.noise,
                seed=seed,
            )
            jobs += planned
            if not planned:
                empty.append(device_id)
        self._run("noise", jobs)
        return empty

    def lost(self) -> dict[DeviceId, int]:
        """Candidates of each device that were lost as often as they were tried in this run."""
        return dict(Counter(device_id for device_id, _ in self._given_up()))

    def spent(self) -> list[Spent]:
        """Where the time of every device went."""
        return self._ledger.spent()

    def _plan(self, pools: Mapping[Family, Mapping[WorkloadId, Sequence[Candidate]]]) -> list[DeviceBatch]:
        jobs: list[DeviceBatch] = []
        for family, pool in pools.items():
            device_ids = self._families.get(family, [])
            progress = {device_id: self._history.progress(device_id, pool) for device_id in device_ids}
            for device_id, candidate_id in self._given_up():
                if device_id in progress:
                    progress[device_id].measured.add(candidate_id)  # not in this run
            jobs += plan_jobs(
                device_ids,
                pool,
                progress,
                seed=self._settings.seed,
            )
        return [job for job in map(self._spared, jobs) if job.candidates]

    def _given_up(self) -> list[tuple[DeviceId, CandidateId]]:
        return [pair for pair, losses in self._losses.items() if losses >= MAX_LOSSES]

    def _spared(self, job: DeviceBatch) -> DeviceBatch:
        """A job without the candidates that were put under quarantine since it was planned."""
        family, quarantined = self._specs[job.device_id].family, self._proposer.quarantined
        spared = tuple(
            candidate for candidate in job.candidates if (family, candidate.candidate_id) not in quarantined
        )
        return replace(job, candidates=spared)

    def _run(self, phase: str, jobs: Sequence[DeviceBatch], model_version: str = "") -> None:
        """Keep every device busy until its jobs are done."""
        self._watcher.phase(phase, sum(len(job.candidates) for job in jobs))
        queues: dict[DeviceId, deque[DeviceBatch]] = {}
        for job in jobs:
            queues.setdefault(job.device_id, deque()).append(job)
        running: dict[Future[list[Record]], DeviceBatch] = {}
        with self._ledger.measuring(queues):
            while any(queues.values()) or running:
                if self._is_late():
                    queues.clear()
                for device_id, queue in queues.items():
                    busy = sum(job.device_id == device_id for job in running.values())
                    while queue and busy < _IN_FLIGHT:
                        job = self._spared(queue.popleft())
                        if job.candidates and device_id not in self.fallen:
                            begun = self._engine.measure(
                                device_id, job.candidates, attempt=job.attempt, model_version=model_version
                            )
                            running[begun] = job
                            busy += 1
                for future in self._engine.wait(running) if running else ():
                    job = running.pop(future)
                    try:
                        self._take(job, future.result())
                    except DeviceUnusableError as error:
                        self._leave(job.device_id, error)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._ends_at

    def _leave(self, device_id: DeviceId, error: DeviceUnusableError) -> None:
        """Go on without a device that is out of order."""
        self.fallen[device_id] = str(error)
        self._proposer.leave(device_id)
        if self.fallen.keys() >= self._specs.keys():
            raise error

    def _take(self, job: DeviceBatch, records: Sequence[Record]) -> None:
        """Note what came of a batch; it is stored."""
        device_id = job.device_id
        self._ledger.stored(device_id, records)
        for record in records:
            if record.outcome is Outcome.LOST:
                self._losses[device_id, record.candidate_id] += 1
                self.loss_reasons[device_id] = record.error
            if record.is_quarantined:
                self._proposer.quarantined.add((self._specs[device_id].family, record.candidate_id))
        answered = {record.candidate_id for record in records}
        if untold := [candidate for candidate in job.candidates if candidate.candidate_id not in answered]:
            # Measured for somebody else meanwhile, or they killed their agent again and again.
            recorded = self._history.recorded(device_id, untold)
            for candidate in untold:
                if candidate.candidate_id not in recorded:
                    self._losses[device_id, candidate.candidate_id] = MAX_LOSSES
        self._watcher.stored(device_id, records)


#: Random candidates that a workload gets at least: fewer are no ground to evolve from.
_LEAST_RANDOM = 8


def collect_records(
    engine: EngineSession,
    settings: FleetConfig,
    specs: Mapping[DeviceId, DeviceSpec],
    display: Display,
    *,
    remeasure: int = 0,
    noise: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Measure the configured workloads on some devices, and the noise where that is due.

    Args:
        engine: Draws, measures and stores; the devices are ready.
        settings: Workloads, seed.
        specs: The devices.
        display: Shows how it goes.
        remeasure: Candidates of each device to measure a second time.
        noise: Candidates of an A/A run that is made now, on every device, and is all that is done; None
            for the usual work, which ends with an A/A run on devices that had none for a day.
        minutes: After which nothing new is begun; None for no limit.

    Returns:
        `spent`: where the time of each device went (`fleet.planner.settings.Spent`); `lost`: candidates
        of each device that were lost; `fallen`: devices that fell out, and why.
    """
    samples, minimum = settings.workloads.samples, settings.workloads.minimum
    how = CollectSettings(
        samples=samples,
        minimum=max(_LEAST_RANDOM, samples // 2) if minimum is None else minimum,
        exploration=settings.workloads.exploration,
        seed=settings.training.seed,
        remeasure=remeasure,
        noise=settings.workloads.noise_samples if noise is None else noise,
        minutes=minutes,
    )
    collection = Collection(engine, specs, how, display)
    with display.live():
        if noise is not None:
            _measure_noise_now(collection, specs)
        else:
            _collect(collection, settings, how, display)
        display.finish()
    return {
        "spent": [asdict(account) for account in collection.spent()],
        "lost": collection.lost(),
        "fallen": dict(collection.fallen),
    }


def _collect(collection: Collection, settings: FleetConfig, how: CollectSettings, display: Display) -> None:
    listed = collection.network_workloads(settings.workloads.networks)
    workloads = choose_configured(listed, settings.workloads)
    collection.run(workloads)
    collection.remeasure(workloads)
    if how.noise:
        collection.measure_noise()
    for device_id, count in collection.lost().items():
        reason = collection.loss_reasons.get(device_id) or "its processes ended"
        display.say(
            f"{device_id}: {count} candidates have no result ({reason}); the next run tries them again."
        )
    for device_id, reason in collection.fallen.items():
        display.say(f"{device_id} fell out: {reason}")


def _measure_noise_now(collection: Collection, specs: Mapping[DeviceId, DeviceSpec]) -> None:
    empty = collection.measure_noise(only_due=False)
    if empty:
        names = ", ".join(empty)
        done = "; the others have theirs" if len(empty) < len(specs) else ""
        raise FleetError(
            f"no A/A run on {names}: the store has no ok candidate of it, as it is now, to measure twice; "
            f"run `fleet collect` first{done}"
        )
