"""What of the events and messages people should read, as lines. Decides nothing else."""

from __future__ import annotations

from agents.device.messages import AgentGone, AgentRefused, AgentUp, Failed, Message
from fleet.core import events as ev
from fleet.core.events import Event, Instruction
from fleet.engine.notices import Notices


def announce_message(message: Message, notices: Notices) -> None:
    """Say what an agent has to tell of itself."""
    name = message.device_id
    match message:
        case AgentUp(host=host, pending=pending):
            left = f"; {len(pending)} records of an earlier life came with it" if pending else ""
            notices.say(f"{name}: up on {host or 'its host'}{left}", kind="up", style="green")
        case AgentRefused(reason=reason):
            notices.say(f"{name}: refused: {reason}", kind="refused", style="red")
        case AgentGone(reason=reason, was_asked=False):
            notices.say(f"{name}: its agent ended: {reason}", kind="gone", style="red")
        case Failed(what=what, error=error):
            notices.say(f"{name}: {what} failed: {error}", kind=f"failed {what}", style="red")


def announce_event(event: Event, notices: Notices) -> None:
    """Say what happened in the fleet."""
    match event:
        case ev.JobCancelled(device_id=name, job_id=job_id, reason=reason):
            notices.say(f"{name}: job {job_id} is cancelled: {reason}", kind="cancelled")
        case ev.ResultArrivedLate(device_id=name, count=count):
            notices.say(f"{name}: {count} late results were kept apart", kind="late", style="yellow")
        case ev.DriftAlarm(device_id=name, text=text):
            notices.alarm(name, text)
        case ev.ModelPublished(version=version, device_ids=names):
            notices.say(f"{version} serves {', '.join(names)}", style="green")
        case ev.ModelRolledBack(version=version, device_id=name, reason=reason):
            notices.alarm(name, f"goes back to {version or 'no model'}: {reason}")
        case ev.RequestSubmitted(request=request):
            notices.say(f"request {request.request_id}: {request.kind}", kind="request")
        case ev.RequestCancelled(request_id=request_id, reason=reason):
            notices.say(f"request {request_id}: {reason}", kind="request")
        case ev.TrainingFinished(family=family, text=text):
            notices.say(f"training for {family} ended: {text}")
        case ev.TrainingFailed(family=family, reason=reason):
            last = reason.strip().rsplit("\n", 1)[-1]
            notices.alarm("", f"training for {family} failed: {last}")


def announce_instruction(instruction: Instruction, notices: Notices) -> None:
    """Say what is done about it."""
    match instruction:
        case ev.StopAgent(device_id=name, kill=True):
            notices.say(f"{name}: its agent is ended by force", kind="killed", style="red")
        case ev.Quarantine(device_id=name, job_id=job_id, reason=reason):
            what = f"job {job_id} is quarantined" if job_id else "quarantined"
            notices.alarm(name, f"{what}: {reason}")
        case ev.StartTraining(family=family, reasons=reasons):
            notices.say(f"training for {family}: {'; '.join(one.text or one.kind for one in reasons)}")


__all__ = ["announce_event", "announce_instruction", "announce_message"]
