"""One device as the state knows it: its agent's life, its leases, what it spent and measured. Pure.

Part of `state.py`, which alone changes it. It knows neither jobs (their ids only) nor other devices.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct, field

from agents.records import DeviceId
from fleet.core.events import AgentHeartbeat, Busy, DevicePolicy, DeviceState, JobId
from fleet.core.policies import Budget, Closed, closed_because
from fleet.core.words import Limits

#: Leases that are over and remembered, to tell a second delivery of results from a late one. An agent has two
#: leases at a time, so whatever it still delivers is far younger.
_REMEMBERED_TOKENS = 64
#: A heartbeat is worth its place in the event log if it moves a deadline by this share of a lease.
_NEWS_SHARE = 0.25
#: An agent is alive that was heard within this share of a lease: more than a heartbeat is held back for.
_HEARD_SHARE = 0.5
#: States in which an agent has passed its probe, and those in which there is, or may be, one.
USABLE = frozenset({DeviceState.IDLE, DeviceState.LEASED})
WITH_AGENT = USABLE | {DeviceState.PROBING}
#: Fields that status and API show as they are.
# fmt: off
_DESCRIBED = (
    "reason", "family", "incarnation", "fencing_token", "failures", "outages", "expiries", "records", "ok",
    "late", "jobs_done", "crashes", "environment_id", "champion", "drift",
)
# fmt: on


class HeldLease(Struct, forbid_unknown_fields=True):
    """The right of one job to the device."""

    job_id: JobId
    fencing_token: int
    #: Candidates of the job, and how many of them are finished.
    size: int
    expected_secs: float
    deadline_secs: float
    #: When its work began, and when it last got further.
    began_secs: float
    progress_secs: float
    done: int = 0

    def worked_secs(self, now_secs: float) -> float:
        """Seconds since its work began; what lies after its deadline is nobody's."""
        return max(0.0, min(now_secs, self.deadline_secs) - self.began_secs)


class Device(Struct, forbid_unknown_fields=True):
    """Everything that the state keeps of one device; `fleet.core.events` has the words."""

    device_id: DeviceId
    family: str
    policy: DevicePolicy
    state: DeviceState = DeviceState.UNKNOWN
    #: Why it is quarantined, lost or retired.
    reason: str = ""
    incarnation: int = 0
    fencing_token: int = 0
    #: Oldest first.
    leases: list[HeldLease] = field(default_factory=list)
    #: Fencing token that the last heartbeat named.
    at_work: int | None = None
    #: Deaths and refusals in a row without a finished candidate.
    failures: int = 0
    #: Silences and hosts out of reach in a row, likewise: the next start waits for them, and that is all.
    outages: int = 0
    #: When its agent last said something under a lease, as far as it was worth noting.
    heard_secs: float = 0.0
    #: When the next start is due (lost, quarantined), and until when an agent must have passed its probe.
    start_at: float | None = None
    probe_by: float | None = None
    #: When jobs were asked for, and no room has come up since.
    wanted_at: float | None = None
    utc_offset_secs: float = 0.0
    is_host_idle: bool | None = None
    budget: Budget = field(default_factory=Budget)
    #: Fencing tokens of the last leases that were counted, or whose jobs ended with their request or with the
    #: device's retirement.
    counted_tokens: list[int] = field(default_factory=list)
    #: Records of the device in the store.
    records: int = 0
    ok: int = 0
    late: int = 0
    #: Since the beginning of the event log.
    jobs_done: int = 0
    crashes: int = 0
    expiries: int = 0
    device_secs: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    environment_id: str = ""
    champion: str = ""
    neighbourhood: str = ""
    #: Name of the host of its last agent.
    host: str = ""
    #: Environment in which it was last given a head by itself, whatever came of it.
    onboarded_in: str = ""
    #: Environment in which its fingerprint was asked for.
    fingerprinted_in: str = ""
    drift: str = ""
    #: Whether it still drifts: no model that is published meanwhile ends that.
    is_unsteady: bool = False
    #: When it was last told to have drifted, until a new head is asked for; and when one was.
    drifted_at: float | None = None
    drift_asked_at: float | None = None

    def lease(self, fencing_token: int | None) -> HeldLease | None:
        """The running lease of a fencing token; None where there is none."""
        return next((lease for lease in self.leases if lease.fencing_token == fencing_token), None)

    def front(self) -> HeldLease | None:
        """The lease at work: the one that the last heartbeat named, else the oldest."""
        return self.lease(self.at_work) or (self.leases[0] if self.leases else None)

    def grant(self, job_id: JobId, size: int, expected_secs: float, now: float, limits: Limits) -> HeldLease:
        """Add a lease with the next fencing token."""
        self.fencing_token += 1
        lease = HeldLease(
            job_id=job_id,
            fencing_token=self.fencing_token,
            size=size,
            expected_secs=expected_secs,
            deadline_secs=now + limits.lease_secs,
            began_secs=now,
            progress_secs=now,
        )
        self.leases.append(lease)
        self.state = DeviceState.LEASED
        return lease

    def end_lease(self, lease: HeldLease, now: float) -> float:
        """Take a lease away; the one behind it begins now.

        Returns:
            Seconds that it worked, as far as the state can tell: 0 for one that waited.
        """
        is_front = lease is self.front()
        self.leases.remove(lease)
        if is_front:
            self.at_work = None
        if is_front and self.leases:
            self.leases[0].began_secs = self.leases[0].progress_secs = now
        if self.state is DeviceState.LEASED and not self.leases:
            self.state = DeviceState.IDLE
        return lease.worked_secs(now) if is_front else 0.0

    def charge(self, secs: float, wall: float) -> None:
        """Add seconds of the device to what was spent; `wall` is in Unix seconds."""
        self.device_secs += secs
        self.budget.charge(wall + self.utc_offset_secs, secs)

    def proved(self) -> None:
        """Note that it works: failures before this are no longer in a row."""
        self.failures = self.outages = 0

    def is_stalled(self, now: float, limits: Limits) -> bool:
        """Whether its agent lives and gets no further with the lease at work: then that job is the cause.

        Of an agent that says nothing nobody knows: it, or its whole host, may be asleep or cut off.
        """
        front = self.front()
        is_named = front is not None and front.fencing_token == self.at_work
        return is_named and now - self.heard_secs <= _HEARD_SHARE * limits.lease_secs

    def remember(self, fencing_token: int) -> None:
        """Note that a lease is over for good: what still comes of it is stored, and counts for no job."""
        self.counted_tokens.append(fencing_token)
        del self.counted_tokens[:-_REMEMBERED_TOKENS]

    def renewed_deadline(self, heartbeat: AgentHeartbeat, limits: Limits) -> float:
        """Until when the leases run after a heartbeat, at least; minus infinity where it renews nothing."""
        lease = self.lease(heartbeat.fencing_token)
        if lease is None:
            return -math.inf
        if heartbeat.done > lease.done or heartbeat.fencing_token != self.at_work:
            return heartbeat.at_secs + limits.lease_secs
        if heartbeat.busy is Busy.IDLE:
            return -math.inf
        return min(heartbeat.at_secs + limits.lease_secs, lease.progress_secs + limits.stall_secs)

    def is_news(self, heartbeat: AgentHeartbeat, limits: Limits) -> bool:
        """Whether a heartbeat changes what matters."""
        if heartbeat.incarnation != self.incarnation or self.state not in USABLE:
            return heartbeat.incarnation > self.incarnation
        if heartbeat.is_host_idle not in (None, self.is_host_idle):
            return True
        if heartbeat.utc_offset_secs not in (None, self.utc_offset_secs):
            return True
        if (lease := self.lease(heartbeat.fencing_token)) is None:
            return heartbeat.fencing_token is not None and heartbeat.fencing_token > self.fencing_token
        if heartbeat.fencing_token != self.at_work or (
            (self.failures or self.outages) and heartbeat.done > lease.done
        ):
            return True
        step = self.renewed_deadline(heartbeat, limits) - lease.deadline_secs
        return max(step, heartbeat.at_secs - self.heard_secs) >= _NEWS_SHARE * limits.lease_secs

    def heartbeat(self, heartbeat: AgentHeartbeat, limits: Limits) -> None:
        """Take in a heartbeat of the living agent."""
        if heartbeat.is_host_idle is not None:
            self.is_host_idle = heartbeat.is_host_idle
        if heartbeat.utc_offset_secs is not None:
            self.utc_offset_secs = heartbeat.utc_offset_secs
        lease = self.lease(heartbeat.fencing_token)
        if lease is None:
            return
        self.heard_secs = max(self.heard_secs, heartbeat.at_secs)
        deadline = self.renewed_deadline(heartbeat, limits)
        for held_lease in self.leases:  # one that waits cannot show progress
            held_lease.deadline_secs = max(held_lease.deadline_secs, deadline)
        if heartbeat.done > lease.done:
            self.proved()
        if heartbeat.done > lease.done or heartbeat.fencing_token != self.at_work:
            lease.progress_secs = max(lease.progress_secs, heartbeat.at_secs)
        lease.done = max(lease.done, heartbeat.done)
        self.at_work = heartbeat.fencing_token

    def renew(self, now: float, limits: Limits) -> None:
        """Let all leases run on from now: it was not their agent's doing that nothing came."""
        for lease in self.leases:
            lease.deadline_secs = max(lease.deadline_secs, now + limits.lease_secs)
            lease.progress_secs = now

    def closed(self, wall: float) -> Closed | None:
        """Why its policy allows no lease now, in Unix seconds of the wall clock; None where it does."""
        if not self.policy.is_limiting:
            return None
        estimates = [lease.expected_secs for lease in self.leases]
        outstanding = 0.0 if estimates and min(estimates) <= 0 else sum(estimates)
        return closed_because(
            self.policy,
            self.budget,
            at_secs=wall,
            utc_offset_secs=self.utc_offset_secs,
            is_host_idle=self.is_host_idle,
            outstanding_secs=outstanding if estimates else None,
        )

    def restart_wait(self, limits: Limits) -> float:
        """Seconds to wait before the next start, after failures and outages in a row."""
        times = self.failures + self.outages
        return min(limits.restart_wait_secs, 2.0 ** min(times - 2, 30)) if times > 1 else 0.0

    def describe(self, now: float, wall_ahead_secs: float) -> dict[str, Any]:
        """What status and API show; JSON-ready. Times in Unix seconds of the wall clock."""
        wall = now + wall_ahead_secs
        closed = self.closed(wall)
        return {
            **{name: getattr(self, name) for name in _DESCRIBED},
            "state": self.state.value,
            "leases": [
                {
                    "job_id": lease.job_id,
                    "fencing_token": lease.fencing_token,
                    "deadline": lease.deadline_secs + wall_ahead_secs,
                    "done": lease.done,
                    "of": lease.size,
                }
                for lease in self.leases
            ],
            "next_start_at": None if self.start_at is None else self.start_at + wall_ahead_secs,
            "failed": self.records - self.ok,
            "outcomes": dict(self.outcomes),
            "budget": {
                "hour_secs": self.budget.spent_of_hour(wall + self.utc_offset_secs),
                "hour_limit_secs": self.policy.secs_per_hour,
                "day_secs": self.budget.spent_of_day(wall + self.utc_offset_secs),
                "day_limit_secs": self.policy.secs_per_day,
                "device_secs": self.device_secs,
            },
            "closed": closed.reason if closed else "",
        }
