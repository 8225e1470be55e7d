"""One life of one device's agent: does what it is asked with the device's worker, and says what came of it.

Run by `agent_host.py`, which brings the requests and keeps the messages. It knows neither of Ray nor of
threads, beyond which of its methods another thread may call.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agents.device.messages import (
    Acknowledge,
    Activity,
    AgentRefused,
    AgentRequest,
    AgentUp,
    Asked,
    BeginAgent,
    Conclude,
    Concluded,
    Described,
    Failed,
    Heartbeat,
    ListWorkloads,
    Measure,
    Message,
    MorePending,
    Proposed,
    ProposeRequest,
    Results,
    WorkloadsListed,
)
from agents.errors import AgentError, SpoolError, WorkerStartError
from agents.programs.canaries import is_same_roofline
from agents.records import Descriptor, LeaseTag

if TYPE_CHECKING:
    from agents.device.replay import Worker

#: Records of earlier lives in one message.
_PENDING_PART = 256


class Agent:
    """One life of a device's agent, on the host of this name; `post` takes its messages, in order.

    An `AgentError` of `open_worker`, which makes the device's worker, refuses the device.
    """

    def __init__(
        self,
        start: BeginAgent,
        open_worker: Callable[[BeginAgent], Worker],
        host: str,
        post: Callable[[Agent, Message], None],
    ) -> None:
        self.device_id, self.incarnation = start.device_id, start.incarnation
        #: Leases that were asked for and are not done, in order. The host guards it.
        self.held: list[LeaseTag] = []
        #: Whether it begins no further part of a batch. The host sets it.
        self.is_concluding = False
        #: Leases that it left unfinished for that.
        self._unfinished: list[LeaseTag] = []
        #: Nothing of it is told any more. The host sets it.
        self.is_over = False
        self._start, self._open_worker, self._host, self._post = start, open_worker, host, post
        self._worker: Worker | None = None
        #: The descriptor that was told last.
        self._sent_descriptor: Descriptor | None = None
        #: `finished` of the worker when the running lease began; None while there is none.
        self._base: int | None = None
        #: Whether it is doing what was asked; a lease that waits behind that must not run out.
        self._is_doing = False

    @property
    def is_up(self) -> bool:
        """Whether it said that its device may be used, and was not closed since."""
        return self._worker is not None

    def open(self) -> None:
        """Make the worker, and tell what its spool holds; or tell why not."""
        worker = None
        try:
            worker = self._open_worker(self._start)
            pending = worker.pending_tagged()
            some = tuple(islice(pending, _PENDING_PART))
            has_more = len(some) == _PENDING_PART
            environment_id = worker.environment_id(self._start.protocol)
            self._sent_descriptor = worker.descriptor_in(environment_id)
            self._tell(
                AgentUp,
                descriptor=self._sent_descriptor,
                environment_id=environment_id,
                pid=os.getpid(),
                host=self._host,
                pending=some,
                has_more=has_more,
            )
            self._worker = worker  # from now on it has heartbeats
            while has_more:
                some = tuple(islice(pending, _PENDING_PART))
                has_more = len(some) == _PENDING_PART
                self._tell(MorePending, pending=some, is_last=not has_more)
        except Exception as error:
            self._worker = None
            if worker is not None:
                worker.close()
            self._tell(AgentRefused, reason=_one_line(error))

    def do(self, request: AgentRequest) -> None:
        """Do what is asked; a failure is told and changes nothing else."""
        worker = self._worker
        if worker is None:
            return
        what, lease = Asked.ACKNOWLEDGE, None
        self._is_doing = True
        try:
            match request:
                case Measure() if self.is_concluding:
                    self._unfinished.append(request.lease.tag)
                case Conclude():
                    leases, self._unfinished = tuple(self._unfinished), []
                    self._tell(Concluded, leases=leases)
                case Measure():
                    what, lease = Asked.MEASURE, request.lease.tag
                    self._measure(worker, request)
                case ListWorkloads():
                    what = Asked.WORKLOADS
                    workloads = tuple(worker.network_workloads(list(request.networks)))
                    self._tell(WorkloadsListed, networks=request.networks, workloads=workloads)
                case Acknowledge():
                    worker.acknowledge(list(request.record_ids))
        except Exception as error:
            self._failed(what, error, lease=lease)
        finally:
            self._base, self._is_doing = None, False

    def draw(self, requests: Iterable[ProposeRequest | None]) -> None:
        """Make candidates for wishes side by side; what fails of them is told of each by itself."""
        if (worker := self._worker) is None:
            return
        unanswered: list[ProposeRequest] = []

        def track() -> Iterator[ProposeRequest | None]:
            for request in requests:
                if request is not None:
                    unanswered.append(request)
                yield request

        self._is_doing = True
        try:
            with closing(worker.draw(track())) as drawn:
                for request, answer in drawn:
                    unanswered.remove(request)
                    if isinstance(answer, AgentError):
                        self._failed(Asked.PROPOSE, answer, request_id=request.request_id)
                        continue
                    self._tell(
                        Proposed,
                        # The asker knows which candidates it excluded; they may be thousands.
                        request=replace(request, exclude=frozenset()),
                        candidates=answer.candidates,
                        refused=answer.refused,
                    )
                    if self.is_over:
                        return
        except Exception as error:
            for request in unanswered:
                self._failed(Asked.PROPOSE, error, request_id=request.request_id)
        finally:
            self._is_doing = False

    def _failed(
        self, what: Asked, error: Exception, *, lease: LeaseTag | None = None, request_id: str = ""
    ) -> None:
        self._tell(
            Failed,
            what=what,
            error=_one_line(error),
            lease=lease,
            request_id=request_id,
            is_blameless=isinstance(error, WorkerStartError | SpoolError),
        )

    def _tell(self, kind: type[Message], **fields: Any) -> None:
        self._post(self, kind(device_id=self.device_id, incarnation=self.incarnation, **fields))

    def heartbeat(self, is_host_idle: bool | None = None) -> Heartbeat:
        """Say what it is doing; called by another thread than the others."""
        worker, base = self._worker, self._base
        busy, finished = Activity.IDLE, 0
        if worker is not None:
            finished = worker.finished
            if self._is_doing:
                # Between two stages no process is at work; the request is.
                busy = worker.busy if worker.busy is not Activity.IDLE else Activity.BUILDING
        return Heartbeat(
            device_id=self.device_id,
            incarnation=self.incarnation,
            held=tuple(self.held),
            done=0 if base is None else finished - base,
            busy=busy,
            is_host_idle=is_host_idle if self._start.fleet_pids is not None else None,
        )

    def close(self) -> None:
        """End its worker; what nobody acknowledged stays in the spool."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _measure(self, worker: Worker, request: Measure) -> None:
        self._base = worker.finished
        parts = worker.measure_parts(request.batch, request.lease.tag)
        for part in parts:
            self._describe(worker.descriptor_in(worker.environment_id(request.batch.protocol)))
            self._tell(
                Results,
                lease=request.lease.tag,
                records=part.records,
                device_secs=part.device_secs,
                is_last=part.is_last,
            )
            if self.is_concluding and not part.is_last:
                parts.close()
                self._unfinished.append(request.lease.tag)
                return

    def _describe(self, descriptor: Descriptor) -> None:
        """Tell what the device is, once its canaries said more of it than was told."""
        if self._sent_descriptor is None or not is_same_roofline(
            descriptor.roofline, self._sent_descriptor.roofline
        ):
            self._sent_descriptor = descriptor
            self._tell(Described, descriptor=descriptor)


def _one_line(error: Exception) -> str:
    """What to tell of an error; the place of one that is no refusal goes to stderr."""
    if not isinstance(error, AgentError):
        traceback.print_exception(error)
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, AgentError) else f"{type(error).__name__}: {text}"
