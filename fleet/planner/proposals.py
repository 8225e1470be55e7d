"""New candidates of workloads: those that other devices know, random ones, and ones near the best measured.

`collect.py` asks for them in rounds; how many of which kind is for `selection.py`. It has agents draw, reads
the store, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from agents.records import Candidate, CandidateId, DeviceId, Family, Workload, WorkloadId
from fleet.drivers.session import DeviceUnusableError, EngineSession
from fleet.planner.device_history import DeviceHistory
from fleet.planner.imported_candidates import claims, imported_traces
from fleet.planner.selection import KnownCandidates, choose_parents, random_share
from fleet.planner.settings import CollectSettings, Pools, Watcher
from fleet.planner.time_spent import Ledger

#: Evolved candidates come in this many steps, so that the later ones have the earlier ones as parents.
GENERATIONS = 2
#: Imported candidates of a workload that are looked at, over those that it has room for: many fit nothing.
_FOREIGN_SHARE = 4


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
        self._known_candidates: dict[tuple[Family, WorkloadId], KnownCandidates] = {}
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
        pools: Pools = {}
        for family in self._families:
            self._survey(
                family, {workload.workload_id: targets[workload.workload_id] for workload in workloads}
            )
            pools[family] = {}
            derived = self._derive(family, workloads, targets)
            requests: list[tuple[Workload, int]] = []
            for workload in workloads:
                known_candidates = self._known_candidates[family, workload.workload_id]
                pool = {**known_candidates.candidates, **derived.get(workload.workload_id, {})}
                size, target = len(pool), targets[workload.workload_id]
                pools[family][workload.workload_id] = list(pool.values())
                least = target if self._settings.minimum is None else self._settings.minimum
                still_random = random_share(target, least, self._settings.exploration)
                still_random -= size - len(known_candidates.evolved)
                requests.append((workload, min(target - size, still_random)))
            self._fill(family, pools[family], requests, {})
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
        for family in self._families:
            pool = pools[family]
            missing = {
                workload.workload_id: targets[workload.workload_id] - len(pool[workload.workload_id])
                for workload in workloads
            }
            short = [workload for workload in workloads if missing[workload.workload_id] > 0]
            if not short:
                continue
            self._watcher.phase("evolve", len(short))
            before = sum(map(len, pool.values()))
            parents = self._parents(family, [workload.workload_id for workload in short])
            steps = GENERATIONS - generation
            requests = [
                (workload, -(-missing[workload.workload_id] // steps))
                for workload in short
                if parents[workload.workload_id]
            ]
            self._fill(family, pool, requests, parents)
            if steps == 1:
                rest = [
                    (workload, targets[workload.workload_id] - len(pool[workload.workload_id]))
                    for workload in short
                ]
                self._fill(family, pool, [(workload, count) for workload, count in rest if count > 0], {})
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
        self._known_candidates = {
            key: value for key, value in self._known_candidates.items() if key[0] is not family
        }
        for workload_id, known_candidates in surveys.items():
            self._known_candidates[family, workload_id] = known_candidates
            self.quarantined |= {(family, candidate_id) for candidate_id in known_candidates.quarantined}

    def _derive(
        self, family: Family, workloads: Sequence[Workload], targets: Mapping[WorkloadId, int]
    ) -> dict[WorkloadId, dict[CandidateId, Candidate]]:
        """Candidates of our own that imported ones lead to, as many as there is room for."""
        if not self._history.has_live(family):
            return {}
        known_by_id = {
            workload.workload_id: self._known_candidates[family, workload.workload_id]
            for workload in workloads
        }
        room = {
            workload_id: targets[workload_id] - len(known_by_id[workload_id].candidates)
            for workload_id in known_by_id
        }
        foreign_counts = {
            workload_id: _FOREIGN_SHARE * targets[workload_id]
            for workload_id, count in room.items()
            if count > 0
        }
        derived: dict[WorkloadId, dict[CandidateId, Candidate]] = {}
        chosen = {
            workload_id: ids[: foreign_counts[workload_id]]
            for workload_id, ids in claims(self._engine.store(), family, foreign_counts).items()
        }
        traces_of = imported_traces(
            self._engine.store(), family, [candidate_id for ids in chosen.values() for candidate_id in ids]
        )
        device_ids = self._families[family]
        with self._ledger.proposing(list(device_ids)):
            for place, workload in enumerate(
                workload for workload in workloads if workload.workload_id in chosen
            ):
                if not device_ids:
                    break
                device_id = device_ids[place % len(device_ids)]
                traces = [traces_of[candidate_id] for candidate_id in chosen[workload.workload_id]]
                try:
                    derivation = self._engine.derive(device_id, workload, traces).result()
                except DeviceUnusableError as error:
                    self._leave(device_id, error)  # random candidates take their place
                    continue
                if derivation.refused:
                    self._watcher.refused(workload, derivation.refused)
                ids = known_by_id[workload.workload_id].ids
                fresh = [
                    candidate for candidate in derivation.candidates if candidate.candidate_id not in ids
                ]
                fresh = fresh[: room[workload.workload_id]]
                derived[workload.workload_id] = {candidate.candidate_id: candidate for candidate in fresh}
        return derived

    def _fill(
        self,
        family: Family,
        pool: dict[WorkloadId, list[Candidate]],
        requests: Sequence[tuple[Workload, int]],
        parents: Mapping[WorkloadId, list[str]],
    ) -> None:
        """Ask for new candidates of workloads: near `parents` where there are some, else random ones.

        The space belongs to the family, so its devices share the work, whoever measures in the end.
        """
        device_ids = self._families[family]
        with self._ledger.proposing(list(device_ids)):
            unanswered = [(workload, count) for workload, count in requests if count > 0]
            while unanswered and device_ids:
                answers = []
                for place, (workload, count) in enumerate(unanswered):
                    device_id, candidates = device_ids[place % len(device_ids)], pool[workload.workload_id]
                    exclude = sorted(
                        self._known_candidates[family, workload.workload_id].ids
                        | {candidate.candidate_id for candidate in candidates}
                    )
                    near = parents.get(workload.workload_id, ())
                    drawn = self._drawn(device_id, workload, near, count, exclude)
                    answers.append((workload, count, device_id, drawn))
                unanswered = []
                for workload, count, device_id, drawn in answers:
                    try:
                        pool[workload.workload_id] += drawn.result()
                    except DeviceUnusableError as error:
                        self._leave(device_id, error)
                        unanswered.append((workload, count))
                    else:
                        self._watcher.proposed(workload, len(pool[workload.workload_id]))
            for workload, count in requests:
                if count <= 0:
                    self._watcher.proposed(workload, len(pool[workload.workload_id]))

    def _drawn(
        self,
        device_id: DeviceId,
        workload: Workload,
        near: Sequence[str],
        count: int,
        exclude: Sequence[CandidateId],
    ) -> Future[list[Candidate]]:
        # Draws of a seed are the same each time, less what is excluded: right for random candidates, but
        # parents may be the same again, and their next children should not be.
        seed = self._settings.seed + (len(exclude) if near else 0)
        if near:
            return self._engine.evolve(device_id, workload, near, count, seed, exclude)
        return self._engine.propose(device_id, workload, count, seed, exclude)
