"""Leases whose traces are looked for in the store: for several at once, and again after a failure.

`fleet.engine.lease_dispatcher` puts leases in, `fleet.engine.effects` goes on with them. What is looked for
is a job's: its search goes on while its lease is given back and another is granted, and what is found waits
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from agents.records import CandidateId, DeviceId
from fleet.core.events import GrantLease, Job, JobId
from fleet.planner.candidate_pools import CandidatePools
from fleet.store.trace_lookup import Answer, Found, StoreThread, find_candidates

#: Candidates that are looked for at once: all of them must stay in memory until their batches are sent.
_MOST_AT_ONCE = 1024
#: How often the store is asked again when it cannot be read, and seconds between tries.
TRIES, PAUSE_SECS = 3, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSearch:
    """A search in the store for the traces of one job."""

    job: Job
    missing: tuple[CandidateId, ...]
    failures: int = 0
    #: Why the store could not be read, where it was asked often enough: it may have what is missing.
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSearches:
    """Searches for jobs of one family, as they come back from the thread."""

    family: str
    searches: tuple[LeaseSearch, ...]


class TraceLookup:
    """Knows which leases wait for their traces.

    Args:
        families: Family of every device, those that only the store knows included.
        holders: Tells devices of a family that have measured some candidates (`Coverage.holders`).
    """

    def __init__(
        self,
        pools: CandidatePools,
        thread: StoreThread,
        families: Mapping[DeviceId, str],
        holders: Callable[[str, Collection[CandidateId]], Collection[DeviceId]],
        say: Callable[[str], None],
    ) -> None:
        self._pools, self._thread, self._families, self._say = pools, thread, families, say
        self._holders = holders
        #: Jobs that are looked for, each with its present lease, if it has one.
        self._open: dict[JobId, GrantLease | None] = {}
        #: Families for which the store is being searched, and what is to be looked for next.
        self._next: dict[str, list[LeaseSearch]] = {}
        #: Searches that are asked again after a failure, and when.
        self._again: list[tuple[float, LeaseSearch]] = []
        #: The last failure, until the store can be read again.
        self._said = ""

    def look_for(self, grant: GrantLease, search: LeaseSearch) -> None:
        """Have the traces of a lease looked for, unless they are already for an earlier lease of the job."""
        is_new = grant.job_id not in self._open
        self._open[grant.job_id] = grant
        if is_new:
            self._queue([search])

    @property
    def unsent(self) -> set[JobId]:
        """Jobs whose leases wait for their traces: their agents know nothing of them."""
        return {job_id for job_id, grant in self._open.items() if grant is not None}

    def waiting(self, deadline_secs: float) -> list[GrantLease]:
        """Leases that wait for their traces, and as far as is known here do not run beyond a time."""
        return [one for one in self._open.values() if one is not None and one.deadline_secs <= deadline_secs]

    def renewed(self, grant: GrantLease) -> None:
        """Note that a lease runs longer than was known."""
        self._open[grant.job_id] = grant

    def let_go(self, job_id: JobId) -> None:
        """Note that a job has no lease any more; what is found for it waits in memory."""
        self._open[job_id] = None

    def look_again(self, now: float) -> None:
        """Ask again what failed a while ago."""
        due = [search for at_secs, search in self._again if at_secs <= now]
        if due:
            self._again = [one for one in self._again if one[0] > now]
            self._queue(due)

    def answered(
        self, asked: LeaseSearches, answer: Answer, now: float
    ) -> list[tuple[GrantLease, LeaseSearch]]:
        """Take in what the store had.

        Returns:
            Leases that can be gone on with, and what was looked for.
        """
        found: Found = answer.value or Found()
        error = answer.error or found.unread
        self._pools.remember(asked.family, found.candidates)
        ready: list[tuple[GrantLease, LeaseSearch]] = []
        for one in asked.searches:
            search, grant = one, self._open[one.job.job_id]
            if error and len(self._pools.at_hand(asked.family, one.missing)) < len(one.missing):
                search = replace(one, failures=one.failures + 1)
                if grant is not None and search.failures < TRIES:
                    self._again.append((now + PAUSE_SECS, search))
                    continue
                search = replace(search, unread=error)
            del self._open[one.job.job_id]
            if grant is not None:
                ready.append((grant, search))
        if error and error != self._said:
            self._say(f"the store cannot be read for the traces of leases, they are asked for again: {error}")
        self._said = error
        waiting = self._next.pop(asked.family, [])
        if waiting:
            self._ask(asked.family, waiting)
        return ready

    def _queue(self, searches: list[LeaseSearch]) -> None:
        for one in searches:
            family = self._families[one.job.device_id]
            if family in self._next:
                self._next[family].append(one)
            else:
                self._ask(family, [one])

    def _ask(self, family: str, searches: list[LeaseSearch]) -> None:
        """Search for several jobs at once: it takes as long as for one."""
        count, wanted = 0, set[CandidateId]()
        while count < len(searches) and len(wanted) < _MOST_AT_ONCE:
            wanted.update(searches[count].missing)
            count += 1
        self._next[family] = searches[count:]
        devices_of_family = [one for one, other in self._families.items() if other == family]
        first = frozenset(self._holders(family, wanted))
        question = partial(find_candidates, device_ids=devices_of_family, wanted=wanted, first=first)
        self._thread.ask(LeaseSearches(family=family, searches=tuple(searches[:count])), question)
