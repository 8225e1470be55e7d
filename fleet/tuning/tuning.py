"""`fleet tune`: fast programs for the workloads of a network on one device.

Each round draws candidates of one workload, random ones and mutants of the best, lets the device's champion
rank them from their traces, and measures the first few. All of it goes into the store like any measurement,
so a search is never lost, goes on where it was, and feeds the next training. The best of each workload ends
in a MetaSchedule database that TVM applies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Record, Workload, WorkloadId
from agents.trust import is_live
from fleet.collection.clock import Clock
from fleet.collection.collect import Collection
from fleet.collection.selection import best_traces, none_fits
from fleet.collection.settings import CollectSettings, Display, Engine
from fleet.collection.trust import devices_of_family, imported_candidates, ours
from fleet.errors import FleetError
from fleet.interchange.export_store import export
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.store.reader import StoreReader
from fleet.tuning.search import PARENTS, Search, choose, next_search, unmeasured

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

#: Mutants and random candidates that a round draws and ranks. Drawing takes a tenth of the time of measuring.
_MUTANTS, _RANDOM = 64, 32
#: Candidates that a round measures.
_ROUND = 16
#: Share of a round that is drawn at random from what the model did not put first.
_EXPLORATION = 0.125


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a search is told besides the settings."""

    #: Candidates to measure.
    trials: int
    #: Names of workloads, as `fleet tune` prints them; empty means all of the networks.
    workloads: tuple[str, ...] = ()
    #: Folder of the model versions.
    models: Path
    #: Folder that the device's database is written into; an earlier one is replaced.
    out: Path
    #: Minutes after which no round begins; None for no limit.
    minutes: float | None = None


@dataclass(slots=True)
class _Round:
    """A watcher that keeps the records of a round and lets a display show the whole search."""

    display: Display
    records: list[Record] = field(default_factory=list)

    def phase(self, name: str, total: int) -> None:
        """The search has one phase."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """Drawing is a part of the round."""

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """A search derives nothing from imported candidates."""

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Records are durable."""
        self.records += records
        self.display.stored(device_id, records)


def tune_device(
    engine: Engine, settings: FleetConfig, spec: DeviceSpec, options: TuneOptions, display: Display
) -> dict[str, Any]:
    """Search fast programs and write the database; the driver of a tuning request.

    Args:
        engine: Draws, measures and stores; the device is ready.
        settings: Store, networks, bounds of FLOPs, protocol, seed.
        spec: The device.
        options: How much to measure, and where the database goes.
        display: Shows progress.

    Returns:
        What `fleet tune --json` prints: `device`, `model` (version that ranked; None without one), `trials`,
        `failed`, `networks` (seconds of each network's tuned workloads before and after, where all of them
        ran), `workloads` (each with `before_secs`, `best_secs`, `trials`, `curve`), `seconds` by part,
        `database`.

    Raises:
        FleetError: An unknown workload, no workload within the bounds, or nothing ran.
    """
    target = spec.device_id
    watcher, clock = _Round(display), Clock()
    ends_at = time.monotonic() + 60 * options.minutes if options.minutes is not None else math.inf
    with display.live():
        how = CollectSettings(
            samples=_ROUND, protocol=settings.timing_protocol(), seed=settings.training.seed
        )
        collection = Collection(engine, {target: spec}, how, watcher)
        with clock.part("probe"):
            listed = collection.network_workloads(settings.workloads.networks)
            workloads = _chosen(listed, options.workloads, settings)
        ranker = CandidateRanker(RegistryReader(options.models))
        rounds = _Rounds(engine, target, workloads, ranker, clock)
        with clock.part("read"):
            environment_id = engine.environment_id(target)
            rounds.read(environment_id)
        display.phase("tune", options.trials)
        left = options.trials
        while left and rounds.open and time.monotonic() < ends_at:
            one, candidates, version = rounds.draw(min(_ROUND, left), settings.training.seed)
            if not candidates:
                continue
            left -= len(candidates)
            watcher.records.clear()
            with clock.part("measure"):
                pool = {spec.family: {one.workload.workload_id: candidates}}
                collection.measure(pool, [one.workload], version)
            one.learn(candidates, [r for r in watcher.records if r.workload_id == one.workload.workload_id])
        display.finish()
        # A leader of one round may be timed again in a later one, and beside another workload.
        for one, records in rounds.measured(engine.store(), environment_id):
            one.see(records)
    searches = rounds.searches
    if not any(math.isfinite(one.best_secs) for one in searches):
        failed = sum(one.failed for one in searches)
        raise FleetError(
            f"device {target}: none of {failed} candidates of {len(searches)} workloads ran; "
            f"`fleet status --store {settings.store.path}` shows their outcomes"
        )
    with clock.part("export"):
        export(engine.store(), options.out, "meta_schedule", [target], replace=True)
    return {
        "device": target,
        "model": rounds.version or None,
        "why_no_model": rounds.why_no_model,
        "trials": sum(one.tried for one in searches),
        "failed": sum(one.failed for one in searches),
        "networks": network_seconds(searches, settings.workloads.networks),
        "workloads": [_told(one) for one in searches],
        "seconds": clock.parts,
        "database": str(options.out / target),
    }


class _Rounds:
    """Draws what the search measures next."""

    def __init__(
        self,
        engine: Engine,
        device_id: DeviceId,
        workloads: Sequence[Workload],
        ranker: CandidateRanker,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._device_id = device_id
        self._ranker = ranker
        self._clock = clock
        self._exhausted: set[WorkloadId] = set()
        self._foreign: Mapping[WorkloadId, list[str]] = {}
        #: Candidates that a live device does not measure; None where the device is no live one.
        self._imported: set[CandidateId] | None = None
        #: In the order of the workloads.
        self.searches = [Search(workload) for workload in workloads]
        #: Version of the model that ranks; empty until one did.
        self.version = ""

    @property
    def open(self) -> list[Search]:
        """Searches whose space still gives new candidates."""
        return [one for one in self.searches if one.workload.workload_id not in self._exhausted]

    @property
    def why_no_model(self) -> str:
        """Why candidates were taken as drawn; empty where a model ranked them."""
        if self.version:
            return ""
        if not any(one.tried for one in self.searches):
            return "its designs are all measured: none was left to rank"
        return self._ranker.why_not(self._device_id) or f"no model serves {self._device_id} yet"

    def read(self, environment_id: str) -> None:
        """Read the store: the device in its present environment, and its source devices."""
        store = self._engine.store()
        devices = store.devices()
        live = is_live(devices[self._device_id].spec)
        if live:
            self._imported = set[CandidateId]().union(*imported_candidates(store).values())
        for one, measured in self.measured(store, environment_id):
            one.know(measured)
        workload_ids = [one.workload.workload_id for one in self.searches]
        found: dict[WorkloadId, list[str]] = {}
        for source_device in devices_of_family(devices, devices[self._device_id].spec.family, live=live):
            if source_device == self._device_id:
                continue
            best = best_traces(self._records(store, source_device), workload_ids, PARENTS // 2)
            for workload_id, traces in best.items():
                found.setdefault(workload_id, []).extend(traces)
        self._foreign = found

    def measured(self, store: StoreReader, environment_id: str) -> Iterator[tuple[Search, list[Record]]]:
        """Give what the device has measured in an environment, search by search; none without a record."""
        of: dict[WorkloadId, list[Record]] = {}
        for record in self._records(store, self._device_id):
            if record.environment_id == environment_id:
                of.setdefault(record.workload_id, []).append(record)
        for one in self.searches:
            if one.workload.workload_id in of:
                yield one, of[one.workload.workload_id]

    def _records(self, store: StoreReader, device_id: DeviceId) -> Iterable[Record]:
        records = store.records(device_id=device_id)
        return records if self._imported is None else ours(records, self._imported)

    def draw(self, count: int, seed: int) -> tuple[Search, list[Candidate], str]:
        """Choose a workload and candidates of it; none where its space gives no more.

        Returns:
            The search of the workload, the candidates, the version of the model that ranked them.
        """
        one = next_search(self.open)
        workload = one.workload
        foreign = self._foreign.get(workload.workload_id, [])
        # What is fast on a source device is seldom slow here.
        paired = [Candidate(workload_id=workload.workload_id, trace=t, origin="paired") for t in foreign]
        drawn = unmeasured(paired, one.known)
        with self._clock.part("draw"):
            parents = one.parents or foreign
            exclude = sorted(one.known | {candidate.candidate_id for candidate in drawn})
            place = seed + len(exclude)
            if parents:
                drawn += self._engine.evolve(
                    self._device_id, workload, parents, _MUTANTS, place, exclude
                ).result()
                exclude = sorted(one.known | {candidate.candidate_id for candidate in drawn})
            count_random = _RANDOM if parents else _MUTANTS
            drawn += self._engine.propose(self._device_id, workload, count_random, place, exclude).result()
        if not drawn:
            self._exhausted.add(workload.workload_id)
            return one, [], ""
        with self._clock.part("rank"):
            ranking = self._ranker.rank(workload, self._device_id, drawn)
        if ranking is None:
            # Without a model the draw's own order would put all mutants first.
            return one, choose(drawn, count, 1.0, f"{seed}/{one.tried}"), ""
        self.version = ranking.model.version
        ranked = [replace(each, origin="model") for each in ranking.first(drawn, len(drawn))]
        return one, choose(ranked, count, _EXPLORATION, f"{seed}/{one.tried}"), self.version


def network_seconds(searches: Sequence[Search], networks: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds that the tuned workloads of each network take in one run of it, before and after.

    A network of which a workload never ran is left out, and `before_secs` where one had no record.
    """
    found: dict[str, dict[str, float]] = {}
    for network in networks:
        uses = [(one, count) for one in searches for name, count in one.workload.networks if name == network]
        best = sum(one.best_secs * count for one, count in uses)
        before = sum(one.before_secs * count for one, count in uses)
        if uses and math.isfinite(best):
            found[network] = {"best_secs": best}
            if math.isfinite(before):
                found[network]["before_secs"] = before
    return found


def _chosen(listed: Sequence[Workload], names: Sequence[str], settings: FleetConfig) -> list[Workload]:
    """The workloads to search, heaviest first."""
    known = {workload.name: workload for workload in listed}
    networks = ", ".join(settings.workloads.networks)
    if names:
        missing = [name for name in names if name not in known]
        if missing:
            raise FleetError(f"no workload {missing[0]!r} in {networks}; known: {', '.join(sorted(known))}")
        return [known[name] for name in dict.fromkeys(names)]
    least, most = settings.workloads.min_flops, settings.workloads.max_flops
    chosen = [workload for workload in listed if least <= workload.flops <= most]
    if not chosen:
        raise none_fits(len(listed), settings.workloads.networks, least, most)
    return chosen


def _told(one: Search) -> dict[str, Any]:
    ran = math.isfinite(one.best_secs)
    return {
        "name": one.workload.name,
        "weight": one.workload.weight,
        "flops": one.workload.flops,
        "before_secs": one.before_secs if math.isfinite(one.before_secs) else None,
        "best_secs": one.best_secs if ran else None,
        "gflops_per_s": one.workload.flops / one.best_secs / 1e9 if ran else None,
        "trials": one.tried,
        "failed": one.failed,
        "curve": [[tried, best if math.isfinite(best) else None] for tried, best in one.curve],
    }
