"""Events of the coordinator, of devices and of their agents: what each changes, and what follows. Pure.

Called by `state.py`, which has one function here for each event; the rules are those of `leases.py`.
"""

from __future__ import annotations

from fleet.core import events as ev
from fleet.core.device_state import WITH_AGENT, Device
from fleet.core.events import DeviceState, Instruction, JobState, Verdict
from fleet.core.leases import stop_agent
from fleet.core.model_events import enter_environment
from fleet.core.request_events import (
    device_is_retired,
    drivers_begun,
    fingerprint_devices,
    onboard_arrivals,
    requests_due,
    train_for,
)
from fleet.core.state_core import Core, StateError


def coordinator_started(core: Core, event: ev.CoordinatorStarted) -> list[Instruction]:
    """Release every lease and start every agent anew: those of the coordinator before are gone.

    The one event that sets the time back: what a clock in the future has left would stall everything until
    that future has come.
    """
    if event.rules != ev.RULES:
        raise StateError(f"it has events of rules {event.rules}, this version reads {ev.RULES}")
    leasing = core.leasing
    leasing.limits = event.limits or leasing.limits
    leasing.is_stopping = leasing.is_full = False
    for device in leasing.devices.values():
        leasing.release(device)
    if event.at_secs < leasing.now:
        core.triggers.set_back(leasing.now - event.at_secs, event.at_secs)
        core.requests.set_back(leasing.now - event.at_secs, event.at_secs)
        leasing.set_back(event.at_secs)
    leasing.set_wall(event.at_secs)
    instructions: list[Instruction] = []
    totals: dict[str, int] = {}
    for device in leasing.devices.values():
        device.records = event.records.get(device.device_id, device.records)
        totals[device.family] = totals.get(device.family, 0) + device.records
        device.wanted_at = None
        if device.state not in (DeviceState.RETIRED, DeviceState.ABSENT, DeviceState.QUARANTINED):
            instructions += leasing.start(device)
        leasing.schedule(device)
    core.triggers.set_records(totals)
    return instructions + core.triggers.ask_again(leasing.now) + drivers_begun(core)


def clock_set(core: Core, event: ev.ClockSet) -> list[Instruction]:
    """Note where the wall clock is: windows and budgets may be open or closed now, and nothing else moves."""
    leasing = core.leasing
    leasing.set_wall(event.wall_secs)
    return [instruction for device in leasing.devices.values() for instruction in leasing.settle(device)]


def coordinator_stopping(core: Core, event: ev.CoordinatorStopping) -> list[Instruction]:
    """Grant and start nothing from here on; what runs may end."""
    core.leasing.is_stopping = True
    return []


def disk_full(core: Core, event: ev.DiskFull) -> list[Instruction]:
    """Take in nothing, grant nothing, and let no lease expire for want of results."""
    core.leasing.is_full = True
    return []


def disk_freed(core: Core, event: ev.DiskFreed) -> list[Instruction]:
    """Go on: every lease runs on from now."""
    leasing = core.leasing
    if not leasing.is_full:
        return []
    leasing.is_full = False
    instructions: list[Instruction] = []
    for device in leasing.devices.values():
        device.renew(leasing.now, leasing.limits)
        device.wanted_at = None
        instructions += leasing.settle(device)
    return instructions


def tick(core: Core, event: ev.Tick) -> list[Instruction]:
    """Do what time alone asks for."""
    instructions: list[Instruction] = []
    for device, device_instructions in core.leasing.wake():
        core.remember(device.device_id, event)
        instructions += device_instructions
    return instructions + requests_due(core)


def device_added(core: Core, event: ev.DeviceAdded) -> list[Instruction]:
    """Make a device known and start its agent; change family and policy of a known one."""
    leasing = core.leasing
    device = leasing.devices.get(event.device_id)
    if device is None:
        device = Device(event.device_id, event.family, event.policy)
        leasing.devices[event.device_id] = device
    elif device.family != event.family:
        core.triggers.drop(device.device_id)
        core.triggers.stored(device.family, device.device_id, -device.records)
        core.triggers.stored(event.family, device.device_id, device.records)
    device.family, device.policy = event.family, event.policy
    device.neighbourhood = event.neighbourhood
    instructions: list[Instruction] = []
    if device.state in (DeviceState.UNKNOWN, DeviceState.RETIRED, DeviceState.ABSENT):
        if device.state is not DeviceState.ABSENT:
            device.proved()
        device.state, device.reason = DeviceState.UNKNOWN, ""
        instructions = leasing.start(device)
    return instructions + leasing.settle(device)


def device_changed(core: Core, event: ev.DeviceChanged) -> list[Instruction]:
    """End the agent and start one anew: what the one before has finished comes out of its spool."""
    leasing, device = core.leasing, core.device(event)
    if device.state in (DeviceState.RETIRED, DeviceState.ABSENT):
        return []
    instructions: list[Instruction] = []
    if device.state in WITH_AGENT:
        # At once: one that ended in order would hold its spool, and time as it was told before.
        instructions.append(stop_agent(device, kill=True))
    leasing.release(device)
    device.proved()
    device.probe_by = device.wanted_at = None
    device.state, device.reason = DeviceState.LOST, event.reason
    return instructions + leasing.start(device) + leasing.settle(device)


def device_left_out(core: Core, event: ev.DeviceLeftOut) -> list[Instruction]:
    """Have no agent of it from here on; its jobs wait until it is added again."""
    leasing, device = core.leasing, core.device(event)
    if device.state is DeviceState.RETIRED:
        return []
    return _take_out(core, device, DeviceState.ABSENT, event.reason) + leasing.settle(device)


def device_retired(core: Core, event: ev.DeviceRetired) -> list[Instruction]:
    """Stop the agent and cancel the jobs."""
    leasing, device = core.leasing, core.device(event)
    if device.state is DeviceState.RETIRED:
        return []
    instructions = _take_out(core, device, DeviceState.RETIRED, event.reason)
    ended = [core.entry(job_id) for job_id in leasing.jobs.of_device(device.device_id)]
    # No lease expired: what the spool holds of them is still to be stored when the device comes back.
    for fencing_token in sorted(entry.fencing_token for entry in ended if entry.fencing_token is not None):
        device.remember(fencing_token)
    for entry in ended:
        leasing.jobs.end(entry, JobState.CANCELLED)
    core.triggers.drop(device.device_id)
    return instructions + leasing.settle(device) + device_is_retired(core, device)


def _take_out(core: Core, device: Device, state: DeviceState, reason: str) -> list[Instruction]:
    """Let the agent, if there is one, do what it was asked, and end; no other is started."""
    instructions: list[Instruction] = []
    if device.state in WITH_AGENT:
        instructions.append(stop_agent(device, kill=False))
    core.leasing.release(device)
    device.state, device.reason = state, reason
    device.start_at = device.probe_by = device.wanted_at = None
    return instructions


def agent_started(core: Core, event: ev.AgentStarted) -> list[Instruction]:
    """Give the agent of the present incarnation time for its probe; end any other."""
    device = core.device(event)
    if not core.is_current(device, event):
        # An agent that was given up came up after all, or a zombie did.
        stale = event.incarnation
        return [ev.StopAgent(device_id=device.device_id, incarnation=stale, kill=True)]
    if device.state is not DeviceState.PROBING:
        raise core.impossible(event, "its agent had started before")
    device.probe_by = core.leasing.now + core.leasing.limits.start_secs
    return core.leasing.settle(device)


def probe_passed(core: Core, event: ev.ProbePassed) -> list[Instruction]:
    """Let the device have leases; a device without a head asks for a training."""
    device = core.device(event)
    if not core.is_current(device, event):
        return []
    if device.state is not DeviceState.PROBING:
        raise core.impossible(event, "its agent had passed the probe before")
    device.state, device.reason, device.probe_by = DeviceState.IDLE, "", None
    device.utc_offset_secs, device.host = event.utc_offset_secs or 0.0, event.host
    device.is_host_idle = None
    enter_environment(core, device, event.environment_id)
    if not device.champion:
        train_for(core, device)
    return onboard_arrivals(core) + fingerprint_devices(core) + core.leasing.settle(device)


def probe_refused(core: Core, event: ev.ProbeRefused) -> list[Instruction]:
    """Stop the agent and count a failure."""
    device = core.device(event)
    if not core.is_current(device, event):
        return []
    return [
        stop_agent(device, kill=False),
        *core.leasing.fail(device, event.reason),
        *core.leasing.settle(device),
    ]


def agent_heartbeat(core: Core, event: ev.AgentHeartbeat) -> list[Instruction]:
    """Renew leases, note progress and whether the host is idle."""
    device = core.device(event)
    if not core.is_current(device, event) or device.state is DeviceState.PROBING:
        return []
    if event.fencing_token is not None and event.fencing_token > device.fencing_token:
        raise core.impossible(event, f"its last lease has fencing token {device.fencing_token}")
    device.heartbeat(event, core.leasing.limits)
    return core.leasing.settle(device)


def agent_died(core: Core, event: ev.AgentDied) -> list[Instruction]:
    """Release the leases and count a failure, unless its host is out of reach."""
    device = core.device(event)
    if not core.is_current(device, event):
        return []
    leasing = core.leasing
    end = leasing.lose if event.is_outage else leasing.fail
    return end(device, event.reason) + leasing.settle(device)


# Events of jobs: what each changes, and what follows. Pure.
#
# Called by `state.py`, which has one function here for each event; the rules are those of `leases.py`.


def job_submitted(core: Core, event: ev.JobSubmitted) -> list[Instruction]:
    """Queue a job."""
    device = core.device(event)
    if device.state is DeviceState.RETIRED:
        raise core.impossible(event, "the device is retired")
    if core.leasing.jobs.get(event.job.job_id):
        raise core.impossible(event, "a job of this id is there already")
    core.leasing.jobs.submit(event.job)
    return core.leasing.settle(device)


def job_finished(core: Core, event: ev.JobFinished) -> list[Instruction]:
    """Count the results once, if they count."""
    leasing, device = core.leasing, core.lease_holder(event)
    if core.verdict(event.device_id, event.job_id, event.fencing_token) is not Verdict.COUNTS:
        return []
    entry = core.entry(event.job_id)
    if entry.state is JobState.LEASED and any(event.outcomes.values()):
        device.proved()
    leasing.finish(device, entry, event.device_secs)
    leasing.jobs.end(entry, JobState.DONE)
    device.jobs_done += 1
    for outcome, count in event.outcomes.items():
        device.outcomes[outcome] = device.outcomes.get(outcome, 0) + count
    return leasing.settle(device)


def job_crashed(core: Core, event: ev.JobCrashed) -> list[Instruction]:
    """Count one crash for each lease, and quarantine the job when there were too many."""
    leasing, device = core.leasing, core.lease_holder(event)
    entry = leasing.jobs.get(event.job_id)
    if (
        entry is None
        or entry.fencing_token != event.fencing_token
        or entry.crashed_token == event.fencing_token
    ):
        return []
    reason = event.stderr_tail or "the agent died of it and left no word"
    if entry.state is JobState.LEASED:
        return leasing.blame(device, event.fencing_token, reason) + leasing.settle(device)
    return leasing.crash(device, entry, event.fencing_token, reason) + leasing.settle(device)


def job_cancelled(core: Core, event: ev.JobCancelled) -> list[Instruction]:
    """End a job that is not wanted any more; one that has ended is no fault."""
    leasing, device = core.leasing, core.device(event)
    entry = leasing.jobs.get(event.job_id)
    if entry is None or entry.job.device_id != device.device_id:
        return []
    if entry.state is JobState.QUEUED and entry.fencing_token is not None:
        device.remember(entry.fencing_token)  # released, and not expired: what the spool holds is not late
    leasing.drop_lease(device, entry)
    leasing.jobs.end(entry, JobState.CANCELLED)
    return leasing.settle(device)


def lease_returned(core: Core, event: ev.LeaseReturned) -> list[Instruction]:
    """Queue a job again whose lease its agent gave up; a lease that ended otherwise is no fault."""
    leasing, device = core.leasing, core.lease_holder(event)
    lease = device.lease(event.fencing_token)
    if lease is None or lease.job_id != event.job_id:
        return []
    if event.has_results:
        leasing.suspend(device, event.fencing_token)
    else:
        leasing.give_back(device, event.fencing_token)
    return leasing.settle(device)


def result_arrived_late(core: Core, event: ev.ResultArrivedLate) -> list[Instruction]:
    """Count late records, and nothing else."""
    core.lease_holder(event).late += event.count
    return []
