"""The processes of agents in Ray: what `ray_transport.py` needs of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents.device.messages import AgentGone, AgentRefused, AgentRequest, Message
from agents.errors import first_line
from agents.host.process_control import (
    ProcessName,
    end_process,
    oom_kills,
    shows_fault,
    stderr_tail,
)
from agents.records import DeviceId
from fleet.transport.host_versions import own_versions, version_refusal
from fleet.transport.ray_cluster import Cluster, Node

_LOG = logging.getLogger(__name__)

#: Pause before a process that could not be reached for a moment is asked again.
_AGAIN_SECS = 0.5
#: How long another host may take to give the last words of a process; then its end is told without them.
_WORDS_SECS = 1.0


class HostProcess:
    """One process that holds agents, as this side sees it.

    Args:
        cluster: Where it runs.
        node: On which host.
        is_shared: Whether it holds many replay devices.
        heartbeat_secs: How often its agents say that they are alive.
        stderr_path: File of its host that gets what it prints.
        resource: Custom resource that it takes; None for none.
        clock: Seconds in which this side ran.

    Attributes:
        keys: The agents that it holds.
        requests: What they are asked with the next `send`.
        call: The call out that fetches messages; None while there is none.
        name: The process, once it has answered.
        began: When it was made, by the clock.
        killed_at: When it was killed, likewise.
        is_host_gone: Whether it ended with its host.
        calls: Calls for its last words that are not over.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: Node,
        *,
        is_shared: bool,
        heartbeat_secs: float,
        stderr_path: str,
        resource: str | None,
        clock: Callable[[], float],
    ) -> None:
        self.keys: set[tuple[DeviceId, int]] = set()
        self.requests: list[AgentRequest] = []
        self.is_shared = is_shared
        self.name: ProcessName | None = None
        self._clock = clock
        self.began = clock()
        self.killed_at: float | None = None
        self._why = ""
        self.is_host_gone = self._lacked_memory = False
        self._has_insisted = False
        self._cluster, self._node, self._stderr_path = cluster, node, stderr_path
        self._heartbeat_secs, self._resource = heartbeat_secs, resource
        self._keeper: Any = None
        self._oom_kills: Any = None
        #: Why it ended, whether that is nobody's fault for sure, and when it is told with what is known.
        self._end_reason, self._is_blameless, self._due_at = "", False, 0.0
        self.calls: list[Any] = []
        self._tail: Any = None
        self._oom_kills_after: Any = None
        #: None until its host is known to have the versions that this side has.
        self._actor: Any = None
        self.call: Any = None
        if cluster.is_own:
            self._begin()
        else:
            self.call = cluster.versions(node.node_id)
        self._again_at = 0.0
        self._taken_count = 0

    @property
    def is_answering(self) -> bool:
        """Whether it has answered, and was not killed."""
        return self.name is not None and self.killed_at is None

    def send(self, take_secs: float) -> None:
        """Hand over the requests, and ask for messages."""
        if self.requests and self._actor is not None and self.killed_at is None:
            self._actor.ask.remote(self.requests)
            self.requests = []
        if self.call is None and self._clock() >= self._again_at:
            self.call = self._actor.take.remote(self._taken_count, take_secs)

    def answer(self) -> tuple[list[Message], str | None]:
        """What the call that is over gave: messages, and why the process ended if it has."""
        import ray

        call, self.call = self.call, None
        try:
            answer = ray.get(call)
        except ray.exceptions.ActorUnavailableError:
            # Out of reach for a moment; an answer that was lost is given again.
            self._again_at = self._clock() + _AGAIN_SECS
            return [], None
        except ray.exceptions.RayActorError as error:
            self.is_host_gone = is_of_host(error)
            self._lacked_memory = "low on memory" in str(error)
            return [], self._why or end_cause(error)
        except ray.exceptions.RayTaskError as error:
            if self._actor is None:
                return [], self._why or f"its host cannot tell its versions: {first_line(error)}"
            self.kill(f"its process failed: {first_line(error)}")  # the next call tells when it is gone
            return [], None
        except ray.exceptions.RayError as error:
            gone = (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError)
            self.is_host_gone = isinstance(error, gone)
            return [], self._why or f"its process could not be started: {first_line(error)}"
        if self._actor is None:
            return self._compare(answer)
        if isinstance(answer, ProcessName):
            self.name = answer
            return [], None
        self._taken_count, messages = answer
        return messages, None

    def kill(self, why: str) -> None:
        """Let Ray end the process; the call out fails when it is gone."""
        import ray

        if self.killed_at is None:
            self.killed_at, self._why = self._clock(), why
            if self._actor is not None:
                ray.kill(self._actor, no_restart=True)
            elif self.call is not None:
                ray.cancel(self.call, force=True)

    def insist(self) -> None:
        """Have the kernel end a killed process that lives: stopped by a signal it does not hear Ray."""
        if self.name is None or self._has_insisted:
            return
        if self._keeper is not None:
            self._keeper.end_process.remote(self.name)
        else:
            try:
                end_process(self.name)
            except OSError as error:
                _LOG.warning("process %d cannot be ended yet: %s", self.name.pid, error)
                return
        self._has_insisted = True

    def close(self) -> Any:
        """Begin to end in order; returns the call to wait for."""
        requests, self.requests = self.requests, []
        return self._actor.close.remote(requests)

    def end(self, reason: str, *, is_blameless: bool) -> None:
        """Note its end, and ask another host for what says why it ended."""
        self._end_reason, self._is_blameless = reason, is_blameless
        self._due_at = self._clock() + _WORDS_SECS
        if self.keys and self._actor is not None and self._keeper is not None:
            self._tail = self._keeper.stderr_tail.remote(self._stderr_path)
            self._oom_kills_after = self._keeper.oom_kills.remote()
            self.calls = [self._tail, self._oom_kills, self._oom_kills_after]

    @property
    def is_end_due(self) -> bool:
        """Whether its end can be told now: all is known of it, or was waited for long enough."""
        return not self.calls or self._clock() > self._due_at

    def last_messages(self, over: Collection[Any]) -> list[Message]:
        """Return the last messages of its agents, once its end is due.

        Args:
            over: Calls that are over.
        """
        self.calls = [call for call in self.calls if call not in over]
        if not self.keys or not self.is_end_due:
            return []
        tail, was_asked, is_blameless = self.stderr_tail(), self.killed_at is not None, self._is_blameless
        if not was_asked and not is_blameless:
            # Our raylet takes its agents with it, and it may be a moment until that is looked for.
            is_blameless = self._cluster.broken() is not None or self.is_blameless(tail)
        messages: list[Message] = [
            AgentGone(
                device_id=device_id,
                incarnation=incarnation,
                reason=self._end_reason,
                stderr_tail=tail,
                was_asked=was_asked,
                is_blameless=is_blameless,
                is_host_gone=self.is_host_gone,
            )
            for device_id, incarnation in sorted(self.keys)
        ]
        self.keys.clear()
        return messages

    def is_blameless(self, tail: str) -> bool:
        """Whether its end came from outside, as far as is known, by the tail of what it printed before.

        Waits for nothing: what another host has not answered is not known.

        A fault of its own makes it print before it goes. What else ends it without a word is SIGKILL: sent by
        somebody, or by the kernel for want of memory, which the kernel counts. Ray does not tell them apart.
        """
        import ray

        if self.is_host_gone:
            return True
        if self._lacked_memory or shows_fault(tail):
            return False
        if self._keeper is None:
            return self._oom_kills is not None and self._oom_kills == oom_kills()
        try:
            before, now = ray.get([self._oom_kills, self._oom_kills_after], timeout=0)
        except ray.exceptions.RayActorError:
            return True  # what ends processes there is gone as well
        except ray.exceptions.RayError:
            return False
        return before is not None and before == now

    def stderr_tail(self) -> str:
        """The end of what it printed; empty if its host has not answered yet.

        The file of a shared process goes with it: each has one of its own.
        """
        import ray

        if self._actor is None:
            return ""
        if self._keeper is None:
            path = Path(self._stderr_path).expanduser()
            tail = stderr_tail(path)
            if self.is_shared:
                with suppress(OSError):
                    path.unlink()
            return tail
        try:
            tail = str(ray.get(self._tail, timeout=0))
        except ray.exceptions.RayError:
            return ""
        return tail

    def _begin(self) -> None:
        """Start the process."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        from agents.device.ray_actors import AgentHostActor

        # Ready before it is needed: on a host that has gone wrong nothing starts any more.
        self._keeper = self._cluster.keeper(self._node.node_id)
        # Processes that the kernel of its host had killed before it began, or the call that asks for them.
        self._oom_kills = oom_kills() if self._keeper is None else self._keeper.oom_kills.remote()
        self._actor = AgentHostActor.options(  # type: ignore[attr-defined]  # added by ray.remote
            scheduling_strategy=On(self._node.node_id, soft=False),
            resources={} if self._resource is None else {self._resource: 1},
        ).remote(self.is_shared, self._heartbeat_secs, self._stderr_path)
        self.call = self._actor.who.remote()

    def _compare(self, theirs: Mapping[str, str]) -> tuple[list[Message], str | None]:
        """Start the process if its host has our versions; else refuse its devices. As `answer`."""
        if self.killed_at is not None:
            return [], self._why
        reason = version_refusal(theirs, own_versions())
        if reason is None:
            self._begin()
            return [], None
        refused: list[Message] = [
            AgentRefused(device_id=device_id, incarnation=incarnation, reason=reason)
            for device_id, incarnation in sorted(self.keys)
        ]
        return refused, reason


def end_cause(error: Exception) -> str:
    """Why an actor ended, in one line, from what Ray says in many."""
    if is_of_host(error):
        return "its host left the cluster"
    return "its process died: " + " ".join(str(error).split())[:300]


def is_of_host(error: Exception) -> bool:
    """Whether an actor ended with its host, by what Ray says."""
    text = str(error).lower()
    return "died" in text and "actor's node" in text
