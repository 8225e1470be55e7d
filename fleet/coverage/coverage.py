"""Which candidates each device has measured: the (candidate, device) matrix, in a few bytes a record.

`fleet.planner.job_planner` asks it for gaps and counts when it plans; the coordinator tells it of every
record that the store took in. It is made from the store at the start and never kept. It holds ids and bits,
no traces, and knows no lease or agent.

Candidates of a (family, workload) have places in one array, in the order in which they became known; a device
has a row of bits over the places, one row an environment. So a record costs 20 bytes where its candidate is
new to the family, and one bit where it is not.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa

from agents.records import NOISE, CandidateId, DeviceId, Outcome, Record, WorkloadId
from fleet.coverage.coverage_rows import COLUMNS, take_rows
from fleet.coverage.matrix import MAX_LOSSES, Matrix, PlaceBits, Row, Space
from fleet.coverage.table_summary import TableSummary
from fleet.store.reader import StoreReader


class Coverage:
    """The matrix of one fleet.

    Args:
        families: Family of each device, those that only the store knows included; devices may come.
        workload_ids: Workloads that the fleet measures; records of others are passed over.

    Attributes:
        families: As it was given.
        wanted: Workloads that the fleet measures; not to be changed by others.
        matrix: What is known of them; not to be changed by others.
        is_loaded: Whether it knows the store.
    """

    def __init__(self, families: Mapping[DeviceId, str], workload_ids: Iterable[WorkloadId]) -> None:
        self.families = families
        self.wanted = set(workload_ids)
        self.matrix = Matrix()
        self._environments: dict[DeviceId, str] = {}
        self._exhausted: set[tuple[str, WorkloadId]] = set()
        self.is_loaded = False

    def want(self, workload_ids: Iterable[WorkloadId]) -> None:
        """Take in more workloads; what the store has of them comes with the next `load`."""
        self.wanted.update(workload_ids)

    def load(
        self,
        reader: StoreReader,
        summary: TableSummary | None = None,
        waiting: Mapping[tuple[str, WorkloadId], Collection[CandidateId]] | None = None,
    ) -> None:
        """Read what the store holds of the fleet's workloads; whatever was known before is forgotten.

        Args:
            reader: The store.
            summary: What need not be read of it again; without one everything is.
            waiting: Candidates that nobody has measured, by family and workload.
        """
        self._exhausted.clear()
        self.matrix, fresh = summary.matrix(self.families, self.wanted) if summary else (Matrix(), None)
        if fresh is not None:
            take_rows(self.matrix, self.families, self.wanted, fresh)
        # Whose traces somebody has deleted nobody can measure.
        if fresh is None or self._has_strangers(waiting or {}):
            self.matrix = Matrix()
            every = reader.columns(COLUMNS, device_ids=sorted(self.families))
            take_rows(self.matrix, self.families, self.wanted, every)
        self.is_loaded = True

    def _has_strangers(self, waiting: Mapping[tuple[str, WorkloadId], Collection[CandidateId]]) -> bool:
        """Whether a candidate is neither measured nor waits for it."""
        lost = {one for row in self.matrix.rows.values() for one in row.lost}
        return any(
            space.index.id_at(place) not in lost and space.index.id_at(place) not in waiting.get(key, ())
            for key, space in self.matrix.spaces.items()
            for place in space.stored.open_places(len(space.index))
        )

    def set_environment(self, device_id: DeviceId, environment_id: str) -> None:
        """Say which environment a device has now; losses under its last agent are forgiven."""
        self._environments[device_id] = environment_id
        row = self._of(device_id)
        row.losses.clear()
        row.given_up.clear()

    def add_rows(self, batches: Iterable[tuple[DeviceId, pa.RecordBatch]]) -> None:
        """Take in rows that the store has kept now, with the columns of `coverage_rows.COLUMNS`."""
        take_rows(self.matrix, self.families, self.wanted, batches)

    def add(self, records: Iterable[Record]) -> None:
        """Take in records that the store has kept now."""
        groups: dict[tuple[DeviceId, str, WorkloadId], list[Record]] = {}
        for record in records:
            name = record.device_id, record.environment_id, record.workload_id
            groups.setdefault(name, []).append(record)
        for (device_id, environment_id, workload_id), some in groups.items():
            if device_id in self.families and workload_id in self.wanted:
                row = self.matrix.row(device_id, environment_id)
                space = self.matrix.space(self.families[device_id], workload_id)
                self._add(row, space, workload_id, some)

    def _add(self, row: Row, space: Space, workload_id: WorkloadId, records: Sequence[Record]) -> None:
        row.records += len(records)
        done: list[Record] = []
        for record in records:
            if record.is_quarantined:
                space.quarantine([record.candidate_id])
            if record.outcome is Outcome.LOST:
                row.lose(workload_id, space, record.candidate_id, record.attempt)
                continue
            done.append(record)
            if record.origin == NOISE and record.attempt % 2 == 0:
                row.noise_at = max(row.noise_at, record.measured_at)
        if not done:
            return
        ids = [one.candidate_id for one in done]
        row.mark(workload_id, space, space.index.place(ids), PlaceBits.set_few)
        for one_id in ids if row.lost else ():
            row.close_gap(workload_id, one_id)
        for one in done:
            if one.outcome is Outcome.OK and not one.is_suspect:
                space.leaders[one.device_id] = None
                row.keep_best(workload_id, one.latency_secs, one.candidate_id)

    def propose(self, family: str, workload_id: WorkloadId, candidate_ids: Sequence[CandidateId]) -> None:
        """Make new candidates known: each is a gap of every device of the family now."""
        self.matrix.space(family, workload_id).index.place(candidate_ids)

    def block(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Plan candidates of a family no more: they kill what measures them, or their traces are gone."""
        self.matrix.space(family, workload_id).blocked.update(candidate_ids)

    def exhaust(self, family: str, workload_id: WorkloadId) -> None:
        """Note that no new candidate of a workload is found any more."""
        self._exhausted.add((family, workload_id))

    def blocked_among(
        self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that are not to be planned."""
        space = self.matrix.spaces.get((family, workload_id))
        return space.blocked.intersection(candidate_ids) if space is not None else set()

    def counts(
        self, device_id: DeviceId, workload_ids: Iterable[WorkloadId]
    ) -> Iterator[tuple[WorkloadId, int, int, bool]]:
        """Count what a device has of some workloads in its present environment.

        Yields:
            The workload, how many candidates of it are measured, how many gaps there are (too few where a
            blocked candidate is measured), and whether no new candidate is found any more.
        """
        family, row = self.families[device_id], self._of(device_id)
        for one in workload_ids:
            space, measured, gaps = self.matrix.spaces.get((family, one)), row.measured.get(one, 0), 0
            if space is not None:
                left_alone = row.given_up.get(one, set()) - space.blocked
                gaps = len(space.index) - len(space.blocked) - measured - len(left_alone)
            yield one, measured, max(0, gaps), (family, one) in self._exhausted

    def known(self, family: str, workload_id: WorkloadId) -> int:
        """How many candidates of a workload the family knows, those included that nobody has measured yet."""
        space = self.matrix.spaces.get((family, workload_id))
        return len(space.index) if space is not None else 0

    def latest(self, family: str, workload_id: WorkloadId, most: int) -> list[CandidateId]:
        """The candidates of a workload that became known last, up to so many, in that order."""
        space = self.matrix.spaces.get((family, workload_id))
        return space.index.latest(most) if space is not None else []

    def records(self, device_id: DeviceId) -> int:
        """Records of a device in its present environment."""
        return self._of(device_id).records

    def other_records(self, device_id: DeviceId) -> int:
        """Records of a device in environments that it has left."""
        every = sum(row.records for name, row in self.matrix.rows.items() if name[0] == device_id)
        return every - self.records(device_id)

    def noise_at(self, device_id: DeviceId) -> float:
        """Unix seconds of the last whole A/A run of a device in its present environment; 0 for never."""
        return self._of(device_id).noise_at

    def next_attempts(self, device_id: DeviceId) -> Mapping[CandidateId, int]:
        """Attempts of candidates whose earlier ones were lost; 0 for all others."""
        return self._of(device_id).lost

    def gaps(
        self, device_id: DeviceId, workload_id: WorkloadId, limit: int, skipped: Collection[CandidateId] = ()
    ) -> list[CandidateId]:
        """Candidates of a workload that the family knows and a device has not measured, oldest first.

        The order is the same for all devices, so that they measure the same ones. Left out are blocked
        candidates, those that the device keeps losing, and `skipped`.
        """
        family = self.families[device_id]
        space = self.matrix.spaces.get((family, workload_id))
        if space is None or limit <= 0:
            return []
        row, blocked = self._of(device_id), space.blocked
        places = row.rows.get(workload_id, PlaceBits()).open_places(len(space.index))
        every = (space.index.id_at(place) for place in places)
        left = (one for one in every if one not in blocked and one not in skipped)
        return list(islice((one for one in left if row.losses.get(one, 0) < MAX_LOSSES), limit))

    def sample(self, device_id: DeviceId, count: int, seed: int) -> list[CandidateId]:
        """Draw candidates that a device has measured in its present environment, each as likely."""
        draws, row = random.Random(f"{seed}/sample"), self._of(device_id)
        total = sum(row.measured.values())
        chosen = sorted(draws.sample(range(total), min(count, total)))
        family, found, start = self.families[device_id], [], 0
        for workload_id, bits in sorted(row.rows.items()):
            end = start + row.measured[workload_id]
            if inside := [one - start for one in chosen if start <= one < end]:
                index, places = self.matrix.spaces[family, workload_id].index, bits.places()
                drawn = [index.id_at(int(places[one])) for one in inside]
                found += drawn
            start = end
        return found

    def measured_among(
        self, device_id: DeviceId, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that a device has measured in its present environment."""
        bits = self._of(device_id).rows.get(workload_id)
        if bits is None:
            return set()
        return self.matrix.spaces[self.families[device_id], workload_id].among(bits, candidate_ids)

    def by_workload(
        self, family: str, workload_ids: Iterable[WorkloadId], candidate_ids: Sequence[CandidateId]
    ) -> dict[WorkloadId, list[CandidateId]]:
        """Sort candidates by the workload, of some, that each is of; unknown ones are left out."""
        found: dict[WorkloadId, list[CandidateId]] = {}
        for workload_id in workload_ids:
            space = self.matrix.spaces.get((family, workload_id))
            if space is None or not candidate_ids:
                continue
            places = space.index.find(candidate_ids)
            here = [one for one, at in zip(candidate_ids, places, strict=True) if at >= 0]
            if here:
                found[workload_id] = here
                candidate_ids = [one for one, at in zip(candidate_ids, places, strict=True) if at < 0]
        return found

    def holders(self, family: str, candidate_ids: Collection[CandidateId]) -> list[DeviceId]:
        """A few devices of a family that have measured some candidates, as far as any has."""
        left, found = set(candidate_ids), list[DeviceId]()
        for (name, workload_id), space in self.matrix.spaces.items():
            here = space.among(space.stored, left) if name == family else set()
            for (device_id, _), row in self.matrix.rows.items() if here else ():
                bits = row.rows.get(workload_id) if self.families.get(device_id) == family else None
                has = space.among(bits, here) if bits is not None else set()
                if has:
                    found.append(device_id)
                    here -= has
                    left -= has
                if not here:
                    break
        return found

    def stored_among(
        self, family: str, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that the store has, measured by any device in any environment."""
        space = self.matrix.spaces.get((family, workload_id))
        return space.among(space.stored, candidate_ids) if space is not None else set()

    def best(self, device_id: DeviceId, workload_id: WorkloadId, most: int) -> list[list[CandidateId]]:
        """The fastest candidates of a workload on up to `most` devices of the family, its own first.

        Environments that the devices have now count, and within each list the best come first.
        """
        key = self.families[device_id], workload_id
        space = self.matrix.spaces.get(key)
        found: list[list[CandidateId]] = []
        for one in (device_id, *(space.leaders if space is not None else ())):
            if len(found) == most:
                break
            best = self._of(one).best.get(workload_id, ()) if one in self._environments else ()
            if best and (one != device_id or not found):
                found.append([each for _, each in best])
        return found

    def _of(self, device_id: DeviceId) -> Row:
        return self.matrix.row(device_id, self._environments.get(device_id, ""))
