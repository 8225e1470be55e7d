"""What devices and families have measured so far, as a collection needs to know it. It measures nothing.

Ids and traces come from the state file. A candidate that no agent of the fleet has drawn, such as an imported
one, has no trace there: that is read from the records table, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from agents.records import (
    IMPORTED,
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Family,
    Outcome,
    WorkloadId,
    is_imported,
    is_live,
)
from fleet.coverage.candidates import REPLAY_SUFFIX
from fleet.drivers.session import EngineSession
from fleet.planner.batch_plan import DeviceProgress
from fleet.planner.imported_candidates import LIVE_DIALECT, devices_of_family
from fleet.planner.selection import KnownCandidates
from fleet.state.questions import StateReader
from fleet.state.rows import CandidateTraits, add_traits
from fleet.state.schema import STATE
from fleet.store.noise import READING_COLUMNS, Reading, flag_column, readings
from fleet.store.reader import StoreReader, environment_before
from fleet.store.trace_lookup import find_candidates

_TRAIT_COLUMNS = ("workload_id", "candidate_id", "dialect", "origin", "quality")

#: Traits of candidates by workload, in an order that says which ones a limit keeps.
_Traits = dict[WorkloadId, dict[CandidateId, CandidateTraits]]


class FamilyHistory:
    """What some devices of one family have measured, at one moment.

    Args:
        state: The state file.
        open_store: Gives the records table, where that is needed.
        family: The family of the devices.
        device_ids: The devices.
        live: For live devices: only candidates of our own count, which live devices have measured.
    """

    def __init__(
        self,
        state: StateReader,
        open_store: Callable[[], StoreReader],
        family: Family,
        device_ids: Sequence[DeviceId],
        *,
        live: bool,
    ) -> None:
        self._state, self._open_store = state, open_store
        self._device_ids, self._live = device_ids, live
        # Where nobody is live, replay devices share under a name of their own, or did in an earlier life.
        self._names = (str(family),) if live else (str(family), f"{family}{REPLAY_SUFFIX}")

    def workload_ids(self) -> list[WorkloadId]:
        """Workloads that any of the devices has results of."""
        tallies = (tally for device_id in self._device_ids for tally in self._state.tallies(device_id))
        return sorted({tally.workload_id for tally in tallies})

    def survey(self, limits: Mapping[WorkloadId, int]) -> dict[WorkloadId, KnownCandidates]:
        """Gather what the devices have of some workloads.

        Candidates of the first device come first, and those of each device in the order in which they became
        known.

        Args:
            limits: The workloads, and most candidates to keep of each: their traces take some 20 KB each.
        """
        recorded, unnamed = self._recorded(limits)
        strangers: _Traits = {}
        if any(unnamed.values()):
            strangers = self._in_table(unnamed)
        histories: dict[WorkloadId, KnownCandidates] = {}
        for workload_id, limit in limits.items():
            traits = recorded[workload_id] | strangers.get(workload_id, {})
            histories[workload_id] = self._gathered(workload_id, traits, limit)
        return histories

    def candidates(
        self, workload_ids: Iterable[WorkloadId], candidate_ids: Iterable[CandidateId]
    ) -> list[Candidate]:
        """Some candidates of some workloads with their traces, in the order of the ids."""
        names = list(candidate_ids)
        candidates: dict[CandidateId, Candidate] = {}
        for workload_id in workload_ids:
            candidates |= self._state.candidates(self._names, workload_id, names)
        if missing := set(names) - candidates.keys():
            for candidate in find_candidates(self._open_store(), self._device_ids, missing):
                candidates[candidate.candidate_id] = candidate
        return [candidates[name] for name in names if name in candidates]

    def best_traces(self, workload_id: WorkloadId, device_id: DeviceId, environment_id: str) -> list[str]:
        """Traces of the few fastest candidates of a workload on a device, the best first."""
        fastest = self._state.fastest(workload_id, device_id, environment_id)
        candidates = self.candidates([workload_id], [candidate_id for _, candidate_id in fastest])
        return [candidate.trace for candidate in candidates if self._counts(candidate)]

    def _recorded(self, limits: Iterable[WorkloadId]) -> tuple[_Traits, dict[WorkloadId, set[CandidateId]]]:
        """What the state file knows of all that was measured, and the ids of which it knows nothing more."""
        recorded: _Traits = {}
        unnamed: dict[WorkloadId, set[CandidateId]] = {}
        for workload_id in limits:
            recorded[workload_id], unnamed[workload_id] = {}, set()
            if self._live and is_imported(workload_id):
                continue
            traits = self._state.traits(self._names, workload_id)
            for device_id in self._device_ids:
                fresh = self._state.recorded(workload_id, device_id)
                fresh -= recorded[workload_id].keys() | unnamed[workload_id]
                recorded[workload_id] |= {name: trait for name, trait in traits.items() if name in fresh}
                unnamed[workload_id] |= fresh - traits.keys()
        return recorded, unnamed

    def _in_table(self, ids_by_workload: Mapping[WorkloadId, Collection[CandidateId]]) -> _Traits:
        """The same of candidates that only the table has, in the order of their first record."""
        traits: _Traits = {}
        for _, batch in self._open_store().columns(_TRAIT_COLUMNS, device_ids=self._device_ids):
            is_blocked = flag_column(batch.column("quality"), "quarantined").tolist()
            texts = (batch.column(name).to_pylist() for name in _TRAIT_COLUMNS[:-1])
            for workload_id, candidate_id, *others in zip(*texts, is_blocked, strict=True):
                if candidate_id in ids_by_workload.get(workload_id, ()):
                    add_traits(traits.setdefault(workload_id, {}), candidate_id, CandidateTraits(*others))
        return traits

    def _gathered(
        self, workload_id: WorkloadId, traits: Mapping[CandidateId, CandidateTraits], limit: int
    ) -> KnownCandidates:
        history = KnownCandidates()
        chosen: list[CandidateId] = []
        for candidate_id, trait in traits.items():
            if not self._counts(trait):
                continue
            history.ids.add(candidate_id)
            if trait.is_blocked:
                history.quarantined.add(candidate_id)
            elif len(chosen) < limit:
                chosen.append(candidate_id)
                # A model chooses among mutants, with few exceptions.
                if trait.origin in ("evolved", "model"):
                    history.evolved.add(candidate_id)
        for candidate in self.candidates([workload_id], chosen):
            history.candidates[candidate.candidate_id] = replace(candidate, origin="paired")
        return history

    def _counts(self, trait: CandidateTraits | Candidate) -> bool:
        return not self._live or (trait.dialect == LIVE_DIALECT and trait.origin != IMPORTED)


def known_candidates(
    store: StoreReader, device_ids: Iterable[DeviceId], limit: int, *, live: bool
) -> dict[WorkloadId, list[Candidate]]:
    """Candidates that any of the devices has measured and none has put under quarantine.

    Args:
        store: Where the records are.
        device_ids: Devices of one family.
        limit: Most candidates of each workload, for the memory that their traces take.
        live: For a live device: only candidates of our own, which live devices have measured.

    Returns:
        By workload, in the order of `FamilyHistory.survey`; workloads without any are left out.
    """
    specs = {name: entry.spec for name, entry in store.devices().items()}
    chosen = [name for name in device_ids if is_live(specs[name]) or not live]
    if not chosen:
        return {}
    with StateReader(store.path / STATE) as state:
        history = FamilyHistory(state, lambda: store, specs[chosen[0]].family, chosen, live=live)
        surveys = history.survey(dict.fromkeys(history.workload_ids(), limit))
    return {name: list(traits.candidates.values()) for name, traits in surveys.items() if traits.candidates}


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
        environment_id, live = self.environment_id(device_id), is_live(self._specs[device_id])
        with self._engine.state() as state:
            runs = [
                tally.noise_at
                for tally in state.tallies(device_id)
                # Of a live device, only those of our own workloads.
                if tally.environment_id == environment_id and not (live and is_imported(tally.workload_id))
            ]
        return max(runs, default=0.0)

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
