"""Ends of processes that `ray_transport.py` has seen, until their hosts have said why; nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from agents.device.messages import AgentGone
from fleet.transport.ray_hosts import HostProcess

#: How long another host may take to give the last words of a process; then its end is told without them.
_WORDS_SECS = 1.0


@dataclass(slots=True, kw_only=True)
class _End:
    process: HostProcess
    reason: str
    was_asked: bool
    is_blameless: bool
    is_host_gone: bool
    #: When it is told with what is known.
    due_at: float
    #: Calls to its host that are not over.
    calls: list[Any]


class ProcessEnds:
    """Ends that are not told yet: all hosts are asked at once, however many processes a lost one had.

    Args:
        clock: Seconds in which this side ran.
        is_broken: Whether the Ray of this host broke down, which takes its processes with it.
    """

    def __init__(self, clock: Callable[[], float], is_broken: Callable[[], bool]) -> None:
        self._clock, self._is_broken = clock, is_broken
        self._waiting: list[_End] = []

    def add(
        self, process: HostProcess, reason: str, *, was_asked: bool, is_blameless: bool, is_host_gone: bool
    ) -> None:
        """Note the end of a process, and ask its host for its last words."""
        end = _End(
            process=process,
            reason=reason,
            was_asked=was_asked,
            is_blameless=is_blameless,
            is_host_gone=is_host_gone,
            due_at=self._clock() + _WORDS_SECS,
            calls=process.ask_last_words() if process.keys else [],
        )
        self._waiting.append(end)

    @property
    def calls(self) -> list[Any]:
        """The calls to wait for."""
        return [call for end in self._waiting for call in end.calls]

    @property
    def is_due(self) -> bool:
        """Whether an end can be told now."""
        now = self._clock()
        return any(not end.calls or now > end.due_at for end in self._waiting)

    def poll(self, over: Collection[Any]) -> list[AgentGone]:
        """Return the last messages of agents whose ends are known, or were waited for long enough.

        Args:
            over: Calls that are over.
        """
        for end in self._waiting:
            end.calls = [call for call in end.calls if call not in over]
        now, messages = self._clock(), list[AgentGone]()
        for end in self._waiting:
            if not end.calls or now > end.due_at:
                messages += self._messages(end)
        self._waiting = [end for end in self._waiting if end.process.keys]
        return messages

    def _messages(self, end: _End) -> list[AgentGone]:
        process, is_blameless = end.process, end.is_blameless
        tail = process.stderr_tail() if process.keys else ""
        if process.keys and not end.was_asked and not is_blameless:
            # Our raylet takes its agents with it, and it may be a moment until that is looked for.
            is_blameless = self._is_broken() or process.is_blameless(tail)
        keys = sorted(process.keys)
        process.keys.clear()
        return [
            AgentGone(
                device_id=device_id,
                incarnation=incarnation,
                reason=end.reason,
                stderr_tail=tail,
                was_asked=end.was_asked,
                is_blameless=is_blameless,
                is_host_gone=end.is_host_gone,
            )
            for device_id, incarnation in keys
        ]
