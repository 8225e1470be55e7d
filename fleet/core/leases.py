"""Agents and leases of all devices: start, grant, release, expire, quarantine; and when to look again. Pure.

These are the verbs that `state.py` makes of events. Each keeps devices and jobs in step, and gives back what
is to be done. Nothing scans: a device is looked at when an event names it or when its own next time has come.
"""

from __future__ import annotations

import heapq
import math

from msgspec import Struct, field

from agents.records import DeviceId
from fleet.core.device_state import USABLE, Device
from fleet.core.events import (
    DeviceState,
    GrantLease,
    Instruction,
    Quarantine,
    StartAgent,
    StopAgent,
    WantJobs,
)
from fleet.core.job_state import Entry, Jobs
from fleet.core.words import Limits


class Leasing(Struct, dict=True, forbid_unknown_fields=True):
    """Devices, their jobs and leases, and one next time for each device.

    Attributes:
        reserved: Devices that requests measure on (`requests.reserve_devices`): they do nothing else.
    """

    limits: Limits = field(default_factory=Limits)
    now: float = 0.0
    #: How far the wall clock is ahead of `now`.
    wall_ahead_secs: float = 0.0
    is_stopping: bool = False
    is_full: bool = False
    devices: dict[DeviceId, Device] = field(default_factory=dict)
    jobs: Jobs = field(default_factory=Jobs)
    #: When each device is looked at next.
    wakes: dict[DeviceId, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What follows from the fields, and from the requests, is written nowhere.
        self.reserved: frozenset[DeviceId] = frozenset()
        #: The next times in order; outdated ones too.
        self._heap = [(at_secs, device_id) for device_id, at_secs in self.wakes.items()]
        heapq.heapify(self._heap)

    @property
    def wall(self) -> float:
        """Unix seconds of the wall clock: budgets and windows go by it."""
        return self.now + self.wall_ahead_secs

    def next_wake(self) -> float:
        """The time at which time alone may change something; infinite where it cannot."""
        return self._heap[0][0] if self._heap else math.inf

    def start(self, device: Device) -> list[Instruction]:
        """Ask for an agent of the next incarnation, now."""
        device.at_work, device.heard_secs = None, 0.0
        if self.is_stopping:
            device.start_at = self.now
            return []
        device.incarnation += 1
        device.state = DeviceState.PROBING
        device.start_at, device.probe_by = None, self.now + self.limits.start_secs
        return [StartAgent(device_id=device.device_id, incarnation=device.incarnation)]

    def set_back(self, now: float) -> None:
        """The clock was ahead: what waits, waits no longer for that. No device has a lease."""
        ahead_secs, self.now = self.now - now, now
        for device in self.devices.values():
            if device.start_at is not None:
                device.start_at -= ahead_secs
            for name in ("drifted_at", "drift_asked_at"):
                at_secs = getattr(device, name)
                setattr(device, name, None if at_secs is None else min(at_secs, now))

    def set_wall(self, wall: float) -> None:
        """Note what the wall clock shows; what was spent in a future that it is not in was spent now."""
        self.wall_ahead_secs = wall - self.now
        for device in self.devices.values():
            device.budget.set_back(wall + device.utc_offset_secs)

    def fail(self, device: Device, reason: str) -> list[Instruction]:
        """The agent is gone or no use: start another after a while, or quarantine the device."""
        self._lose_agent(device, reason)
        device.failures += 1
        device.crashes += 1
        if device.failures >= self.limits.device_failures:
            device.state = DeviceState.QUARANTINED
            device.start_at = self.now + self.limits.quarantine_secs
            why = f"{device.failures} failures in a row without a finished candidate; the last: {reason}"
            device.reason = why
            return [Quarantine(device_id=device.device_id, job_id=None, reason=why)]
        return self._start_later(device)

    def lose(self, device: Device, reason: str) -> list[Instruction]:
        """Nothing is heard of the agent, or its host is out of reach: look for it again after a while."""
        self._lose_agent(device, reason)
        device.outages += 1
        return self._start_later(device)

    def _lose_agent(self, device: Device, reason: str) -> None:
        self.release(device)
        device.probe_by = device.wanted_at = device.at_work = None
        device.reason = reason

    def _start_later(self, device: Device) -> list[Instruction]:
        device.state = DeviceState.LOST
        wait = device.restart_wait(self.limits)
        device.start_at = self.now + wait
        return self.start(device) if wait == 0 else []

    def release(self, device: Device) -> None:
        """End all leases; their jobs are the next ones again, and what was measured of them still counts."""
        for lease in reversed(device.leases.copy()):
            entry = self._end_lease(device, lease.fencing_token)
            self.jobs.requeue(entry, first=True)

    def give_back(self, device: Device, fencing_token: int) -> None:
        """End a lease under which nothing was sent: the device worked nothing, and no results can come."""
        entry = self._end_lease(device, fencing_token, charged=False)
        entry.fencing_token = None
        self.jobs.requeue(entry, first=False)

    def suspend(self, device: Device, fencing_token: int) -> None:
        """End a lease that was begun: its job is the next one again, and what was measured of it counts."""
        self.jobs.requeue(self._end_lease(device, fencing_token), first=True)

    def crash(self, device: Device, entry: Entry, fencing_token: int, reason: str) -> list[Instruction]:
        """Count a crash of a job whose lease is no longer running."""
        if not self.jobs.crash(entry, fencing_token, reason, self.limits.job_crashes):
            return []
        return [Quarantine(device_id=device.device_id, job_id=entry.job.job_id, reason=reason)]

    def blame(self, device: Device, fencing_token: int, reason: str) -> list[Instruction]:
        """The agent died of the job of a running lease."""
        entry = self._end_lease(device, fencing_token)
        return self.crash(device, entry, fencing_token, reason) + self.fail(device, reason)

    def finish(self, device: Device, entry: Entry, device_secs: float) -> None:
        """The results of a job are counted: its lease, if it still runs, ends; what it cost is charged."""
        fencing_token = entry.fencing_token
        assert fencing_token is not None
        if device.lease(fencing_token):
            self._end_lease(device, fencing_token, charged=False)
        device.charge(max(0.0, device_secs - entry.charged_secs), self.wall)
        device.remember(fencing_token)
        device.wanted_at = None

    def drop_lease(self, device: Device, entry: Entry) -> None:
        """End the lease of a job that is not wanted any more, if it has one."""
        if entry.fencing_token is not None and device.lease(entry.fencing_token):
            self._end_lease(device, entry.fencing_token)

    def settle(self, device: Device) -> list[Instruction]:
        """Grant what can be granted, ask for jobs where few wait, and note when to look again.

        Without an event it does nothing before the time that it noted.
        """
        instructions: list[Instruction] = []
        if device.state in USABLE and not self.is_stopping and not self.is_full:
            least = int(self._is_for_requests(device))
            while len(device.leases) < self.limits.leases:
                entry = self.jobs.next(device.device_id, least)
                if entry is None or device.closed(self.wall):
                    break
                instructions.append(self._grant(device, entry))
            waiting = self.jobs.queued(device.device_id)
            is_asked = device.wanted_at is not None and self.now < device.wanted_at + self.limits.want_secs
            is_usable = bool(device.leases) or device.closed(self.wall) is None
            if self._is_low(device) and is_usable and not is_asked:
                room = (self.limits.queued_jobs - waiting) * self.limits.job_candidates
                device.wanted_at = self.now
                instructions.append(WantJobs(device_id=device.device_id, room=room))
        self.schedule(device)
        return instructions

    def wake(self) -> list[tuple[Device, list[Instruction]]]:
        """Do what time alone asks for: expire leases, start agents, open budgets and windows.

        Returns:
            The devices for which something is to be done, in order.
        """
        due: list[Device] = []
        while self._heap and self._heap[0][0] <= self.now:
            at_secs, device_id = heapq.heappop(self._heap)
            if self.wakes.get(device_id) == at_secs:
                del self.wakes[device_id]
                due.append(self.devices[device_id])
        done = [(device, self._look(device) + self.settle(device)) for device in due]
        return [(device, instructions) for device, instructions in done if instructions]

    def schedule(self, device: Device) -> None:
        """Note when time alone changes something for a device."""
        at_secs = self._next_time(device)
        if at_secs < self.wakes.get(device.device_id, math.inf):
            self.wakes[device.device_id] = at_secs
            heapq.heappush(self._heap, (at_secs, device.device_id))

    def _grant(self, device: Device, entry: Entry) -> GrantLease:
        job = entry.job
        lease = device.grant(job.job_id, len(job.candidate_ids), job.expected_secs, self.now, self.limits)
        self.jobs.lease(entry, lease.fencing_token)
        return GrantLease(
            device_id=device.device_id,
            incarnation=device.incarnation,
            fencing_token=lease.fencing_token,
            job_id=lease.job_id,
            deadline_secs=lease.deadline_secs,
        )

    def _end_lease(self, device: Device, fencing_token: int, *, charged: bool = True) -> Entry:
        """Take a lease away, and charge what it worked unless the caller knows better."""
        lease = device.lease(fencing_token)
        assert lease is not None
        entry = self.jobs.get(lease.job_id)
        assert entry is not None
        worked = device.end_lease(lease, self.now)
        if charged:
            device.charge(worked, self.wall)
            entry.charged_secs += worked
        return entry

    def _look(self, device: Device) -> list[Instruction]:
        """What a device's own times ask for."""
        is_due = device.start_at is not None and device.start_at <= self.now
        if is_due and not self.is_stopping:
            return self.start(device)
        if (
            device.state is DeviceState.PROBING
            and device.probe_by is not None
            and device.probe_by <= self.now
        ):
            late = f"its agent had not passed its probe after {self.limits.start_secs:g} s"
            return [stop_agent(device, kill=True), *self.fail(device, late)]
        if not self.is_full and any(lease.deadline_secs <= self.now for lease in device.leases):
            return self._expire(device)
        return []

    def _expire(self, device: Device) -> list[Instruction]:
        """No heartbeat renewed a lease: end the agent, and never count what overdue leases still bring.

        An agent that lives and gets no further is its job's doing. Silence is nobody's; the job at work waits
        behind the others all the same.
        """
        instructions: list[Instruction] = [stop_agent(device, kill=True)]
        front = device.front()
        assert front is not None
        is_to_blame = device.is_stalled(self.now, self.limits)
        overdue = [lease for lease in device.leases if lease.deadline_secs <= self.now]
        why = "no heartbeat renewed it" if is_to_blame else "nothing was heard of its agent"
        reason = f"lease {overdue[0].fencing_token} (job {overdue[0].job_id}) expired: {why}"
        device.expiries += len(overdue)
        for lease in reversed(overdue):
            entry = self._end_lease(device, lease.fencing_token)
            entry.fencing_token = None
            if lease is front and is_to_blame:
                instructions += self.crash(device, entry, lease.fencing_token, reason)
            else:
                self.jobs.requeue(entry, first=lease is not front)
        return instructions + (self.fail if is_to_blame else self.lose)(device, reason)

    def _is_low(self, device: Device) -> bool:
        """Whether to ask for jobs: with half of them gone, for one plan costs as much as another."""
        if self._is_for_requests(device):
            return False
        return 2 * self.jobs.queued(device.device_id) <= self.limits.queued_jobs

    def _is_for_requests(self, device: Device) -> bool:
        return self.limits.requests_only or device.device_id in self.reserved

    def _next_time(self, device: Device) -> float:
        times = [math.inf]
        if device.start_at is not None and not self.is_stopping:
            times.append(device.start_at)
        if device.state is DeviceState.PROBING and device.probe_by is not None:
            times.append(device.probe_by)
        if not self.is_full:
            times += [lease.deadline_secs for lease in device.leases]
        if device.state in USABLE and not self.is_stopping and not self.is_full:
            closed = device.closed(self.wall)
            if closed and len(device.leases) < self.limits.leases:
                times.append(closed.until_secs - self.wall_ahead_secs)
            is_usable = bool(device.leases) or not closed
            if self._is_low(device) and device.wanted_at is not None and is_usable:
                times.append(device.wanted_at + self.limits.want_secs)
        return min(times)


def stop_agent(device: Device, *, kill: bool) -> StopAgent:
    """End the present agent of a device."""
    return StopAgent(device_id=device.device_id, incarnation=device.incarnation, kill=kill)
