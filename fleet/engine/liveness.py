"""Agents without a lease that say nothing any more: stopped by a signal, or their host is out of reach.

A lease that no heartbeat renews expires, and its agent is ended. An agent without a lease would be taken for
idle for ever, and its answers would be waited for. `fleet.engine.ingest` asks now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agents.device.messages import Message
from agents.records import DeviceId

#: Three heartbeats of a replay device, the slowest of all.
_LEAST_SECS = 30.0


class LivenessMonitor:
    """Notes when each agent was heard last.

    Args:
        most_secs: Longest silence; never less than some heartbeats.
        clock: Seconds in which this process listened (`fleet.engine.fleet_clock`): a pause of its own must
            not pass for a silence of theirs.
    """

    def __init__(self, most_secs: float, clock: Callable[[], float]) -> None:
        self._most_secs, self._clock = max(_LEAST_SECS, most_secs), clock
        self._heard: dict[tuple[DeviceId, int], float] = {}

    def heard(self, message: Message) -> None:
        """Note a sign of life."""
        self._heard[message.device_id, message.incarnation] = self._clock()

    def silent(self, up: Mapping[DeviceId, int]) -> list[tuple[DeviceId, int]]:
        """Those of the agents that are up that were not heard for too long.

        Args:
            up: Which of its lives the agent of each device is in.
        """
        now = self._clock()
        self._heard = {key: self._heard.get(key, now) for key in up.items()}
        return [key for key, at in self._heard.items() if now - at > self._most_secs]
