"""Candidates with their traces: those that wait to be measured for the first time, and a cache of others.

A job names candidates by id; here is what an agent needs to measure them. Candidates are rows of the state
file, so that a restart finds them: they are written in the turn whose events first name them. What the table
alone has, `fleet.store.trace_lookup` reads back, and a few of these are kept in memory.

Beside them stands which design spaces of live devices are used up: to draw from one in vain takes a while.
It holds for the versions that have drawn alone.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from agents.records import Candidate, CandidateId, WorkloadId, canonical_json
from fleet.core.events import Origin
from fleet.coverage.family_candidates import REPLAY_SUFFIX, FamilyNames
from fleet.state.state_file import StateFile
from fleet.state.turn import Turn
from fleet.transport.host_versions import own_versions

#: Name of the note about spaces that are used up.
USED_UP = "used_up_spaces"
#: Traces that are kept in memory: some 20 KB each for a live device, a hundred bytes for a recorded one.
CACHE_BYTES = 96 << 20

_Key = tuple[str, WorkloadId]
_Cached = tuple[str, CandidateId]


class CandidatePools:
    """Candidates by family, workload and id.

    Args:
        file: Keeps them.
        cache_bytes: Most bytes of traces in memory.
        live: As `FamilyNames` has it.
    """

    def __init__(
        self, file: StateFile, *, cache_bytes: int = CACHE_BYTES, live: Collection[str] | None = None
    ) -> None:
        self._file, self._live, self._names = file, live, FamilyNames(live)
        self._cache_bytes = cache_bytes
        #: With the number of the row, or None of one that is not on the disk yet.
        self._waiting: dict[_Key, dict[CandidateId, int | None]] = {}
        self._cache: OrderedDict[_Cached, Candidate] = OrderedDict()
        self._bytes = 0
        #: Not on the disk yet, and the numbers that the open turn has given.
        self._new: dict[_Key, dict[CandidateId, Candidate]] = {}
        self._written: list[tuple[_Key, CandidateId, int]] = []
        #: Rows of what was measured.
        self._measured: list[int] = []
        #: Spaces that are used up, and how many candidates of each were known then.
        self._used_up, self._is_used_up_new = self._read_used_up(), False
        for name, workload_id, candidate_id, number in file.waiting_candidates():
            self._waiting.setdefault((self._names.reader(name), workload_id), {})[candidate_id] = number

    def waiting(self) -> dict[_Key, list[CandidateId]]:
        """Candidates that nobody has measured, as far as it was told, by family and workload."""
        return {key: list(ids) for key, ids in self._waiting.items() if ids}

    def add(self, family: str, workload_id: WorkloadId, candidates: Iterable[Candidate]) -> None:
        """Keep new candidates of a workload; they are on the disk with the next turn."""
        key = family, workload_id
        waiting = self._waiting.get(key, {})
        fresh = {
            candidate.candidate_id: candidate
            for candidate in candidates
            if candidate.candidate_id not in waiting
        }
        if not fresh:
            return
        self._waiting.setdefault(key, {}).update(dict.fromkeys(fresh))
        self._new.setdefault(key, {}).update(fresh)
        for candidate in fresh.values():
            self._remember(family, candidate)

    def write(self, turn: Turn) -> None:
        """Write what the disk lacks into a turn."""
        self._written.clear()
        for key, candidates in self._new.items():
            numbers = turn.add_candidates(self._names.of(key[0])[-1], key[1], list(candidates.values()))
            self._written += [
                (key, candidate_id, number) for candidate_id, number in zip(candidates, numbers, strict=True)
            ]
        turn.settle_candidates(self._measured)
        if self._is_used_up_new:
            spaces = [[*key, count] for key, count in self._used_up.items()]
            turn.put_note(USED_UP, canonical_json({"versions": own_versions(), "spaces": spaces}).encode())

    def confirm(self) -> None:
        """Take what was written for durable: the turn is on the disk."""
        for key, candidate_id, number in self._written:
            self._waiting[key][candidate_id] = number
        self._written.clear()
        self._new.clear()
        self._measured.clear()
        self._is_used_up_new = False

    def use_up(self, family: str, workload_id: WorkloadId, known_count: int) -> None:
        """Note that live devices of a family find no candidate beside the known ones, whose number is given.

        What replay devices draw from may be another file at the next start, and drawing takes them no time.
        """
        if self._live is None or family in self._live:
            self._used_up[family, workload_id] = known_count
            self._is_used_up_new = True

    def used_up(self) -> dict[_Key, int]:
        """How many candidates of each space were known when it was used up."""
        return dict(self._used_up)

    def remember(self, family: str, candidates: Iterable[Candidate]) -> None:
        """Keep candidates that the store has in memory for a while; who measures them next is `paired`."""
        for candidate in candidates:
            self._remember(family, _paired(candidate))

    def at_hand(self, family: str, candidate_ids: Iterable[CandidateId]) -> dict[CandidateId, Candidate]:
        """Those of some candidates that are in memory."""
        candidates: dict[CandidateId, Candidate] = {}
        for candidate_id in candidate_ids:
            key = family, candidate_id
            if (candidate := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
                candidates[candidate_id] = candidate
        return candidates

    def get(
        self, family: str, workload_id: WorkloadId, candidate_ids: Collection[CandidateId]
    ) -> dict[CandidateId, Candidate]:
        """Those of some candidates of a workload that the family knows, from memory or the file.

        Who measures one that is measured already does so `paired`.
        """
        candidates = self.at_hand(family, candidate_ids)
        key = family, workload_id
        waiting, new = self._waiting.get(key, {}), self._new.get(key, {})
        candidates |= {name: new[name] for name in candidate_ids if name in new and name not in candidates}
        missing = [name for name in candidate_ids if name not in candidates]
        read = self._file.candidates(self._names.of(family), workload_id, missing) if missing else {}
        for name, candidate in read.items():
            candidates[name] = candidate if name in waiting else _paired(candidate)
            self._remember(family, candidates[name])
        return {name: candidates[name] for name in candidate_ids if name in candidates}

    def measured(self, family: str, workload_id: WorkloadId, candidate_ids: Iterable[CandidateId]) -> None:
        """Wait no more for candidates that the store has now."""
        held = self._waiting.get((family, workload_id), {})
        gone = [candidate_id for candidate_id in candidate_ids if candidate_id in held]
        if not gone:
            return
        # Source devices measure them next: after a restart they are in the file only.
        self.remember(family, self.get(family, workload_id, gone).values())
        for candidate_id in gone:
            if (number := held.pop(candidate_id)) is not None:
                self._measured.append(number)
            self._new.get((family, workload_id), {}).pop(candidate_id, None)
        if not held:
            del self._waiting[family, workload_id]
            self._new.pop((family, workload_id), None)

    def part(self, family: str) -> None:
        """Let its replay devices keep what waits for a family: its first live device comes."""
        for key in [waiting_key for waiting_key in self._waiting if waiting_key[0] == family]:
            replayed = f"{family}{REPLAY_SUFFIX}", key[1]
            self._waiting[replayed] = self._waiting.pop(key)
            if key in self._new:
                self._new[replayed] = self._new.pop(key)

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

    def _read_used_up(self) -> dict[_Key, int]:
        """Spaces that were used up, as far as the present versions have drawn from them."""
        body = self._file.note(USED_UP)
        value = {} if body is None else json.loads(body)
        if value.get("versions") != own_versions():
            return {}
        return {(family, WorkloadId(workload)): count for family, workload, count in value["spaces"]}


def _paired(candidate: Candidate) -> Candidate:
    """As another device measures a candidate that one has measured."""
    is_paired = candidate.origin == Origin.PAIRED
    return candidate if is_paired else replace(candidate, origin=Origin.PAIRED.value)
