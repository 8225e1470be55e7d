"""What a search knows and measures next: rounds of one device.

`tuning.py` measures them. A device that makes programs gets candidates that evolve in memory
(`evolution.py`); one that answers from records gets those of its records that the head puts first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from agents.records import Candidate, CandidateId, DeviceId, Record, Workload, WorkloadId, is_live
from fleet.drivers.session import EngineSession
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.imported_candidates import devices_of_family, ours
from fleet.planner.selection import best_traces
from fleet.planner.settings import Clock
from fleet.store.noise import noise_floor
from fleet.store.reader import StoreReader
from fleet.tuning.decision_scorer import DecisionScorer
from fleet.tuning.evolution import Evolution
from fleet.tuning.search import (
    USED_UP,
    Search,
    choose,
    end_where_nothing_is_left,
    next_search,
    round_count,
    unmeasured,
)

#: Mutants and random candidates that a round of a device without programs draws and ranks.
_MUTANTS, _RANDOM = 64, 32
#: Share of such a round that is drawn at random from what the model did not put first.
_EXPLORATION = 0.125
#: Best candidates taken over from each source device.
_FOREIGN = 6
#: Noise floor of a device that nothing was measured twice on.
_FLOOR = 0.01


class Rounds:
    """Draws what the search measures next."""

    def __init__(
        self,
        engine: EngineSession,
        device_id: DeviceId,
        models: Path,
        clock: Clock,
        seed: int,
    ) -> None:
        self._engine, self._device_id, self._clock, self._seed = engine, device_id, clock, seed
        self._ranker = CandidateRanker(RegistryReader(models))
        self._judge = DecisionScorer(self._ranker, device_id)
        self._evolutions: dict[WorkloadId, Evolution] = {}
        self._environment_id = ""
        #: Traces of the best candidates of source devices.
        self._foreign: dict[WorkloadId, list[str]] = {}
        #: Whether the device runs programs; one that answers from records always gives the same latency.
        self.is_live = False
        #: In the order of the workloads.
        self.searches: list[Search] = []
        #: Version of the model that ranks; empty until one did.
        self.version = ""
        #: By what share latencies of the device differ where nothing changed.
        self.noise_floor = _FLOOR

    @property
    def open(self) -> list[Search]:
        """Searches that may get another round."""
        return [search for search in self.searches if not search.ended]

    @property
    def why_no_model(self) -> str:
        """Why candidates were taken as drawn; empty where a model ranked them."""
        if self.version:
            return ""
        if not any(search.tried for search in self.searches):
            return "its designs are all measured: none was left to rank"
        return self._ranker.why_not(self._device_id) or f"no model serves {self._device_id} yet"

    def read(self, workloads: Sequence[Workload]) -> None:
        """Read what the store knows of workloads: the device in its present environment, source devices."""
        self.searches = [Search(workload) for workload in workloads]
        self._environment_id = self._engine.environment_id(self._device_id)
        store = self._engine.store()
        devices = store.devices()
        self.is_live = is_live(devices[self._device_id].spec)
        floor = noise_floor(self._records(store, self._device_id))
        self.noise_floor = floor.median_change if floor is not None else _FLOOR
        records_by_workload: dict[WorkloadId, list[Record]] = {}
        for search, measured in self.measured():
            search.know(measured)
            records_by_workload[search.workload.workload_id] = measured
        workload_ids = [workload.workload_id for workload in workloads]
        for source_device in devices_of_family(
            devices, devices[self._device_id].spec.family, live=self.is_live
        ):
            if source_device == self._device_id:
                continue
            best = best_traces(self._records(store, source_device), workload_ids, _FOREIGN)
            for workload_id, traces in best.items():
                self._foreign.setdefault(workload_id, []).extend(traces)
        if self.is_live:
            for workload in workloads:
                evolution = self._evolutions[workload.workload_id] = self._evolution(workload)
                with self._clock.part("learn"):
                    evolution.learn(records_by_workload.get(workload.workload_id, []))

    def _evolution(self, workload: Workload) -> Evolution:
        def draw(count: int, exclude: Iterable[CandidateId]) -> list[Candidate]:
            # The same seed gives the same draws, less what is excluded.
            with self._clock.part("draw"):
                return self._engine.propose(
                    self._device_id, workload, count, self._seed, sorted(exclude)
                ).result()

        def derive(traces: Sequence[str]) -> list[Candidate]:
            with self._clock.part("draw"):
                return list(self._engine.derive(self._device_id, workload, traces).result().candidates)

        foreign = self._foreign.get(workload.workload_id, [])
        return Evolution(workload, self._judge, draw, derive, self._clock, foreign)

    def measured(self) -> Iterator[tuple[Search, list[Record]]]:
        """Give what the device has measured in its environment, search by search; none without a record."""
        of: dict[WorkloadId, list[Record]] = {}
        for record in self._records(self._engine.store(), self._device_id):
            if record.environment_id == self._environment_id:
                of.setdefault(record.workload_id, []).append(record)
        for search in self.searches:
            if search.workload.workload_id in of:
                yield search, of[search.workload.workload_id]

    def _records(self, store: StoreReader, device_id: DeviceId) -> Iterable[Record]:
        records = store.records(device_id=device_id)
        return ours(records) if self.is_live else records

    def learn(self, search: Search, chosen: Sequence[Candidate], records: Sequence[Record]) -> None:
        """Take in a round of a workload, and end those of which another is not worth its time."""
        search.learn(chosen, records)
        if evolution := self._evolutions.get(search.workload.workload_id):
            with self._clock.part("learn"):
                evolution.learn(records)
        end_where_nothing_is_left(self.searches, self.noise_floor)

    def draw(self, remaining: int, expected: int) -> tuple[Search, list[Candidate], str]:
        """Choose a workload and candidates of it; none where its space gives no more.

        Args:
            remaining: Candidates at most.
            expected: Those that the search will still measure in its minutes.

        Returns:
            The search of the workload, the candidates, the version of the model that ranked them.
        """
        search = next_search(self.open)
        count = round_count(search, self.open, remaining, expected)
        evolution = self._evolutions.get(search.workload.workload_id)
        if evolution is None:
            chosen, version = self._recorded(search, count)
        else:
            chosen = evolution.propose(search, count, self._seed)
            version = self._judge.version
        if not chosen:
            search.ended = USED_UP
        self.version = version or self.version
        return search, chosen, version

    def _recorded(self, search: Search, count: int) -> tuple[list[Candidate], str]:
        """Candidates of a device that answers from records."""
        workload = search.workload
        foreign = self._foreign.get(workload.workload_id, [])
        # What is fast on a source device is seldom slow here.
        paired = [Candidate(workload_id=workload.workload_id, trace=t, origin="paired") for t in foreign]
        drawn = unmeasured(paired, search.excluded)
        with self._clock.part("draw"):
            parents = search.parents or foreign
            exclude = sorted(search.excluded | {candidate.candidate_id for candidate in drawn})
            place = self._seed + len(exclude)
            if parents:
                drawn += self._engine.propose(
                    self._device_id, workload, _MUTANTS, place, exclude, parents
                ).result()
                exclude = sorted(search.excluded | {candidate.candidate_id for candidate in drawn})
            count_random = _RANDOM if parents else _MUTANTS
            drawn += self._engine.propose(self._device_id, workload, count_random, place, exclude).result()
        if not drawn:
            return [], ""
        with self._clock.part("rank"):
            ranking = self._ranker.rank(workload, self._device_id, drawn)
        if ranking is None:
            # Without a model the draw's own order would put all mutants first.
            return choose(drawn, count, 1.0, f"{self._seed}/{search.tried}"), ""
        ranked = [replace(candidate, origin="model") for candidate in ranking.ranked(drawn)]
        chosen = choose(ranked, count, _EXPLORATION, f"{self._seed}/{search.tried}")
        return chosen, ranking.model.version
