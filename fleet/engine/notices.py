"""What people should know of a running daemon: one line an event of importance, now and then a summary.

`fleet.engine.coordinator` tells it; the API shows its alarms. It prints and remembers, and knows no state.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.text import Text

from agents.device.messages import AgentGone, AgentRefused, AgentUp, Failed, Message
from agents.records import DeviceId, Record
from fleet.core import events as ev
from fleet.core.events import Event, Instruction

#: Alarms that are remembered.
_ALARMS = 100
#: Seconds between two summaries.
SUMMARY_SECS = 60.0
#: Lines of one kind in one summary's time; more are counted only.
_MOST_OF_KIND = 8
#: Records whose share of suspect ones decides, and the shares at which a drift is told and is over.
_WINDOW = 128
_DRIFTING, _STEADY = 0.5, 0.2
#: Styles of lines that somebody should read.
_WARNINGS = frozenset({"red", "yellow"})


class Notices:
    """Prints lines, and keeps alarms.

    Args:
        console: Where to print; None prints nothing.
        is_quiet: Print warnings only.
        clock: Gives seconds for the time between two summaries.
        wall: Gives Unix seconds, for stamps.

    Attributes:
        past: The last alarms about what happened, oldest first: at, device_id, text, kind.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        is_quiet: bool = False,
    ) -> None:
        self._is_quiet = is_quiet
        self._console, self._clock, self._wall = console, clock, wall
        self.past: deque[dict[str, Any]] = deque(maxlen=_ALARMS)
        #: Alarms about what is so until it is mended.
        self._held: dict[str, dict[str, Any]] = {}
        self._kinds: Counter[str] = Counter()
        self._summary_at = clock() + SUMMARY_SECS
        self._records_before: dict[str, int] = {}

    def log(self, text: str, *, kind: str = "", style: str = "") -> None:
        """Print one line; one that cannot be written is left out, and ends nothing.

        Args:
            text: The line.
            kind: Lines of one kind are counted instead of printed when there are many of them.
            style: How rich shows it in a terminal.
        """
        if self._is_quiet and style not in _WARNINGS:
            return
        if kind:
            self._kinds[kind] += 1
            if self._kinds[kind] > _MOST_OF_KIND:
                return
        if self._console is not None:
            at = time.strftime("%H:%M:%S", time.localtime(self._wall()))
            line = Text(f"{at} ", style="dim").append(text, style=style or "default")
            try:
                self._console.print(line, soft_wrap=True)
            except OSError:
                # A log beside the store has no room when the store has none. What rich could not write it
                # would keep, and write again before every later line.
                with suppress(OSError), self._console.capture():
                    pass

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """All alarms to be shown: what happened, then what is to be mended."""
        return [*self.past, *self._held.values()]

    def alarm(self, device_id: str, text: str, kind: str = "note") -> None:
        """Print a line and remember it as an alarm; its kind is what programs tell alarms apart by."""
        self.past.append(self._sounded(device_id, text, kind))

    def hold_alarm(self, key: str, device_id: str, text: str, kind: str = "note") -> None:
        """Print a line and show it as an alarm until `drop_alarm` is told the same key."""
        self._held[key] = self._sounded(device_id, text, kind)

    def drop_alarm(self, key: str) -> None:
        """Say that it is mended."""
        if self._held.pop(key, None) is not None:
            self.log(f"{key} is in order again")

    def _sounded(self, device_id: str, text: str, kind: str) -> dict[str, Any]:
        self.log(f"{device_id}: {text}" if device_id else text, kind="alarm", style="yellow")
        return {"at": self._wall(), "device_id": device_id, "text": text, "kind": kind}

    def summarize(self, view: Mapping[str, Any]) -> None:
        """Print what came since the last summary, if it is time for one."""
        now = self._clock()
        if now < self._summary_at:
            return
        self._summary_at = now + SUMMARY_SECS
        for kind, count in self._kinds.items():
            if count > _MOST_OF_KIND:
                self.log(f"... and {count - _MOST_OF_KIND} more lines like the last {kind} line")
        self._kinds.clear()
        devices: Mapping[str, Mapping[str, Any]] = view["devices"]
        new = {
            device_id: device["records"] - self._records_before.get(device_id, device["records"])
            for device_id, device in devices.items()
        }
        self._records_before = {device_id: device["records"] for device_id, device in devices.items()}
        states = Counter(device["state"] for device in devices.values())
        jobs = view["jobs"]
        said = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        self.log(
            f"{view['store']['records']} records (+{sum(new.values())}); devices: {said}; jobs: "
            f"{jobs['leased']} leased, {jobs['queued']} queued, {jobs['done']} done"
        )


class Steadiness:
    """Tells from the records whether a device drifts: when most of the last ones are suspect.

    Args:
        drifting: Devices that drifted when an earlier coordinator ended.
    """

    def __init__(self, drifting: Iterable[DeviceId] = ()) -> None:
        self._last: dict[DeviceId, deque[bool]] = {}
        self._drifting = set(drifting)

    def add(self, device_id: DeviceId, records: Sequence[Record]) -> str:
        """Take in new records of a device.

        Returns:
            What to say: that it drifts now, or no longer; mostly nothing.
        """
        last = self._last.setdefault(device_id, deque(maxlen=_WINDOW))
        last.extend(record.is_suspect for record in records)
        if len(last) < _WINDOW:
            return ""
        share = sum(last) / _WINDOW
        if device_id not in self._drifting and share >= _DRIFTING:
            self._drifting.add(device_id)
            share_text = f"{share:.0%} of the last {_WINDOW} records"
            return f"drifts: {share_text} are suspect; `fleet doctor` looks for the cause"
        if device_id in self._drifting and share <= _STEADY:
            self._drifting.discard(device_id)
            return "is steady again"
        return ""

    def is_drifting(self, device_id: DeviceId) -> bool:
        """Whether most of a device's last records are suspect."""
        return device_id in self._drifting


def announce_message(message: Message, notices: Notices) -> None:
    """Say what an agent has to tell of itself."""
    name = message.device_id
    match message:
        case AgentUp(host=host, pending=pending):
            leftovers = f"; {len(pending)} records of an earlier life came with it" if pending else ""
            notices.log(f"{name}: up on {host or 'its host'}{leftovers}", kind="up", style="green")
        case AgentRefused(reason=reason):
            notices.log(f"{name}: refused: {reason}", kind="refused", style="red")
        case AgentGone(reason=reason, was_asked=False):
            notices.log(f"{name}: its agent ended: {reason}", kind="gone", style="red")
        case Failed(what=what, error=error):
            notices.log(f"{name}: {what} failed: {error}", kind=f"failed {what}", style="red")


def announce_event(event: Event, notices: Notices) -> None:
    """Say what happened in the fleet."""
    match event:
        case ev.JobCancelled(device_id=name, job_id=job_id, reason=reason):
            notices.log(f"{name}: job {job_id} is cancelled: {reason}", kind="cancelled")
        case ev.ResultArrivedLate(device_id=name, count=count):
            notices.log(f"{name}: {count} late results were kept apart", kind="late", style="yellow")
        case ev.DriftAlarm(device_id=name, text=text):
            notices.alarm(name, text, "drift")
        case ev.ModelPublished(version=version, device_ids=names):
            notices.log(f"{version} serves {', '.join(names)}", style="green")
        case ev.ModelRolledBack(version=version, device_id=name, reason=reason):
            notices.alarm(name, f"goes back to {version or 'no model'}: {reason}", "rollback")
        case ev.RequestSubmitted(request=request):
            notices.log(f"request {request.request_id}: {request.kind}", kind="request")
        case ev.RequestCancelled(request_id=request_id, reason=reason):
            notices.log(f"request {request_id}: {reason}", kind="request")
        case ev.TrainingFinished(family=family, text=text):
            notices.log(f"training for {family} ended: {text}")
        case ev.TrainingFailed(family=family, reason=reason, wants_records=True):
            notices.log(f"training for {family} waits for records: {reason}")
        case ev.TrainingFailed(family=family, reason=reason):
            last = reason.strip().rsplit("\n", 1)[-1]
            notices.alarm("", f"training for {family} failed: {last}", "training")


def announce_instruction(instruction: Instruction, notices: Notices) -> None:
    """Say what is done about it."""
    match instruction:
        case ev.StopAgent(device_id=name, kill=True):
            notices.log(f"{name}: its agent is ended by force", kind="killed", style="red")
        case ev.Quarantine(device_id=name, job_id=job_id, reason=reason):
            what = f"job {job_id} is quarantined" if job_id else "quarantined"
            notices.alarm(name, f"{what}: {reason}", "quarantine")
        case ev.StartTraining(family=family, reasons=reasons):
            notices.log(
                f"training for {family}: {'; '.join(reason.text or reason.kind for reason in reasons)}"
            )
