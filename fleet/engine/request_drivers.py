"""The coordinator's side of the drivers of requests: starts them, hears them, notes their ends.

A driver is a process that decides what is measured for one request, or reads logs for it
(`fleet.drivers.session` is its side). What it asks for is in `fleet.engine.driver_questions`. Nothing here
waits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agents.records import DeviceId
from fleet.core import events as ev
from fleet.core.events import JobState
from fleet.core.words import RequestId
from fleet.drivers.session import ChannelClosedError
from fleet.engine.context import Composition, Driver
from fleet.engine.driver_questions import MALFORMED, DriverQuestions
from fleet.errors import FleetError, StoreFull

#: Times that the driver of a request is started where it ends without a word, or finds no room.
_MOST_STARTS = 3
#: How long drivers that were told to end are waited for at the end of a coordinator, in all.
_END_SECS = 5.0
#: Messages of one driver that are taken up in one turn.
_MOST_MESSAGES = 64


class RequestDrivers:
    """All drivers of a coordinator.

    Attributes:
        questions: What the drivers wait for.
    """

    def __init__(self, parts: Composition) -> None:
        self._parts, self._launch = parts, parts.launch
        self._drivers: dict[RequestId, Driver] = {}
        self._starts: dict[RequestId, int] = {}
        #: Drivers that ended without a word, until it is known how.
        self._silent: dict[RequestId, Driver] = {}
        #: Requests whose drivers found no room to start.
        self._held: list[RequestId] = []
        self.questions = DriverQuestions(parts, self._send)

    @property
    def is_busy(self) -> bool:
        """Whether a driver is at work, who wants its answers soon."""
        return bool(self._drivers or self._silent)

    def start(self, request_id: RequestId) -> None:
        """Start the driver of a request, if it is still open; one that cannot be started ends it.

        On a full disk it is started once there is room.
        """
        request = self._parts.state.open_request(request_id)
        if request is None:
            return  # it was cancelled in the turn in which it came
        try:
            driver = self._launch(request)
        except StoreFull as error:
            self._parts.disk.full(error)
            self._held.append(request_id)
        except (FleetError, OSError) as error:
            self._end(request_id, {}, f"its driver cannot be started: {error}")
        else:
            self._starts[request_id] = self._starts.get(request_id, 0) + 1
            if driver is not None:
                self._drivers[request_id] = driver

    def stop(self, request_id: RequestId) -> None:
        """End the driver of a request that is not wanted any more."""
        self._silent.pop(request_id, None)
        if (driver := self._forget(request_id)) is not None:
            driver.stop()

    def close(self) -> None:
        """End all drivers; their requests go on with the next coordinator."""
        drivers, ends_at = [*self._drivers.values(), *self._silent.values()], time.monotonic() + _END_SECS
        for request_id in list(self._drivers):
            self.stop(request_id)
        self._silent.clear()
        for driver in drivers:
            driver.is_over(max(0.0, ends_at - time.monotonic()))

    def serve(self) -> None:
        """Take up what drivers ask for, and ask agents that have come up."""
        self._cancel_orphans()
        if self._parts.disk.may_try:
            held, self._held = self._held, []
            for request_id in held:
                self.start(request_id)
        for request_id in list(self._drivers):
            self._hear(request_id)
        for request_id, driver in list(self._silent.items()):
            if driver.is_over():
                del self._silent[request_id]
                self._start_again(request_id, driver.failure())
        self.questions.pursue_all()

    def without_jobs_of(self, ended: str) -> None:
        """Let go of the jobs that were cancelled with a request, or with a device that left."""
        queues, state = self._parts.planner.queues, self._parts.state
        for job in list(queues.jobs()):
            if ended in (job.request_id, job.device_id) and state.job_state(job.job_id) is None:
                queues.closed(job.job_id)
                self.questions.job_ended(job.job_id)

    def _hear(self, request_id: RequestId) -> None:
        channel = self._drivers[request_id].channel
        try:
            for _ in range(_MOST_MESSAGES):
                message = channel.get(0)
                if message is None:
                    return
                try:
                    self._take(request_id, message)
                except MALFORMED as error:
                    self.stop(request_id)
                    self._end(request_id, {}, f"its driver says what cannot be understood: {error!r:.200}")
                if request_id not in self._drivers:
                    return
        except ChannelClosedError:
            self._gone(request_id)

    def _take(self, request_id: RequestId, message: Mapping[str, Any]) -> None:
        parts = self._parts
        match message.get("op"):
            case "progress":
                names = ("done", "of", "left_secs", "finding", "is_measuring")
                progress = {name: message[name] for name in names}
                parts.event_log.append(ev.RequestProgressed(request_id=request_id, **progress))
            case "say":
                parts.notices.log(f"{request_id}: {message['text']}")
            case "published" if parts.trainer is not None:
                pass  # who trains sees every change of champions
            case "published":
                device_ids = tuple(map(DeviceId, message["devices"]))
                parts.event_log.append(ev.ModelPublished(version=message["version"], device_ids=device_ids))
            case "end":
                driver = self._forget(request_id)
                self._end(request_id, message["result"], message["reason"])
                if driver is not None:
                    driver.stop()
            case "no_room":
                self._hold(request_id, str(message["text"]))
            case _:
                self.questions.ask(request_id, message)

    def _hold(self, request_id: RequestId, text: str) -> None:
        """Start a driver again that found no room for its own files, once there is some.

        They may be on another disk, or need more than there is: that is tried a few times only.
        """
        self.stop(request_id)
        if self._starts[request_id] < _MOST_STARTS:
            self._parts.disk.full(StoreFull(text))
            self._held.append(request_id)
        else:
            self._end(request_id, {}, text)

    def _gone(self, request_id: RequestId) -> None:
        """A driver ended without a word; how is known once its process is over."""
        driver = self._forget(request_id)
        if driver is not None:
            driver.stop()
            self._silent[request_id] = driver

    def _start_again(self, request_id: RequestId, failure: str) -> None:
        """Start a driver again that ended without a word, or end its request."""
        if self._starts[request_id] < _MOST_STARTS:
            self._parts.notices.log(f"{request_id}: its driver is started again: {failure}", style="red")
            self.start(request_id)
        else:
            self._end(request_id, {}, f"its driver ended {_MOST_STARTS} times; the last time {failure}")

    def _cancel_orphans(self) -> None:
        """Cancel jobs that wait though their request has ended: they were at work then, or just made."""
        parts = self._parts
        jobs = [job for job in parts.planner.queues.jobs() if job.request_id]
        open_ids = {request.request_id for request in parts.state.open_requests()} if jobs else set()
        for job in jobs:
            if job.request_id not in open_ids and parts.state.job_state(job.job_id) is JobState.QUEUED:
                reason = f"request {job.request_id} has ended"
                parts.event_log.append(
                    ev.JobCancelled(device_id=job.device_id, job_id=job.job_id, reason=reason)
                )

    def _send(self, request_id: RequestId, answer: Mapping[str, Any]) -> None:
        driver = self._drivers.get(request_id)
        if driver is not None:
            driver.channel.send(dict(answer))

    def _forget(self, request_id: RequestId) -> Driver | None:
        self.questions.forget(request_id)
        return self._drivers.pop(request_id, None)

    def _end(self, request_id: RequestId, result: Mapping[str, Any], reason: str) -> None:
        self._starts.pop(request_id, None)
        self._parts.event_log.append(
            ev.RequestEnded(request_id=request_id, result=dict(result), reason=reason)
        )
