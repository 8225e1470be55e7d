"""Which candidates each device has measured: the (candidate, device) matrix, in a few bytes a record.

`fleet.daemon.feeding` asks it for gaps and counts when it plans; the coordinator tells it of every record
that the store took in. It is made from the store at the start and never kept. It holds ids and bits, no
traces, and knows no lease or agent.

Candidates of a (family, workload) have places in one array, in the order in which they became known; a device
has a row of bits over the places, one row an environment. So a record costs 20 bytes where its candidate is
new to the family, and one bit where it is not.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import NOISE, CandidateId, DeviceId, Outcome, Record, WorkloadId
from fleet.daemon.coverage_rows import COLUMNS, Rows, keep_best, places_of, set_bits, set_few
from fleet.daemon.matrix import MAX_LOSSES, Row, Space
from fleet.store.reader import StoreReader

#: Fastest candidates of a workload that are remembered on each device: others evolve from them.
BEST = 4
#: Rows that are taken in at once while the store is read.
_ROWS_AT_ONCE = 65_536

_Key = tuple[str, WorkloadId]
_Name = tuple[DeviceId, str]


class Coverage:
    """The matrix of one fleet.

    Args:
        families: Family of each device, siblings that only the store knows included.
        workload_ids: Workloads that the fleet measures; records of others are passed over.
    """

    def __init__(self, families: Mapping[DeviceId, str], workload_ids: Iterable[WorkloadId]) -> None:
        self._families = dict(families)
        self._wanted = set(workload_ids)
        self._spaces: dict[_Key, Space] = {}
        self._devices: dict[_Name, Row] = {}
        self._environments: dict[DeviceId, str] = {}
        self._exhausted: set[_Key] = set()

    def want(self, workload_ids: Iterable[WorkloadId]) -> None:
        """Take in more workloads; what the store has of them comes with the next `load`."""
        self._wanted.update(workload_ids)

    def is_wanted(self, workload_id: WorkloadId) -> bool:
        """Whether the fleet measures a workload."""
        return workload_id in self._wanted

    def load(self, reader: StoreReader) -> None:
        """Read what the store holds of the fleet's workloads; whatever was known before is forgotten."""
        self._spaces, self._devices = {}, {}
        self._exhausted.clear()
        waiting: list[pa.RecordBatch] = []
        rows = 0
        of_device: DeviceId | None = None
        for device_id, batch in reader.columns(COLUMNS, device_ids=sorted(self._families)):
            if waiting and (device_id != of_device or rows >= _ROWS_AT_ONCE):
                self._take(of_device, waiting)
                waiting, rows = [], 0
            of_device = device_id
            waiting.append(batch)
            rows += batch.num_rows
        if waiting:
            self._take(of_device, waiting)

    def set_environment(self, device_id: DeviceId, environment_id: str) -> None:
        """Say which environment a device has now; losses under its last agent are forgiven."""
        self._environments[device_id] = environment_id
        row = self._of(device_id)
        row.losses.clear()
        row.given_up.clear()

    def add(self, records: Iterable[Record]) -> None:
        """Take in records that the store has kept now."""
        groups: dict[tuple[DeviceId, str, WorkloadId], list[Record]] = {}
        for record in records:
            name = record.device_id, record.environment_id, record.workload_id
            groups.setdefault(name, []).append(record)
        for (device_id, environment_id, workload_id), some in groups.items():
            if device_id in self._families and workload_id in self._wanted:
                self._add((device_id, environment_id), workload_id, some)

    def _add(self, name: _Name, workload_id: WorkloadId, records: Sequence[Record]) -> None:
        row, space = self._row(name), self._space((self._families[name[0]], workload_id))
        row.records += len(records)
        done: list[Record] = []
        for record in records:
            if record.is_quarantined:
                space.blocked.add(record.candidate_id)
            if record.origin == NOISE and record.attempt % 2 == 0:
                row.noise_at = max(row.noise_at, record.measured_at)
            if record.outcome is Outcome.LOST:
                row.lose(workload_id, space, record.candidate_id, record.attempt)
            else:
                done.append(record)
        if not done:
            return
        ids = [one.candidate_id for one in done]
        row.mark(workload_id, space, space.index.place(ids), set_few)
        for one_id in ids if row.lost else ():
            row.lost.pop(one_id, None)
        best = row.best.setdefault(workload_id, [])
        for one in done:
            if one.outcome is Outcome.OK and not one.is_suspect:
                space.leaders[name[0]] = None
                keep_best(best, one.latency_secs, one.candidate_id, BEST)

    def propose(self, family: str, workload_id: WorkloadId, candidate_ids: Sequence[CandidateId]) -> None:
        """Make new candidates known: each is a gap of every device of the family now."""
        self._space((family, workload_id)).index.place(candidate_ids)

    def block(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Plan candidates of a family no more: they kill what measures them, or their traces are gone."""
        self._space((family, workload_id)).blocked.update(candidate_ids)

    def exhaust(self, family: str, workload_id: WorkloadId) -> None:
        """Note that no new candidate of a workload is found any more."""
        self._exhausted.add((family, workload_id))

    def blocked_among(
        self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that are not to be planned."""
        space = self._spaces.get((family, workload_id))
        return space.blocked.intersection(candidate_ids) if space is not None else set()

    def counts(
        self, device_id: DeviceId, workload_ids: Iterable[WorkloadId]
    ) -> Iterator[tuple[WorkloadId, int, int, bool]]:
        """Count what a device has of some workloads in its present environment.

        Yields:
            The workload, how many candidates of it are measured, how many gaps there are (too few where a
            blocked candidate is measured), and whether no new candidate is found any more.
        """
        family, row = self._families[device_id], self._of(device_id)
        for one in workload_ids:
            space, measured, gaps = self._spaces.get((family, one)), row.measured.get(one, 0), 0
            if space is not None:
                gaps = len(space.index) - len(space.blocked) - measured - row.given_up.get(one, 0)
            yield one, measured, max(0, gaps), (family, one) in self._exhausted

    def known(self, family: str, workload_id: WorkloadId) -> int:
        """How many candidates of a workload the family knows, those included that nobody has measured yet."""
        space = self._spaces.get((family, workload_id))
        return len(space.index) if space is not None else 0

    def latest(self, family: str, workload_id: WorkloadId, most: int) -> list[CandidateId]:
        """The candidates of a workload that became known last, up to so many, in that order."""
        space = self._spaces.get((family, workload_id))
        return space.index.latest(most) if space is not None else []

    def records(self, device_id: DeviceId) -> int:
        """Records of a device in its present environment."""
        return self._of(device_id).records

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
        family = self._families[device_id]
        space = self._spaces.get((family, workload_id))
        if space is None or limit <= 0:
            return []
        index = space.index
        row, blocked = self._of(device_id), space.blocked
        is_open = np.ones(len(index), dtype=np.bool_)
        is_open[places_of(row.rows.get(workload_id, b""))] = False
        found: list[CandidateId] = []
        for place in np.flatnonzero(is_open).tolist():
            one = index.id_at(place)
            if one in blocked or one in skipped or row.losses.get(one, 0) >= MAX_LOSSES:
                continue
            found.append(one)
            if len(found) == limit:
                break
        return found

    def sample(self, device_id: DeviceId, count: int, seed: int) -> list[CandidateId]:
        """Draw candidates that a device has measured in its present environment, each as likely."""
        draws, rows = random.Random(f"{seed}/sample"), self._of(device_id).rows
        sizes = [(one, places_of(bits)) for one, bits in sorted(rows.items())]
        total = sum(len(places) for _, places in sizes)
        chosen = sorted(draws.sample(range(total), min(count, total)))
        family, found, start = self._families[device_id], [], 0
        for workload_id, places in sizes:
            index = self._spaces[family, workload_id].index
            inside = [one - start for one in chosen if start <= one < start + len(places)]
            found += [index.id_at(int(places[one])) for one in inside]
            start += len(places)
        return found

    def measured_among(
        self, device_id: DeviceId, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that a device has measured in its present environment."""
        bits = self._of(device_id).rows.get(workload_id)
        if not bits:
            return set()
        return self._spaces[self._families[device_id], workload_id].among(bits, candidate_ids)

    def workload_of(
        self, family: str, workload_ids: Iterable[WorkloadId], candidate_id: CandidateId
    ) -> WorkloadId | None:
        """Which of some workloads a candidate is of; None where it is not known."""
        for workload_id in workload_ids:
            space = self._spaces.get((family, workload_id))
            if space is not None and space.index.find([candidate_id]) != [-1]:
                return workload_id
        return None

    def stored_among(
        self, family: str, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that the store has, measured by any device in any environment."""
        space = self._spaces.get((family, workload_id))
        return space.among(space.stored, candidate_ids) if space is not None else set()

    def best(self, device_id: DeviceId, workload_id: WorkloadId, most: int) -> list[list[CandidateId]]:
        """The fastest candidates of a workload on up to `most` devices of the family, its own first.

        Environments that the devices have now count, and within each list the best come first.
        """
        space = self._spaces.get((self._families[device_id], workload_id))
        found: list[list[CandidateId]] = []
        for one in (device_id, *(space.leaders if space is not None else ())):
            if len(found) == most:
                break
            if one in self._environments and (one != device_id or not found):
                best = self._of(one).best.get(workload_id)
                if best:
                    found.append([each for _, each in best])
        return found

    def _of(self, device_id: DeviceId) -> Row:
        return self._row((device_id, self._environments.get(device_id, "")))

    def _row(self, name: _Name) -> Row:
        row = self._devices.get(name)
        if row is None:
            row = self._devices[name] = Row()
        return row

    def _space(self, key: _Key) -> Space:
        space = self._spaces.get(key)
        if space is None:
            space = self._spaces[key] = Space()
        return space

    def _take(self, device_id: DeviceId | None, batches: Sequence[pa.RecordBatch]) -> None:
        """Take in rows of one device by columns: a `Record` each would take minutes for millions."""
        assert device_id is not None
        table = pa.Table.from_batches(batches)
        is_wanted = pc.is_in(table.column("workload_id"), pa.array(sorted(self._wanted), pa.string()))
        table = table.filter(is_wanted)
        if not table.num_rows:
            return
        rows = Rows(table)
        for workload_id, environment_id, chosen in rows.groups():
            row = self._row((device_id, environment_id))
            key = self._families[device_id], workload_id
            self._take_rows(key, row, rows, chosen)
            if rows.ok[chosen].any():
                self._spaces[key].leaders[device_id] = None

    def _take_rows(self, key: _Key, row: Row, found: Rows, chosen: NDArray[np.int64]) -> None:
        row.records += len(chosen)
        space = self._space(key)
        done = chosen[~found.lost[chosen]]
        if len(done):
            row.mark(key[1], space, np.unique(space.index.add(found.candidates[done])), set_bits)
            for place in done.tolist() if row.lost else ():
                row.lost.pop(found.id_at(place), None)
        for place in chosen[found.lost[chosen]].tolist():
            row.lose(key[1], space, found.id_at(place), int(found.attempts[place]))
        space.blocked.update(map(found.id_at, chosen[found.quarantined[chosen]].tolist()))
        timed = chosen[found.ok[chosen]]
        for place in timed[np.argsort(found.secs[timed], kind="stable")[:BEST]].tolist():
            best = row.best.setdefault(key[1], [])
            keep_best(best, float(found.secs[place]), found.id_at(place), BEST)
        noise = chosen[found.noise[chosen]]
        row.noise_at = max(row.noise_at, float(found.times[noise].max(initial=0.0)))


__all__ = ["BEST", "MAX_LOSSES", "Coverage"]
