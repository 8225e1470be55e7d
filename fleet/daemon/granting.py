"""From a lease to a batch: fetch the traces of a job's candidates and send them to the agent.

`fleet.daemon.coordinator` calls it for every `GrantLease`. Traces come from the pools, else from the store,
which a thread searches meanwhile; the lease runs on. Candidates whose traces are nowhere are left out with a
word, and a job that has none left ends: nothing waits for what cannot come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from agents.batch import Batch
from agents.lease import Lease
from agents.records import REPEATS, Candidate, CandidateId, DeviceId, Protocol, Workload, WorkloadId
from fleet.core.arrivals import Tallies
from fleet.core.events import Event, GrantLease, Job, JobCancelled
from fleet.daemon.coverage import Coverage
from fleet.daemon.feeding import Feeder
from fleet.daemon.intake import Intake
from fleet.daemon.pools import Pools
from fleet.daemon.storing import Storing
from fleet.daemon.traces import StoreThread, find_candidates
from fleet.links.links import Links

#: Candidates that are looked for at once: all of them must stay in memory until their batches are sent.
_MOST_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSearch:
    """A search in the store for the traces of one lease."""

    grant: GrantLease
    job: Job
    missing: tuple[CandidateId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSearches:
    """Searches for leases of one family, as they come back from the thread."""

    family: str
    searches: tuple[LeaseSearch, ...]


class Granting:
    """Sends jobs to agents.

    Args:
        coverage: Knows which workload a candidate is of, and is told of those that are nowhere.
        pools: Has traces.
        feeder: Knows the workloads of devices.
        storing: Knows what of a job is left.
        intake: Has records that are not in the table yet.
        tallies: Counts by job.
        links: The way to the agents.
        thread: Searches the store.
        families: Family of every device, siblings that only the store knows included.
        protocols: How each device is timed.
        say: Told of candidates that are nowhere.
    """

    def __init__(
        self,
        coverage: Coverage,
        pools: Pools,
        feeder: Feeder,
        storing: Storing,
        intake: Intake,
        tallies: Tallies,
        links: Links,
        thread: StoreThread,
        families: Mapping[DeviceId, str],
        protocols: Mapping[DeviceId, Protocol],
        say: Callable[[str], None],
    ) -> None:
        self._coverage, self._pools, self._feeder = coverage, pools, feeder
        self._storing, self._intake, self._tallies = storing, intake, tallies
        self._links, self._thread = links, thread
        self._families, self._protocols, self._say = families, protocols, say
        #: Families for which the store is being searched, and what is to be looked for next.
        self._searching: dict[str, list[LeaseSearch]] = {}

    def grant(self, grant: GrantLease, job: Job, now: float, *, searched: bool = False) -> list[Event]:
        """Send what is left of a job to its agent.

        Args:
            grant: The lease.
            job: The job.
            now: Unix seconds.
            searched: Whether the store was searched for it already.

        Returns:
            The end of the job, where nothing of it can be sent.

        Raises:
            StoreFull: No room to hand on what is to be searched; to be granted again once there is some.
        """
        family = self._families[job.device_id]
        found = self._pools.at_hand(family, job.candidate_ids)
        left = self._storing.left(job, found)
        missing = [one for one in left if one not in found]
        for workload_id in job.workload_ids if missing else ():
            found |= self._pools.get(family, workload_id, missing)
            missing = [one for one in missing if one not in found]
        if missing and not searched:
            self._look_for(family, LeaseSearch(grant=grant, job=job, missing=tuple(missing)))
            return []
        workloads = self._feeder.workloads_of(job.device_id)
        candidates = [
            # Otherwise its origin is that of the first measurement, which the pools know.
            replace(found[one], origin=job.origin) if job.origin in REPEATS else found[one]
            for one in left
            if one in found and found[one].workload_id in workloads
        ]
        if missing:
            self._drop(job, family, missing)
        if candidates:
            self._send(grant, job, candidates, workloads)
            return []
        if left:
            reason = (
                f"the traces of its {len(left)} candidates are gone, or their workloads are not measured now"
            )
            return [JobCancelled(at_secs=now, device_id=job.device_id, job_id=job.job_id, reason=reason)]
        return [self._tallies.finish(job.device_id, job.job_id, grant.epoch, grant.incarnation, now)]

    def searched(self, found: LeaseSearches, candidates: list[Candidate]) -> None:
        """Take in what the store had of some leases' candidates; the leases are to be granted then."""
        self._pools.remember(found.family, candidates)
        waiting = self._searching.pop(found.family, [])
        if waiting:
            self._ask(found.family, waiting)

    def _look_for(self, family: str, search: LeaseSearch) -> None:
        self._intake.flush(candidate_ids=search.missing)
        if family in self._searching:
            self._searching[family].append(search)
        else:
            self._ask(family, [search])

    def _ask(self, family: str, searches: list[LeaseSearch]) -> None:
        """Search for several leases at once: it takes as long as for one."""
        count, wanted = 0, set[CandidateId]()
        while count < len(searches) and len(wanted) < _MOST_AT_ONCE:
            wanted.update(searches[count].missing)
            count += 1
        self._searching[family] = searches[count:]
        siblings = [one for one, other in self._families.items() if other == family]
        question = partial(find_candidates, device_ids=siblings, wanted=wanted)
        self._thread.ask(LeaseSearches(family=family, searches=tuple(searches[:count])), question)

    def _send(
        self,
        grant: GrantLease,
        job: Job,
        candidates: list[Candidate],
        workloads: Mapping[WorkloadId, Workload],
    ) -> None:
        batch = Batch(
            candidates=tuple(candidates),
            workloads={one.workload_id: workloads[one.workload_id] for one in candidates},
            protocol=self._protocols[job.device_id],
            attempt=job.attempt,
            model_version=job.model_version,
        )
        lease = Lease(
            device_id=job.device_id,
            job_id=job.job_id,
            epoch=grant.epoch,
            deadline_secs=grant.deadline_secs,
        )
        self._links.measure(lease, grant.incarnation, batch)

    def _drop(self, job: Job, family: str, missing: list[CandidateId]) -> None:
        """Leave candidates alone whose traces are gone; others are proposed in their place."""
        self._say(
            f"{job.device_id}: {len(missing)} candidates of job {job.job_id} are neither in the pools nor in "
            "the store; they are left out"
        )
        for one in missing:
            of = self._coverage.workload_of(family, job.workload_ids, one)
            if of is not None:
                self._coverage.block(family, of, [one])


__all__ = ["Granting", "LeaseSearch", "LeaseSearches"]
