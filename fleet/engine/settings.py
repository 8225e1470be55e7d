"""What a coordinator is told: how to time, what to measure, when each device may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agents.records import DeviceId, Protocol
from fleet.core.events import DevicePolicy
from fleet.core.limits import Limits
from fleet.core.scheduling import EXPLORATION
from fleet.planner.workload_choice import WorkloadChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Plain values; `fleet.daemon.daemon` makes them of the configuration."""

    #: The fleet's protocol, which a device may change for itself.
    protocol: Protocol
    choice: WorkloadChoice
    #: When devices may be used that are not named among the policies.
    policy: DevicePolicy = field(default_factory=DevicePolicy)
    policies: Mapping[DeviceId, DevicePolicy] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    #: Candidates of the daily A/A run of a device; 0 for none.
    noise: int = 0
    #: Share of the candidates that close no gap that is random.
    exploration: float = EXPLORATION
    seed: int = 0
    #: Families whose first head is one of the model that comes with the program.
    first_heads: frozenset[str] = frozenset()
    #: Plan for every device once, and no more.
    once: bool = False
    #: Least seconds between two rounds of upkeep of the store.
    upkeep_secs: float = 3600.0

    def policy_of(self, device_id: DeviceId) -> DevicePolicy:
        """When a device may be used."""
        return self.policies.get(device_id, self.policy)
