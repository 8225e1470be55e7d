"""Imported candidates that claim to be of the workloads that live devices measure: they wait to be derived.

`fleet.planner.job_planner` takes some when a device has room for known candidates. They are never planned,
and their traces go to agents only to be derived from (`agents.programs.derivation`); what comes back is a
candidate of our own like any other. Made from the store at the start, and again after each import.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping

from agents.records import CandidateId, DeviceId, Family, WorkloadId
from fleet.collection.trust import claims
from fleet.store.reader import StoreReader


class ImportedCandidates:
    """Imported candidates of one fleet.

    Args:
        families: Families with live devices, by the name under which these share candidates; more may come.

    Attributes:
        refused: Candidates that nothing was derived from, by reason; counted by the planner.
    """

    def __init__(self, families: Mapping[str, Family]) -> None:
        self._families = families
        self._waiting: dict[tuple[str, WorkloadId], deque[CandidateId]] = {}
        #: All that ever waited.
        self._offered: dict[tuple[str, WorkloadId], set[CandidateId]] = {}
        self.refused: Counter[str] = Counter()

    def load(
        self,
        reader: StoreReader,
        workload_ids: Collection[WorkloadId],
        device_ids: Collection[DeviceId],
    ) -> None:
        """Find the candidates.

        Args:
            reader: The store.
            workload_ids: Workloads that the fleet measures.
            device_ids: Devices that have records which came with a log.
        """
        self._waiting.clear()
        self._offered.clear()
        self.add(self.search(workload_ids, device_ids)(reader))

    def search(
        self, workload_ids: Collection[WorkloadId], device_ids: Collection[DeviceId]
    ) -> Callable[[StoreReader], dict[tuple[str, WorkloadId], list[CandidateId]]]:
        """Make the question for the candidates in a store, for any thread to ask. Arguments as of `load`.

        It holds copies: devices come, and more workloads are wanted, while it is asked.
        """
        families, measured_ids, chosen = dict(self._families), frozenset(workload_ids), tuple(device_ids)
        return lambda reader: {
            (name, workload_id): list(candidate_ids)
            for name, family in families.items()
            for workload_id, candidate_ids in claims(reader, family, measured_ids, chosen).items()
        }

    def add(self, candidate_ids_by_key: Mapping[tuple[str, WorkloadId], Iterable[CandidateId]]) -> None:
        """Have the candidates wait that did not wait before."""
        for key, candidate_ids in candidate_ids_by_key.items():
            offered = self._offered.setdefault(key, set())
            fresh = [candidate_id for candidate_id in candidate_ids if candidate_id not in offered]
            offered.update(fresh)
            self._waiting.setdefault(key, deque()).extend(fresh)

    def count(self, name: str, workload_id: WorkloadId) -> int:
        """How many of a workload wait."""
        return len(self._waiting.get((name, workload_id), ()))

    def take(self, name: str, workload_id: WorkloadId, count: int) -> list[CandidateId]:
        """Take some out; none comes twice, whatever becomes of it."""
        waiting = self._waiting.get((name, workload_id), deque())
        return [waiting.popleft() for _ in range(min(count, len(waiting)))]
