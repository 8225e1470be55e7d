"""Candidates that families know: those in the state file, and those that come to it with this turn.

Devices that share candidates have a common name (`fleet.planner.candidate_requests.sharing_names`), which
depends on the devices that a fleet has now. The file outlives them: what replay devices have drawn must not
become a program that runs on a live one that comes later. So the file has names of its own.
`fleet.coverage.coverage` asks it, and tells it of news.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from agents.records import Candidate, CandidateId, Record, WorkloadId
from fleet.state.state_file import StateFile
from fleet.state.turn import Turn

#: Ends the name under which replay devices share candidates where others of their family are live.
REPLAY_SUFFIX = "-replay"
#: A family, by the name under which devices share candidates, and a workload.
Space = tuple[str, WorkloadId]


class FamilyNames:
    """Names in the file of the names under which devices share.

    Args:
        live: Families with live devices; more may come. What was drawn where a family had none is of its
            replay devices, also in a later life: live ones must not measure it. None: all are.
    """

    def __init__(self, live: Collection[str] | None) -> None:
        self._live = live

    def of(self, family: str) -> tuple[str, ...]:
        """Names in the file whose candidates those who share a name know; new ones go under the last.

        Without live devices the family's own candidates, of an earlier life, are for its replay devices too.
        """
        if self._live is None or family in self._live or family.endswith(REPLAY_SUFFIX):
            return (family,)
        return family, f"{family}{REPLAY_SUFFIX}"

    def reader(self, name: str) -> str:
        """The name under which those share who know the candidates of a name in the file."""
        family = name.removesuffix(REPLAY_SUFFIX)
        return name if self._live is None or family in self._live else family


class FamilyCandidates:
    """What each family knows of each workload.

    Args:
        state: The state file.
        live: As `FamilyNames` has it.

    Attributes:
        names: How families are called in the file.
    """

    def __init__(self, state: StateFile, live: Collection[str] | None) -> None:
        self._state, self.names = state, FamilyNames(live)
        #: How many candidates a family knows in the file; and those that are not to be planned.
        self._counts: dict[Space, int] = {}
        self._blocked: dict[Space, set[CandidateId]] = {}
        #: What the file lacks until the turn ends, in the order in which it became known: all, those that
        #: came with a record, and those that killed their worker process every time.
        self._new: dict[Space, dict[CandidateId, None]] = defaultdict(dict)
        self._recorded: dict[Space, dict[CandidateId, Candidate]] = defaultdict(dict)
        self._quarantined: dict[Space, set[CandidateId]] = defaultdict(set)

    def load(self) -> None:
        """Forget what was read of the file; what it lacks stays."""
        self._counts.clear()
        self._blocked.clear()

    def learn(self, space: Space, records: Sequence[Record]) -> None:
        """Make the candidates of records known: each is a gap of the family's other devices."""
        self.know(space, [record.candidate_id for record in records])
        # One that was proposed in this very turn is written twice, and stands once.
        new = self._new[space]
        for record in records:
            if record.candidate_id not in new:
                continue
            candidate = Candidate(
                workload_id=record.workload_id,
                dialect=record.dialect,
                origin=record.origin,
                trace=record.trace,
            )
            # Who claims another id for a trace has measured something that nobody else can.
            if candidate.candidate_id == record.candidate_id:
                self._recorded[space][candidate.candidate_id] = candidate
        quarantined = [record.candidate_id for record in records if record.is_quarantined]
        self.blocked(space).update(quarantined)
        self._quarantined[space].update(quarantined)

    def know(self, space: Space, candidate_ids: Iterable[CandidateId]) -> None:
        """Make candidates known, as far as they are not."""
        if fresh := self.unknown(space, candidate_ids):
            self._new[space].update(dict.fromkeys(fresh))

    def unknown(self, space: Space, candidate_ids: Iterable[CandidateId]) -> list[CandidateId]:
        """Those of some candidates that a family does not know, each once."""
        new = self._new.get(space, {})
        unmatched = [name for name in dict.fromkeys(candidate_ids) if name not in new]
        for name in self.names.of(space[0]) if unmatched else ():
            in_file = self._state.known_among(name, space[1], unmatched)
            unmatched = [candidate_id for candidate_id in unmatched if candidate_id not in in_file]
        return unmatched

    def by_workload(
        self, family: str, workload_ids: Iterable[WorkloadId], candidate_ids: Sequence[CandidateId]
    ) -> dict[WorkloadId, list[CandidateId]]:
        """Sort candidates by the workload, of some, that each is of; unknown ones are left out."""
        sorted_ids: dict[WorkloadId, list[CandidateId]] = {}
        for workload_id in workload_ids:
            if not candidate_ids:
                break
            unknown = set(self.unknown((family, workload_id), candidate_ids))
            if own_ids := [name for name in candidate_ids if name not in unknown]:
                sorted_ids[workload_id] = own_ids
                candidate_ids = [name for name in candidate_ids if name in unknown]
        return sorted_ids

    def new(self, space: Space) -> Collection[CandidateId]:
        """Candidates that the file lacks until the turn ends."""
        return self._new.get(space, {})

    def count(self, space: Space) -> int:
        """How many candidates a family knows, those included that nobody has measured yet."""
        return self.in_file(space) + len(self._new.get(space, ()))

    def in_file(self, space: Space) -> int:
        """How many of them the file has."""
        if space not in self._counts:
            self._counts[space] = self._state.candidate_count(self.names.of(space[0]), space[1])
        return self._counts[space]

    def blocked(self, space: Space) -> set[CandidateId]:
        """Candidates that are not to be planned; whoever adds one blocks it for this life."""
        if space not in self._blocked:
            names = self.names.of(space[0])
            self._blocked[space] = {
                candidate_id for name in names for candidate_id in self._state.blocked(name, space[1])
            }
        return self._blocked[space]

    def latest(self, space: Space, most: int) -> list[CandidateId]:
        """The candidates that became known last, up to so many, in that order."""
        in_file = [
            candidate_id
            for name in self.names.of(space[0])
            for candidate_id in self._state.latest(name, space[1], most)
        ]
        return [*in_file, *self._new.get(space, ())][-most:]

    def write(self, turn: Turn) -> None:
        """Write candidates that came with records, and those under quarantine, into a turn."""
        for (family, workload_id), candidates in self._recorded.items():
            name = self.names.of(family)[-1]
            turn.add_candidates(name, workload_id, list(candidates.values()), are_measured=True)
        for (family, workload_id), candidate_ids in self._quarantined.items():
            for name in self.names.of(family):
                turn.block(name, workload_id, candidate_ids)

    def confirm(self) -> None:
        """Take all that became known for durable: the turn is on the disk."""
        for space, candidate_ids in self._new.items():
            if space in self._counts:
                self._counts[space] += len(candidate_ids)
        self._new.clear()
        self._recorded.clear()
        self._quarantined.clear()
