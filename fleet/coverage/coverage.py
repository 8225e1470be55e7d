"""Which candidates each device has measured, and which it has not, by the state file.

`fleet.planner.job_planner` asks it for gaps and counts when it plans; the coordinator tells it of every new
record, which the file has then. It knows no lease or agent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from agents.records import CandidateId, DeviceId, Outcome, Record, WorkloadId, is_imported
from fleet.coverage.candidates import FamilyCandidates, Space
from fleet.state.rows import Tally
from fleet.state.state_file import StateFile

#: A candidate that was lost this often is left alone until the device's agent is started again.
MAX_LOSSES = 2
#: Candidates that are read at once where gaps are looked for.
_GAPS_AT_ONCE = 256

#: A device, an environment, and a workload.
_Group = tuple[DeviceId, str, WorkloadId]


@dataclass(slots=True)
class _Device:
    """One device under its present agent."""

    #: Empty while nobody knows.
    environment_id: str = ""
    #: Losses under this agent, by workload and candidate.
    losses: dict[WorkloadId, Counter[CandidateId]] = field(default_factory=lambda: defaultdict(Counter))
    #: What the file has of it in all environments, and the attempt that comes next of what it lost each time
    #: in the present one. Read when it is asked for.
    tallies: list[Tally] | None = None
    lost: dict[CandidateId, int] | None = None

    def given_up(self, workload_id: WorkloadId) -> set[CandidateId]:
        """Candidates of a workload that it has lost too often."""
        losses: Mapping[CandidateId, int] = self.losses.get(workload_id, {})
        return {candidate_id for candidate_id, count in losses.items() if count >= MAX_LOSSES}


@dataclass(slots=True)
class _Frontier:
    """How far the candidates of a name in the file were looked through for one device: each row once."""

    #: The last row that was looked at.
    number: int = 0
    #: Candidates up to it that the device has not measured.
    open: dict[CandidateId, None] = field(default_factory=dict)


class Coverage:
    """What one fleet has measured.

    Args:
        state: The state file.
        families: Name under which each device shares candidates; devices may come.
        workload_ids: What the fleet measures, not to be changed by others; other records are passed over.
        live: As `FamilyCandidates` has it.

    Attributes:
        candidates: What is known to each family.
    """

    def __init__(
        self,
        state: StateFile,
        families: Mapping[DeviceId, str],
        workload_ids: Iterable[WorkloadId],
        *,
        live: Collection[str] | None = None,
    ) -> None:
        self._state, self.candidates = state, FamilyCandidates(state, live)
        self.families = families
        self.workload_ids = set(workload_ids)
        self._devices: dict[DeviceId, _Device] = defaultdict(_Device)
        #: Devices that have measured something of a workload, in the order in which they did.
        self._leaders: dict[Space, dict[DeviceId, None]] = defaultdict(dict)
        #: By group, and by the name of the family in the file.
        self._frontiers: dict[_Group, dict[str, _Frontier]] = defaultdict(lambda: defaultdict(_Frontier))

    def want(self, workload_ids: Iterable[WorkloadId]) -> None:
        """Take in more workloads; what the store has of them comes with the next `load`."""
        self.workload_ids.update(workload_ids)

    def load(self) -> None:
        """Look at the state file anew, as after a change of workloads, or of the names of families."""
        self.candidates.load()
        self._leaders.clear()
        for device_id in self.families:
            self.refresh(device_id)

    def refresh(self, device_id: DeviceId) -> None:
        """Look anew at what the state file has of a device, as after an import."""
        if (family := self.families.get(device_id)) is None:
            return
        self._devices[device_id].tallies = self._devices[device_id].lost = None
        for group in [group for group in self._frontiers if group[0] == device_id]:
            del self._frontiers[group]
        for tally in self._tallies(device_id):
            if tally.ok:
                self._leaders[family, tally.workload_id][device_id] = None

    def set_environment(self, device_id: DeviceId, environment_id: str) -> None:
        """Say which environment a device has now; losses under its last agent are forgiven."""
        device = self._devices[device_id]
        device.environment_id, device.lost = environment_id, None
        device.losses.clear()

    def add(self, records: Iterable[Record]) -> None:
        """Take in new records, which the state file has."""
        spaces: dict[Space, list[Record]] = {}
        groups: dict[_Group, list[Record]] = {}
        for record in records:
            family = self.families.get(record.device_id)
            if family is None:
                continue
            if not is_imported(record.workload_id):
                spaces.setdefault((family, record.workload_id), []).append(record)
            if record.workload_id in self.workload_ids:
                group = record.device_id, record.environment_id, record.workload_id
                groups.setdefault(group, []).append(record)
        for space, some in spaces.items():
            self.candidates.learn(space, some)
        for group, some in groups.items():
            self._add(group, some)

    def _add(self, group: _Group, records: Sequence[Record]) -> None:
        device_id, environment_id, workload_id = group
        device = self._devices[device_id]
        device.tallies = device.lost = None
        lost = [record.candidate_id for record in records if record.outcome is Outcome.LOST]
        measured = self._state.measured_among(workload_id, device_id, environment_id, lost) if lost else set()
        for record in records:
            candidate_id = record.candidate_id
            if record.outcome is not Outcome.LOST:
                device.losses[workload_id].pop(candidate_id, None)
                for frontier in self._frontiers[group].values() if group in self._frontiers else ():
                    frontier.open.pop(candidate_id, None)
                if record.outcome is Outcome.OK and not record.is_suspect:
                    self._leaders[self.families[device_id], workload_id][device_id] = None
            elif candidate_id not in measured and environment_id == device.environment_id:
                device.losses[workload_id][candidate_id] += 1

    def counts(
        self, device_id: DeviceId, workload_ids: Iterable[WorkloadId]
    ) -> Iterator[tuple[WorkloadId, int, int, bool]]:
        """Count what a device has of some workloads in its present environment.

        Yields:
            The workload, how many candidates of it are measured, how many gaps there are (too few where a
            blocked candidate is measured), and whether no new candidate is found any more.
        """
        family, device = self.families[device_id], self._devices[device_id]
        measured = {tally.workload_id: tally.measured for tally in self._now(device_id)}
        for workload_id in workload_ids:
            space, count = (family, workload_id), measured.get(workload_id, 0)
            left_out = self.candidates.blocked(space) | device.given_up(workload_id)
            gaps = max(0, self.candidates.count(space) - len(left_out) - count)
            yield workload_id, count, gaps, self.candidates.is_exhausted(space)

    def records(self, device_id: DeviceId) -> int:
        """Records of a device in its present environment."""
        return sum(tally.records for tally in self._now(device_id))

    def other_records(self, device_id: DeviceId) -> int:
        """Records of a device in environments that it has left."""
        return sum(tally.records for tally in self._tallies(device_id)) - self.records(device_id)

    def noise_at(self, device_id: DeviceId) -> float:
        """Unix seconds of the last whole A/A run of a device in its present environment; 0 for never."""
        return max((tally.noise_at for tally in self._now(device_id)), default=0.0)

    def next_attempts(self, device_id: DeviceId) -> Mapping[CandidateId, int]:
        """Attempts of candidates whose earlier ones were lost; 0 for all others."""
        device = self._devices[device_id]
        if device.lost is None:
            device.lost = {
                candidate_id: attempt
                for _, environment_id, candidate_id, attempt in self._state.lost(device_id)
                if environment_id == device.environment_id
            }
        return device.lost

    def gaps(
        self, device_id: DeviceId, workload_id: WorkloadId, limit: int, skipped: Collection[CandidateId] = ()
    ) -> list[CandidateId]:
        """Candidates of a workload that the family knows and a device has not measured, oldest first.

        The order is the same for all devices, so that they measure the same ones. Left out are blocked
        candidates, those that the device keeps losing, and `skipped`.
        """
        family, device = self.families[device_id], self._devices[device_id]
        left_out = self.candidates.blocked((family, workload_id)) | device.given_up(workload_id)
        candidate_ids = self._open((device_id, device.environment_id, workload_id), family)
        gaps = (name for name in candidate_ids if name not in left_out and name not in skipped)
        return list(islice(gaps, limit))

    def _open(self, group: _Group, family: str) -> Iterator[CandidateId]:
        """Yield candidates that a device has not measured."""
        device_id, environment_id, workload_id = group
        for name in self.candidates.names_of(family):
            frontier, last = self._frontiers[group][name], self._state.last_number(name, workload_id)
            yield from list(frontier.open)
            while frontier.number < last:
                rows = self._state.gaps(
                    name, workload_id, device_id, environment_id, _GAPS_AT_ONCE, after=frontier.number
                )
                frontier.number = rows[-1][0] if len(rows) == _GAPS_AT_ONCE else last
                fresh = [candidate_id for _, candidate_id in rows]
                frontier.open.update(dict.fromkeys(fresh))
                yield from fresh

    def measured_among(
        self, device_id: DeviceId, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that a device has measured in its present environment."""
        environment_id = self._devices[device_id].environment_id
        return self._state.measured_among(workload_id, device_id, environment_id, candidate_ids)

    def best(self, device_id: DeviceId, workload_id: WorkloadId, most: int) -> list[list[CandidateId]]:
        """The fastest candidates of a workload on up to `most` devices of the family, its own first.

        Environments that the devices have now count, and within each list the best come first.
        """
        leaders = self._leaders.get((self.families[device_id], workload_id), {})
        lists: list[list[CandidateId]] = []
        for name in dict.fromkeys((device_id, *leaders)):
            if len(lists) == most:
                break
            fastest = self._state.fastest(workload_id, name, self._devices[name].environment_id)
            if fastest:
                lists.append([candidate_id for _, candidate_id in fastest])
        return lists

    def _now(self, device_id: DeviceId) -> Iterator[Tally]:
        """What a device has in its present environment, by workload of the fleet."""
        environment_id = self._devices[device_id].environment_id
        return (tally for tally in self._tallies(device_id) if tally.environment_id == environment_id)

    def _tallies(self, device_id: DeviceId) -> list[Tally]:
        device = self._devices[device_id]
        if device.tallies is None:
            tallies = self._state.tallies(device_id)
            device.tallies = [tally for tally in tallies if tally.workload_id in self.workload_ids]
        return device.tallies
