"""Events of jobs: what each changes, and what follows. Pure.

Called by `state.py`, which has one function here for each event; the rules are those of `leases.py`.
"""

from __future__ import annotations

from fleet.core import events as ev
from fleet.core.events import DeviceState, Instruction, JobState, Verdict
from fleet.core.state_core import Core


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
