"""New candidates of workloads: those that other devices know, random ones, and ones near the best measured.

`collect.py` asks for them in rounds; how many of which kind is for `selection.py`. It has agents draw, reads
the store, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from agents.programs.derivation import Derivation
from agents.records import Candidate, CandidateId, DeviceId, Family, Workload, WorkloadId
from fleet.drivers.session import DeviceUnusableError, EngineSession
from fleet.planner.device_history import DeviceHistory
from fleet.planner.imported_candidates import claims, imported_traces
from fleet.planner.selection import KnownCandidates, choose_parents, random_share
from fleet.planner.settings import CollectSettings, Ledger, Pools, Watcher

#: Evolved candidates come in this many steps, so that the later ones have the earlier ones as parents.
GENERATIONS = 2
#: Imported candidates of a workload that are looked at, over those that it has room for: many fit nothing.
_FOREIGN_SHARE = 4

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Draw:
    """What an agent is asked for."""

    workload: Workload
    count: int
    #: To evolve from, or to derive from; empty for random candidates.
    traces: Sequence[str] = ()


class Proposer:
    """Fills the pools of workloads.

    Args:
        engine: Has agents draw, and gives the store to read.
        families: Devices that are asked, by family: live ones where there are any.
        history: What the devices have measured.
        settings: How many candidates of which kind.
        watcher: Told of every workload.
        ledger: Told of the time.
        leave: Told of a device that is out of order while it is asked; calls `leave` here, or raises.

    Attributes:
        quarantined: Candidates that a device of the family has under quarantine, as far as it was asked for.
    """

    def __init__(
        self,
        engine: EngineSession,
        families: Mapping[Family, Sequence[DeviceId]],
        history: DeviceHistory,
        settings: CollectSettings,
        watcher: Watcher,
        ledger: Ledger,
        leave: Callable[[DeviceId, DeviceUnusableError], None],
    ) -> None:
        self._engine = engine
        self._families = {family: list(device_ids) for family, device_ids in families.items()}
        self._leave = leave
        self._history = history
        self._settings = settings
        self._watcher = watcher
        self._ledger = ledger
        self._known_candidates: dict[Family, dict[WorkloadId, KnownCandidates]] = {}
        self.quarantined: set[tuple[Family, CandidateId]] = set()

    def leave(self, device_id: DeviceId) -> None:
        """Ask a device nothing more."""
        for device_ids in self._families.values():
            if device_id in device_ids:
                device_ids.remove(device_id)

    def begin(self, workloads: Sequence[Workload], targets: Mapping[WorkloadId, int]) -> Pools:
        """Known candidates first, so that labels line up across devices, then the random share.

        To the known ones belong those that a live device derives from imported ones. `targets` says how many
        candidates each workload gets.
        """
        self._watcher.phase("propose", len(workloads) * len(self._families))
        by_id = {workload.workload_id: workload for workload in workloads}
        pools: Pools = {}
        for family in self._families:
            self._survey(family, {workload_id: targets[workload_id] for workload_id in by_id})
            surveys = self._known_candidates[family]
            pool = pools[family] = {name: list(surveys[name].candidates.values()) for name in by_id}
            self._derive(family, pool, workloads, targets)
            draws: list[_Draw] = []
            for workload_id, workload in by_id.items():
                size, target = len(pool[workload_id]), targets[workload_id]
                least = target if self._settings.minimum is None else self._settings.minimum
                still_random = random_share(target, least, self._settings.exploration)
                still_random -= size - len(surveys[workload_id].evolved)
                draws.append(_Draw(workload, min(target - size, still_random)))
            self._fill(family, pool, draws)
        return pools

    def evolve(
        self,
        pools: Pools,
        workloads: Sequence[Workload],
        targets: Mapping[WorkloadId, int],
        generation: int,
    ) -> int:
        """Add candidates near the best measured ones: a part of what is missing.

        In the last generation random ones stand in for those that evolution does not find. The pools are
        filled up in place.

        Returns:
            How many were added.
        """
        added = 0
        by_id = {workload.workload_id: workload for workload in workloads}
        for family in self._families:
            pool = pools[family]
            missing = {workload_id: targets[workload_id] - len(pool[workload_id]) for workload_id in by_id}
            short = [workload_id for workload_id, count in missing.items() if count > 0]
            if not short:
                continue
            self._watcher.phase("evolve", len(short))
            before = sum(map(len, pool.values()))
            parents = self._parents(family, short)
            steps = GENERATIONS - generation
            draws = [
                _Draw(by_id[workload_id], -(-missing[workload_id] // steps), parents[workload_id])
                for workload_id in short
                if parents[workload_id]
            ]
            self._fill(family, pool, draws)
            if steps == 1:
                rest = [
                    _Draw(by_id[workload_id], targets[workload_id] - len(pool[workload_id]))
                    for workload_id in short
                ]
                self._fill(family, pool, [draw for draw in rest if draw.count > 0])
            added += sum(map(len, pool.values())) - before
        return added

    def _parents(self, family: Family, workload_ids: Sequence[WorkloadId]) -> dict[WorkloadId, list[str]]:
        """Traces to evolve from: the best of every device in turn."""
        places = [(name, self._history.environment_id(name)) for name in self._families[family]]
        with self._history.of_family(family) as history:
            return {
                workload_id: choose_parents(history.best_traces(workload_id, *place) for place in places)
                for workload_id in workload_ids
            }

    def _survey(self, family: Family, limits: Mapping[WorkloadId, int]) -> None:
        """Look up what the family's devices know of some workloads; forget the workloads before."""
        with self._history.of_family(family) as history:
            surveys = history.survey(limits)
        self._known_candidates[family] = surveys
        for known_candidates in surveys.values():
            self.quarantined |= {(family, candidate_id) for candidate_id in known_candidates.quarantined}

    def _derive(
        self,
        family: Family,
        pool: dict[WorkloadId, list[Candidate]],
        workloads: Sequence[Workload],
        targets: Mapping[WorkloadId, int],
    ) -> None:
        """Add candidates of our own that imported ones lead to, as many as there is room for."""
        if not self._history.has_live(family):
            return
        room = {workload_id: targets[workload_id] - len(some) for workload_id, some in pool.items()}
        looked_at = {
            workload_id: _FOREIGN_SHARE * targets[workload_id]
            for workload_id, count in room.items()
            if count > 0
        }

        def derive(device_id: DeviceId, draw: _Draw) -> Future[Derivation]:
            return self._engine.derive(device_id, draw.workload, draw.traces)

        store = self._engine.store()
        chosen = {
            workload_id: ids[: looked_at[workload_id]]
            for workload_id, ids in claims(store, family, looked_at).items()
        }
        traces = imported_traces(store, family, [name for ids in chosen.values() for name in ids])
        for workload in workloads:
            workload_id = workload.workload_id
            draw = _Draw(workload, 0, [traces[name] for name in chosen.get(workload_id, ())])
            known_ids = self._known_candidates[family][workload_id].ids
            # One after the other: the traces of many workloads would fill the memory on their way.
            for _, derivation in self._answers(family, [draw] if draw.traces else [], derive):
                if derivation.refused:
                    self._watcher.refused(workload, derivation.refused)
                fresh = {
                    candidate.candidate_id: candidate
                    for candidate in derivation.candidates
                    if candidate.candidate_id not in known_ids
                }
                pool[workload_id] += list(fresh.values())[: room[workload_id]]

    def _fill(self, family: Family, pool: dict[WorkloadId, list[Candidate]], draws: Sequence[_Draw]) -> None:
        """Add new candidates of workloads: near the traces of a draw where it has some, else random ones."""

        def ask(device_id: DeviceId, draw: _Draw) -> Future[list[Candidate]]:
            workload_id = draw.workload.workload_id
            excluded = self._known_candidates[family][workload_id].ids | {
                candidate.candidate_id for candidate in pool[workload_id]
            }
            # Draws of a seed are the same each time, less what is excluded: right for random candidates, but
            # parents may be the same again, and their next children should not be.
            seed = self._settings.seed + (len(excluded) if draw.traces else 0)
            return self._engine.propose(
                device_id, draw.workload, draw.count, seed, sorted(excluded), draw.traces
            )

        for draw, candidates in self._answers(family, [draw for draw in draws if draw.count > 0], ask):
            pool[draw.workload.workload_id] += candidates
            self._watcher.proposed(draw.workload, len(pool[draw.workload.workload_id]))
        for draw in draws:
            if draw.count <= 0:
                self._watcher.proposed(draw.workload, len(pool[draw.workload.workload_id]))

    def _answers(
        self,
        family: Family,
        draws: Sequence[_Draw],
        ask: Callable[[DeviceId, _Draw], Future[_Answer]],
    ) -> Iterator[tuple[_Draw, _Answer]]:
        """Have the devices of a family draw side by side, and yield what each draw gave.

        The space belongs to the family, so its devices share the work, whoever measures in the end. What one
        leaves open that falls out, others take up.
        """
        device_ids = self._families[family]
        with self._ledger.proposing(list(device_ids)):
            while draws and device_ids:
                places = [(device_ids[place % len(device_ids)], draw) for place, draw in enumerate(draws)]
                begun = [(device_id, draw, ask(device_id, draw)) for device_id, draw in places]
                unanswered: list[_Draw] = []
                for device_id, draw, future in begun:
                    try:
                        answer = future.result()
                    except DeviceUnusableError as error:
                        self._leave(device_id, error)
                        unanswered.append(draw)
                    else:
                        yield draw, answer
                draws = unanswered
