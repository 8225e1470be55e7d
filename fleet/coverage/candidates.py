"""Candidates that families know: their ids and traces in the state file, and a cache of traces.

A job names candidates by id; here is what an agent needs to measure them. `fleet.coverage.coverage` asks for
gaps, the planner adds what agents have drawn. Beside them stands which design spaces are used up: to draw
from one in vain takes a while.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from agents.records import Candidate, CandidateId, Record, WorkloadId, canonical_json
from fleet.core.events import Origin
from fleet.state.state_file import StateFile
from fleet.state.turn import Turn
from fleet.transport.host_versions import own_versions

#: Ends the name under which replay devices share candidates where others of their family are live.
REPLAY_SUFFIX = "-replay"
#: Name of the note about spaces that are used up.
USED_UP = "used_up_spaces"
#: Traces that are kept in memory: some 20 KB each for a live device, a hundred bytes for a recorded one.
CACHE_BYTES = 96 << 20
#: A family, by the name under which devices share candidates, and a workload.
Space = tuple[str, WorkloadId]


class FamilyCandidates:
    """What each family knows of each workload.

    Devices that share candidates have a common name (`fleet.planner.candidate_requests.sharing_names`), which
    depends on the devices that a fleet has now. The file outlives them: what replay devices have drawn must
    not become a program that runs on a live one that comes later. So the file has names of its own
    (`names_of`).

    Args:
        state: The state file. What is told is seen in it at once, and durable with its next turn.
        live: Families with live devices; more may come. What was drawn where a family had none is of its
            replay devices, also in a later life: live ones must not measure it. None: all are.
        cache_bytes: Most bytes of traces in memory.
    """

    def __init__(
        self, state: StateFile, live: Collection[str] | None = None, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._state, self._live, self._cache_bytes = state, live, cache_bytes
        self._counts: dict[Space, int] = {}
        self._blocked: dict[Space, set[CandidateId]] = {}
        self._cache: OrderedDict[tuple[str, CandidateId], Candidate] = OrderedDict()
        self._bytes = 0
        #: How many candidates were known of each space when a live device found no other.
        self._used_up = self._read_used_up()
        self._exhausted: set[Space] = set()

    def names_of(self, family: str) -> tuple[str, ...]:
        """Names in the file whose candidates those who share a name know; new ones go under the last.

        Without live devices the family's own candidates, of an earlier life, are for its replay devices too.
        """
        if self._live is None or family in self._live or family.endswith(REPLAY_SUFFIX):
            return (family,)
        return family, f"{family}{REPLAY_SUFFIX}"

    def load(self) -> None:
        """Count anew, as after a change of the names."""
        self._counts.clear()
        self._blocked.clear()
        # Where fewer are known now, some were lost with a file, and can be drawn again.
        self._exhausted = {space for space, count in self._used_up.items() if self.count(space) >= count}

    def add(self, space: Space, candidates: Iterable[Candidate]) -> None:
        """Make candidates known, as far as they are not: each is a gap of every device of the family now."""
        by_id = {candidate.candidate_id: candidate for candidate in candidates}
        recorded = self.among(space, by_id)
        self._insert(space, [candidate for name, candidate in by_id.items() if name not in recorded])
        for candidate in by_id.values():
            self._remember(space[0], candidate)

    def learn(self, space: Space, records: Sequence[Record]) -> None:
        """Make the candidates of records known: each is a gap of the family's other devices."""
        family, workload_id = space
        ids = list(dict.fromkeys(record.candidate_id for record in records))
        recorded, fresh = self.among(space, ids), dict[CandidateId, Candidate]()
        for record in records:
            if record.candidate_id not in recorded:
                candidate = Candidate(
                    workload_id=workload_id, dialect=record.dialect, origin=record.origin, trace=record.trace
                )
                # Who claims another id for a trace has measured something that nobody else can.
                if candidate.candidate_id == record.candidate_id:
                    fresh[candidate.candidate_id] = candidate
        self._insert(space, list(fresh.values()))
        killers = [record.candidate_id for record in records if record.is_quarantined]
        self.block(space, killers)
        names = self.names_of(family)

        def write(turn: Turn) -> None:
            for name in names:
                turn.settle_candidates(name, workload_id, ids)
                turn.block(name, workload_id, killers)

        self._state.change(write)
        for candidate in self.at_hand(family, ids).values():
            self._remember(family, paired(candidate))

    def block(self, space: Space, candidate_ids: Iterable[CandidateId]) -> None:
        """Plan candidates no more in this life: their traces are gone, or cannot be stored."""
        self.blocked(space).update(candidate_ids)

    def blocked(self, space: Space) -> set[CandidateId]:
        """Candidates that are not to be planned; whoever adds one blocks it for this life."""
        if space not in self._blocked:
            names = self.names_of(space[0])
            self._blocked[space] = {
                candidate_id for name in names for candidate_id in self._state.blocked(name, space[1])
            }
        return self._blocked[space]

    def exhaust(self, space: Space, known_count: int) -> None:
        """Note that no candidate of a space is found beside the known ones, whose number is given.

        What replay devices draw from may be another file at the next start, and drawing takes them no time.
        """
        self._exhausted.add(space)
        if self._live is None or space[0] in self._live:
            self._used_up[space] = known_count
            spaces = [[*place, count] for place, count in self._used_up.items()]
            body = canonical_json({"versions": own_versions(), "spaces": spaces}).encode()
            self._state.change(lambda turn: turn.put_note(USED_UP, body))

    def is_exhausted(self, space: Space) -> bool:
        """Whether no new candidate of a space is found any more."""
        return space in self._exhausted

    def count(self, space: Space) -> int:
        """How many candidates a family knows, those included that nobody has measured yet."""
        if space not in self._counts:
            self._counts[space] = self._state.candidate_count(self.names_of(space[0]), space[1])
        return self._counts[space]

    def latest(self, space: Space, most: int) -> list[CandidateId]:
        """The candidates that became known last, up to so many, in that order."""
        names = self.names_of(space[0])
        return [name for family in names for name in self._state.latest(family, space[1], most)][-most:]

    def among(
        self, space: Space, candidate_ids: Collection[CandidateId], *, is_settled: bool = False
    ) -> set[CandidateId]:
        """Those of some candidates that a family knows; `is_settled` for those that somebody has measured."""
        among: set[CandidateId] = set()
        for name in self.names_of(space[0]) if candidate_ids else ():
            among |= self._state.known_among(name, space[1], candidate_ids, is_settled=is_settled)
        return among

    def find(
        self, family: str, workload_ids: Iterable[WorkloadId], candidate_ids: Sequence[CandidateId]
    ) -> dict[CandidateId, Candidate]:
        """Those of some candidates of some workloads that a family knows, with their traces."""
        candidates = self.at_hand(family, candidate_ids)
        for workload_id in workload_ids:
            if missing := [name for name in candidate_ids if name not in candidates]:
                candidates |= self.get((family, workload_id), missing)
        return candidates

    def at_hand(self, family: str, candidate_ids: Iterable[CandidateId]) -> dict[CandidateId, Candidate]:
        """Those of some candidates that are in memory."""
        candidates: dict[CandidateId, Candidate] = {}
        for candidate_id in candidate_ids:
            key = family, candidate_id
            if (candidate := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                candidates[candidate_id] = candidate
        return candidates

    def get(self, space: Space, candidate_ids: Collection[CandidateId]) -> dict[CandidateId, Candidate]:
        """Those of some candidates of a workload that the family knows, with their traces.

        Who measures one that is measured already does so `paired`.
        """
        family, workload_id = space
        candidates = self.at_hand(family, candidate_ids)
        if missing := [name for name in candidate_ids if name not in candidates]:
            settled = self.among(space, missing, is_settled=True)
            read = self._state.candidates(self.names_of(family), workload_id, missing)
            for name, candidate in read.items():
                candidates[name] = paired(candidate) if name in settled else candidate
                self._remember(family, candidates[name])
        return {name: candidates[name] for name in candidate_ids if name in candidates}

    def _insert(self, space: Space, fresh: Sequence[Candidate]) -> None:
        """Write candidates that the family does not know."""
        family, workload_id = space
        if fresh:
            self._counts[space] = self.count(space) + len(fresh)
            name = self.names_of(family)[-1]
            self._state.change(lambda turn: turn.add_candidates(name, workload_id, fresh))

    def _remember(self, family: str, candidate: Candidate) -> None:
        key = family, candidate.candidate_id
        cached = self._cache.get(key)
        if cached is not None and (candidate.origin != Origin.PAIRED or cached.origin == Origin.PAIRED):
            return
        self._cache[key] = candidate
        self._bytes += len(candidate.trace) if cached is None else 0
        while self._bytes > self._cache_bytes and len(self._cache) > 1:
            _, gone = self._cache.popitem(last=False)
            self._bytes -= len(gone.trace)

    def _read_used_up(self) -> dict[Space, int]:
        """Spaces that were used up, as far as the present versions have drawn from them."""
        body = self._state.note(USED_UP)
        value = {} if body is None else json.loads(body)
        if value.get("versions") != own_versions():
            return {}
        return {(family, WorkloadId(workload)): count for family, workload, count in value["spaces"]}


def paired(candidate: Candidate) -> Candidate:
    """As another device measures a candidate that one has measured."""
    is_paired = candidate.origin == Origin.PAIRED
    return candidate if is_paired else replace(candidate, origin=Origin.PAIRED.value)
