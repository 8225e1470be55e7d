"""Candidates that the devices of a family have measured: their ids and traces, from the state file.

A candidate that no agent of the fleet has drawn, such as an imported one, has no trace there: that is read
from the records table, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agents.records import Candidate, CandidateId, DeviceId, Family, WorkloadId
from agents.trust import IMPORTED, is_imported, is_live
from fleet.collection.selection import KnownCandidates
from fleet.collection.trust import LIVE_DIALECT
from fleet.coverage.family_candidates import REPLAY_SUFFIX
from fleet.state.questions import StateReader
from fleet.state.rows import CandidateTraits
from fleet.state.schema import STATE
from fleet.store.noise_columns import flag_column
from fleet.store.reader import StoreReader
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
        for workload_id, candidate_id, trait in self._rows():
            if candidate_id in ids_by_workload.get(workload_id, ()):
                earlier = traits.setdefault(workload_id, {}).setdefault(candidate_id, trait)
                if trait.is_blocked and not earlier.is_blocked:
                    traits[workload_id][candidate_id] = earlier._replace(is_blocked=True)
        return traits

    def _rows(self) -> Iterator[tuple[WorkloadId, CandidateId, CandidateTraits]]:
        for _, batch in self._open_store().columns(_TRAIT_COLUMNS, device_ids=self._device_ids):
            is_blocked = flag_column(batch.column("quality"), "quarantined").tolist()
            texts = (batch.column(name).to_pylist() for name in _TRAIT_COLUMNS[:-1])
            for workload_id, candidate_id, *others in zip(*texts, is_blocked, strict=True):
                yield workload_id, candidate_id, CandidateTraits(*others)

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
