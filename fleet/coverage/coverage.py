"""Which candidates each device has measured, and which it has not: the state file, and what is not in it yet.

`fleet.planner.job_planner` asks it for gaps and counts when it plans; the coordinator tells it of every new
record. Ids are looked up in the state file; only counts are in memory. What was told in the present turn is
not in the file before the turn ends, so it stands in an *overlay* until then. It knows no lease or agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agents.records import NOISE, CandidateId, DeviceId, Outcome, Record, WorkloadId
from agents.trust import is_imported
from fleet.coverage.device_rows import DeviceRow
from fleet.coverage.family_candidates import FamilyCandidates, Space
from fleet.state.rows import FASTEST
from fleet.state.state_file import StateFile
from fleet.state.turn import Turn

#: Candidates that are read at once where gaps are looked for.
_GAPS_AT_ONCE = 256

#: A device, an environment, and a workload.
_Group = tuple[DeviceId, str, WorkloadId]


@dataclass(slots=True)
class _Overlay:
    """What the state file lacks until the turn ends."""

    #: Candidates that a device has measured, each with its latency if it has one.
    measured: dict[_Group, dict[CandidateId, float | None]] = field(default_factory=lambda: defaultdict(dict))
    #: Candidates that somebody of a family has measured, or lost.
    stored: dict[Space, set[CandidateId]] = field(default_factory=lambda: defaultdict(set))


@dataclass(slots=True)
class _Frontier:
    """How far the candidates of a name in the file were looked through for one device: each row once."""

    #: The last row that was looked at, and how many rows the file had if that was its last one.
    number: int = 0
    ended_at: int = -1
    #: Candidates up to it that the device has not measured.
    open: dict[CandidateId, None] = field(default_factory=dict)


class Coverage:
    """What one fleet has measured. It is a part of turns (`fleet.engine.event_log.TurnPart`).

    Args:
        state: The state file.
        families: Name under which each device shares candidates; devices may come.
        workload_ids: What the fleet measures, not to be changed by others; other records are passed over.
        live: As `fleet.coverage.family_candidates.FamilyNames` has it.

    Attributes:
        is_loaded: Whether it has read the state file.
    """

    def __init__(
        self,
        state: StateFile,
        families: Mapping[DeviceId, str],
        workload_ids: Iterable[WorkloadId],
        *,
        live: Collection[str] | None = None,
    ) -> None:
        self._state, self._candidates = state, FamilyCandidates(state, live)
        self.families = families
        self.workload_ids = set(workload_ids)
        self.is_loaded = False
        self._rows: dict[DeviceId, DeviceRow] = defaultdict(DeviceRow)
        self._overlay = _Overlay()
        #: Devices that have measured something of a workload, in the order in which they did.
        self._leaders: dict[Space, dict[DeviceId, None]] = defaultdict(dict)
        self._exhausted: set[Space] = set()
        #: By group, and by the name of the family in the file.
        self._frontiers: dict[_Group, dict[str, _Frontier]] = defaultdict(lambda: defaultdict(_Frontier))

    def want(self, workload_ids: Iterable[WorkloadId]) -> None:
        """Take in more workloads; what the store has of them comes with the next `load`."""
        self.workload_ids.update(workload_ids)

    def load(self) -> None:
        """Count what the state file has of the fleet's workloads; all records that were told are in it."""
        self._exhausted.clear()
        self._candidates.load()
        self._leaders.clear()
        self._frontiers.clear()
        self._overlay.measured.clear()
        self._overlay.stored.clear()
        for device_id in self.families:
            self.refresh(device_id)
        self.is_loaded = True

    def refresh(self, device_id: DeviceId) -> None:
        """Count anew what the state file has of a device, as after an import."""
        family, tallies = self.families.get(device_id), self._state.tallies(device_id)
        if family is None:
            return
        self._rows[device_id].load(tallies, self._state.lost(device_id), self.workload_ids)
        for group in [group for group in self._frontiers if group[0] == device_id]:
            del self._frontiers[group]
        for tally in tallies:
            if tally.ok and tally.workload_id in self.workload_ids:
                self._leaders[family, tally.workload_id][device_id] = None

    def set_environment(self, device_id: DeviceId, environment_id: str) -> None:
        """Say which environment a device has now; losses under its last agent are forgiven."""
        self._rows[device_id].enter(environment_id)

    def add(self, records: Iterable[Record]) -> None:
        """Take in new records, which come to the disk with this turn."""
        groups: dict[_Group, list[Record]] = {}
        spaces: dict[Space, list[Record]] = {}
        for record in records:
            family = self.families.get(record.device_id)
            if family is None:
                continue
            if not is_imported(record.workload_id):
                spaces.setdefault((family, record.workload_id), []).append(record)
            if record.workload_id in self.workload_ids:
                name = record.device_id, record.environment_id, record.workload_id
                groups.setdefault(name, []).append(record)
        for space, some in spaces.items():
            self._candidates.learn(space, some)
            self._overlay.stored[space].update(record.candidate_id for record in some)
        for group, some in groups.items():
            self._count(group, some)

    def _count(self, group: _Group, records: Sequence[Record]) -> None:
        device_id, environment_id, workload_id = group
        space = self.families[device_id], workload_id
        row = self._rows[device_id]
        counts = row.of(environment_id)
        counts.records += len(records)
        # The first attempt of a candidate is new, so nobody has measured it before.
        again = [record.candidate_id for record in records if record.attempt]
        measured_among = self._state.measured_among
        before = measured_among(workload_id, device_id, environment_id, again) if again else set()
        overlay = self._overlay.measured[group]
        for record in records:
            candidate_id = record.candidate_id
            if record.outcome is Outcome.LOST:
                if candidate_id not in before and candidate_id not in overlay:
                    row.lose(environment_id, workload_id, candidate_id, record.attempt)
                continue
            if candidate_id not in before and candidate_id not in overlay:
                counts.measured[workload_id] = counts.measured.get(workload_id, 0) + 1
            row.close_gap(environment_id, workload_id, candidate_id)
            for frontier in self._frontiers[group].values() if group in self._frontiers else ():
                frontier.open.pop(candidate_id, None)
            secs = record.latency_secs if record.outcome is Outcome.OK and not record.is_suspect else None
            earlier = overlay.get(candidate_id)
            overlay[candidate_id] = min(
                (latency for latency in (secs, earlier) if latency is not None), default=None
            )
            if secs is not None:
                self._leaders[space][device_id] = None
            if record.origin == NOISE and record.attempt % 2 == 0:
                counts.noise_at = max(counts.noise_at, record.measured_at)

    def propose(self, family: str, workload_id: WorkloadId, candidate_ids: Sequence[CandidateId]) -> None:
        """Make new candidates known: each is a gap of every device of the family now."""
        self._candidates.know((family, workload_id), candidate_ids)

    def block(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Plan candidates of a family no more in this life: their traces are gone, or cannot be stored."""
        self._candidates.blocked((family, workload_id)).update(candidate_ids)

    def write(self, turn: Turn) -> None:
        """Write what nobody else writes of the turn's news."""
        self._candidates.write(turn)

    def confirm(self) -> None:
        """Take all that was told for durable: the turn is on the disk."""
        self._candidates.confirm()
        self._overlay = _Overlay()

    def exhaust(self, family: str, workload_id: WorkloadId) -> None:
        """Note that no new candidate of a workload is found any more."""
        self._exhausted.add((family, workload_id))

    def blocked_among(
        self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that are not to be planned."""
        return self._candidates.blocked((family, workload_id)).intersection(candidate_ids)

    def counts(
        self, device_id: DeviceId, workload_ids: Iterable[WorkloadId]
    ) -> Iterator[tuple[WorkloadId, int, int, bool]]:
        """Count what a device has of some workloads in its present environment.

        Yields:
            The workload, how many candidates of it are measured, how many gaps there are (too few where a
            blocked candidate is measured), and whether no new candidate is found any more.
        """
        family, row = self.families[device_id], self._rows[device_id]
        for workload_id in workload_ids:
            space = family, workload_id
            measured, blocked = row.now.measured.get(workload_id, 0), self._candidates.blocked(space)
            left_alone = row.given_up.get(workload_id, set()) - blocked
            gaps = self.candidate_count(*space) - len(blocked) - measured - len(left_alone)
            yield workload_id, measured, max(0, gaps), space in self._exhausted

    def candidate_count(self, family: str, workload_id: WorkloadId) -> int:
        """How many candidates of a workload the family knows, those included that nobody has measured yet."""
        return self._candidates.count((family, workload_id))

    def latest(self, family: str, workload_id: WorkloadId, most: int) -> list[CandidateId]:
        """The candidates of a workload that became known last, up to so many, in that order."""
        return self._candidates.latest((family, workload_id), most)

    def records(self, device_id: DeviceId) -> int:
        """Records of a device in its present environment."""
        return self._rows[device_id].now.records

    def other_records(self, device_id: DeviceId) -> int:
        """Records of a device in environments that it has left."""
        counts = self._rows[device_id].environments.values()
        return sum(count.records for count in counts) - self.records(device_id)

    def noise_at(self, device_id: DeviceId) -> float:
        """Unix seconds of the last whole A/A run of a device in its present environment; 0 for never."""
        return self._rows[device_id].now.noise_at

    def next_attempts(self, device_id: DeviceId) -> Mapping[CandidateId, int]:
        """Attempts of candidates whose earlier ones were lost; 0 for all others."""
        return self._rows[device_id].now.lost

    def gaps(
        self, device_id: DeviceId, workload_id: WorkloadId, limit: int, skipped: Collection[CandidateId] = ()
    ) -> list[CandidateId]:
        """Candidates of a workload that the family knows and a device has not measured, oldest first.

        The order is the same for all devices, so that they measure the same ones. Left out are blocked
        candidates, those that the device keeps losing, and `skipped`.
        """
        if limit <= 0:
            return []
        family, row = self.families[device_id], self._rows[device_id]
        group = device_id, row.environment_id, workload_id
        left_out = self._candidates.blocked((family, workload_id)) | row.given_up.get(workload_id, set())
        measured = self._overlay.measured.get(group, {})
        gaps: dict[CandidateId, None] = {}
        for candidate_id in self._open(group, family):
            if candidate_id in measured or candidate_id in left_out or candidate_id in skipped:
                continue
            gaps[candidate_id] = None
            if len(gaps) == limit:
                break
        return list(gaps)

    def _open(self, group: _Group, family: str) -> Iterator[CandidateId]:
        """Yield candidates that a device has not measured as the file knows, then those that it lacks."""
        device_id, environment_id, workload_id = group
        for name in self._candidates.names.of(family):
            frontier = self._frontiers[group][name]
            yield from list(frontier.open)
            while frontier.ended_at != (in_file := self._candidates.in_file((family, workload_id))):
                rows = self._state.gaps(
                    name, workload_id, device_id, environment_id, _GAPS_AT_ONCE, after=frontier.number
                )
                is_last = len(rows) < _GAPS_AT_ONCE
                frontier.number = self._state.last_number(name, workload_id) if is_last else rows[-1][0]
                # What this turn has measured is a gap in the file alone.
                measured = self._overlay.measured.get(group, {})
                fresh = [candidate_id for _, candidate_id in rows if candidate_id not in measured]
                frontier.open.update(dict.fromkeys(fresh))
                if is_last:
                    frontier.ended_at = in_file
                yield from fresh
        yield from self._candidates.new((family, workload_id))

    def measured_among(
        self, device_id: DeviceId, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that a device has measured in its present environment."""
        group = device_id, self._rows[device_id].environment_id, workload_id
        overlay = self._overlay.measured.get(group, {})
        in_file = self._state.measured_among(workload_id, *group[:2], candidate_ids)
        return in_file | {name for name in candidate_ids if name in overlay}

    def by_workload(
        self, family: str, workload_ids: Iterable[WorkloadId], candidate_ids: Sequence[CandidateId]
    ) -> dict[WorkloadId, list[CandidateId]]:
        """Sort candidates by the workload, of some, that each is of; unknown ones are left out."""
        return self._candidates.by_workload(family, workload_ids, candidate_ids)

    def stored_among(
        self, family: str, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> set[CandidateId]:
        """Those of some candidates that the store has records of: of any device in any environment."""
        overlay = self._overlay.stored.get((family, workload_id), set())
        stored = {name for name in candidate_ids if name in overlay}
        for name in self._candidates.names.of(family):
            stored |= self._state.known_among(name, workload_id, candidate_ids, is_settled=True)
        return stored

    def best(self, device_id: DeviceId, workload_id: WorkloadId, most: int) -> list[list[CandidateId]]:
        """The fastest candidates of a workload on up to `most` devices of the family, its own first.

        Environments that the devices have now count, and within each list the best come first.
        """
        leaders = self._leaders.get((self.families[device_id], workload_id), {})
        lists: list[list[CandidateId]] = []
        for name in dict.fromkeys((device_id, *leaders)):
            if len(lists) == most:
                break
            fastest = self._fastest(name, workload_id) if self._rows[name].environment_id else []
            if fastest:
                lists.append(fastest)
        return lists

    def _fastest(self, device_id: DeviceId, workload_id: WorkloadId) -> list[CandidateId]:
        group = device_id, self._rows[device_id].environment_id, workload_id
        fastest = {name: secs for secs, name in self._state.fastest(workload_id, device_id, group[1])}
        for name, secs in self._overlay.measured.get(group, {}).items():
            if secs is not None:
                fastest[name] = min(secs, fastest.get(name, secs))
        return sorted(fastest, key=lambda name: (fastest[name], name))[:FASTEST]
