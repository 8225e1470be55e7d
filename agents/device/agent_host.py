"""The agents of one process: requests in, messages out, and heartbeats that no measurement holds up.

`ray_actors.py` puts an `AgentHost` on Ray with one device in it, or with many replay devices;
`fleet.transport.local` runs one as it is. Requests are done one after the other, by one thread. Another
thread fetches the messages, and with them the heartbeats: a timing of a minute does not hold them up, but a
process that is stopped sends none. It decides nothing: what is late, and who is started again, is the
coordinator's.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from agents.device.agent import Agent
from agents.device.messages import (
    Acknowledge,
    AgentGone,
    AgentRefused,
    AgentRequest,
    AgentUp,
    BeginAgent,
    Conclude,
    Concluded,
    Failed,
    Measure,
    Message,
    MorePending,
    Propose,
    ProposeRequest,
    Results,
    Stop,
)
from agents.host.host_load import HostLoad
from agents.records import DeviceId

if TYPE_CHECKING:
    from agents.device.replay import Worker

#: Records that wait to be fetched before the thread that makes more has to wait too.
MOST_WAITING = 8192


class AgentHost:
    """The agents of one process.

    Args:
        open_worker: As of `Agent`.
        host: Name of this host, for `AgentUp`.
        heartbeat_secs: How often every agent that is up says that it is alive.
        most_waiting: Records that may wait to be fetched before the making of more has to wait.

    `ask`, `take` and `close` may be called by any thread, `work` and `serve` by one.
    """

    def __init__(
        self,
        open_worker: Callable[[BeginAgent], Worker],
        *,
        host: str = "",
        heartbeat_secs: float,
        most_waiting: float = MOST_WAITING,
    ) -> None:
        self._open_worker, self._host = open_worker, host
        self._heartbeat_secs, self._most_waiting = heartbeat_secs, most_waiting
        self._changed = threading.Condition()
        self._agents: dict[tuple[DeviceId, int], Agent] = {}
        self._requests: deque[tuple[Agent, AgentRequest]] = deque()
        self._messages: list[Message] = []
        #: Records in the messages.
        self._waiting = 0
        self._next_heartbeat = time.monotonic() + heartbeat_secs
        self._last_answer: tuple[int, list[Message]] = (0, [])
        #: Looked at where a device asks for it.
        self._load: HostLoad | None = None
        self._is_closed = False

    def ask(self, requests: list[AgentRequest]) -> None:
        """Take requests; they are done in this order. Those to an agent that is not here are dropped."""
        with self._changed:
            for request in requests:
                key = (request.device_id, request.incarnation)
                if isinstance(request, BeginAgent):
                    self._agents[key] = Agent(request, self._open_worker, self._host, self._post)
                    if request.fleet_pids is not None and self._load is None:
                        self._load = HostLoad((os.getppid(), *request.fleet_pids))
                if (agent := self._agents.get(key)) is None:
                    continue
                if isinstance(request, Measure):
                    agent.held.append(request.lease.tag)
                if isinstance(request, Conclude):
                    agent.is_concluding = True  # before what is done is over
                if isinstance(request, Stop) and request.kill:
                    self._end(agent, "it was told to stop at once")
                self._requests.append((agent, request))
            self._changed.notify_all()

    def take(self, confirmed: int, timeout_secs: float) -> tuple[int, list[Message]]:
        """Fetch messages and heartbeats in the order of making, with the number of this answer.

        Waits for the first of them. An answer that was lost is given again: `confirmed` is the number of the
        last that arrived, 0 before the first.
        """
        deadline = time.monotonic() + timeout_secs
        with self._changed:
            number, messages = self._last_answer
            if confirmed != number:
                return number, messages
            while not self._messages and not self._is_closed:
                wait = min(deadline, self._next_heartbeat) - time.monotonic()
                if wait <= 0:
                    break
                self._changed.wait(wait)
            messages, self._messages, self._waiting = self._messages, [], 0
            now = time.monotonic()
            if now >= self._next_heartbeat:
                self._next_heartbeat = now + self._heartbeat_secs
                is_idle = self._load.is_idle if self._load is not None else None
                messages += [agent.heartbeat(is_idle) for agent in self._agents.values() if agent.is_up]
            self._last_answer = (number + 1, messages)
            self._changed.notify_all()
            return self._last_answer

    def work(self, timeout_secs: float = 0.0) -> bool:
        """Do the next request; false if there was none in the time."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._is_closed, timeout_secs)
            if not self._requests:
                return False
            agent, request = self._requests.popleft()
        if isinstance(request, Stop):
            agent.close()
            with self._changed:
                self._end(agent, "it was told to stop")
        elif not agent.is_over:
            if isinstance(request, BeginAgent):
                agent.open()
            elif isinstance(request, Propose):
                agent.draw(self._propose_requests(agent, request))
            else:
                agent.do(request)
        return True

    def _propose_requests(self, agent: Agent, first: Propose) -> Iterator[ProposeRequest | None]:
        """A wish and those that come behind it, as far as nothing else waits; None while none is there."""
        yield first.wish
        while not self._is_closed and not agent.is_over:
            with self._changed:
                if not self._requests:
                    request = None
                elif (head := self._requests[0])[0] is agent and isinstance(head[1], Propose):
                    request = head[1].wish
                    self._requests.popleft()
                else:
                    return
            yield request

    def serve(self) -> None:
        """Do requests until the host is closed, then close the workers; the body of the working thread."""
        while not self._is_closed:
            self.work(60.0)
        self.close_workers()

    def close(self) -> None:
        """Let `serve` end after the request that it is doing, and do of the others only what must be."""
        with self._changed:
            self._is_closed = True
            # What the store has must not come out of the spool again. An agent that was told to stop at once
            # is known no more, but its worker still has the spool.
            self._requests = deque(
                (agent, request)
                for agent, request in self._requests
                if isinstance(request, Acknowledge) or (isinstance(request, Stop) and request.kill)
            )
            self._changed.notify_all()

    def close_workers(self) -> None:
        """Take the last acknowledgements, then close every worker; for the thread that works."""
        while self._is_closed and self.work():
            pass
        for agent in list(self._agents.values()):
            agent.close()

    def _post(self, agent: Agent, message: Message) -> None:
        """Queue a message of an agent; wait while too many records are in the queue."""
        size = 0
        if isinstance(message, Results):
            size = len(message.records)
        elif isinstance(message, AgentUp | MorePending):
            size = len(message.pending)
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting < self._most_waiting or self._is_closed or agent.is_over
            )
            if agent.is_over:
                return
            if isinstance(message, AgentRefused):
                self._end(agent, message=message)
                return
            match message:
                case Failed(lease=lease) | Results(lease=lease, is_last=True) if lease in agent.held:
                    agent.held.remove(lease)
                case Concluded(leases=leases):
                    agent.held = [held for held in agent.held if held not in leases]
            self._messages.append(message)
            self._waiting += size
            self._changed.notify_all()

    def _end(self, agent: Agent, reason: str = "", *, message: Message | None = None) -> None:
        """Post the last message of an agent, once. The caller holds the lock."""
        if agent.is_over:
            return
        agent.is_over = True
        name = (agent.device_id, agent.incarnation)
        del self._agents[name]
        if message is None:
            message = AgentGone(device_id=name[0], incarnation=name[1], reason=reason, was_asked=True)
        self._messages.append(message)
        self._changed.notify_all()
