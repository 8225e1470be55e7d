"""The section `daemon` of the configuration: how `fleet up` runs, and when each device may be used."""

from __future__ import annotations

from pydantic import Field, field_validator

from fleet.config.base import Names, Section
from fleet.config.day_windows import window_secs


class PolicySection(Section):
    """When one device may be used, and how much of its time; a limit of 0 is none."""

    secs_per_hour: float = Field(default=0.0, ge=0, le=3600)
    secs_per_day: float = Field(default=0.0, ge=0, le=86_400)
    #: Only while nobody else uses the host.
    idle_only: bool = False
    #: Parts of the day in the host's local time, as `22:00-06:30`; empty means at any time.
    windows: Names = ()

    @field_validator("windows")
    @classmethod
    def _readable(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        for window in windows:
            window_secs(window)
        return windows


#: Name of its folder beside the store, unless another one is given.
ROOT_NAME = "fleet"


class DaemonSection(Section):
    """How `fleet up` runs."""

    #: Folder of its own: journal, waiting candidates, late results, token of the API. Beside the store,
    #: unless another one is named.
    root: str = Field(default="runs/fleet", min_length=1)
    #: The policy of every device, and other ones by device id.
    policy: PolicySection = PolicySection()
    policies: dict[str, PolicySection] = Field(default_factory=dict)
    #: A lease that no sign of life renews ends after this; work without a finished candidate after that.
    lease_secs: float = Field(default=60.0, ge=5, le=3600)
    stall_secs: float = Field(default=300.0, ge=10, le=86_400)
    #: A device whose agent failed five times in a row is left alone for this long.
    quarantine_secs: float = Field(default=600.0, ge=1, le=86_400)
    #: Whether models are trained and published.
    refresh: bool = True
    #: Whether all strategies are tried on the known devices in idle time, for those that arrive later.
    score_strategies: bool = True
    #: Candidates that a new device measures for its first head, and a known one in another environment; 0: it
    #: waits for a training.
    arrival_samples: int = Field(default=64, ge=0, le=1_000_000)
    return_samples: int = Field(default=32, ge=0, le=1_000_000)
    #: New records of a family that ask for a training: so many, and at least this share of all of them.
    training_records: int = Field(default=512, ge=1, le=10_000_000)
    training_share: float = Field(default=0.2, ge=0, le=10)
    #: New records of a device before its drift, its environment or the lack of a head ask for one.
    reason_records: int = Field(default=64, ge=1, le=10_000_000)
    #: Least time between two trainings.
    training_pause_secs: float = Field(default=300.0, ge=0, le=7 * 86_400)
    #: A training that takes longer is ended and told as failed; the next waits for new records.
    training_deadline_secs: float = Field(default=6 * 3600.0, ge=60, le=7 * 86_400)
    #: Seconds between two rounds of upkeep of the store.
    upkeep_secs: float = Field(default=3600.0, ge=60, le=7 * 86_400)
    #: Seconds that running batches are waited for when the daemon is stopped.
    stop_secs: float = Field(default=60.0, ge=0, le=3600)
    #: Where the API listens; port 0 takes any free one, and no host switches it off.
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8640, ge=0, le=65_535)


__all__ = ["DaemonSection", "PolicySection"]
