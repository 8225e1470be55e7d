"""What a worker process and its parent agree on: what it must know first, and what it may be doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agents.records import Protocol


class WorkerStage(StrEnum):
    """What a worker process is doing; the parent's time-outs hang on it."""

    STARTING = "starting"
    IDLE = "idle"
    REFERENCE = "running the unscheduled program"
    WAITING = "waiting"
    BUILDING = "building"
    TIMING = "timing"
    CHECKING = "checking"
    #: Timing programs of earlier jobs once more.
    RETIMING = "retiming"


#: Stages in which the candidate itself is at work; elsewhere a death is not its doing.
AT_WORK = frozenset({WorkerStage.BUILDING, WorkerStage.TIMING, WorkerStage.CHECKING})
#: Stages in which programs of candidates run, now or from earlier jobs: memory and threads are looked at.
WATCHED = AT_WORK | {WorkerStage.RETIMING}
#: A job is dropped as lost when the device does not come free for this long.
LOCK_TIMEOUT_SECS = 600.0
#: The unscheduled program is run once, slowly; programs too large for that are never checked.
REFERENCE_TIMEOUT_SECS = 120.0


def limit_of(stage: WorkerStage, protocol: Protocol) -> float:
    """Seconds that a stage of a job may take."""
    limits = {
        WorkerStage.REFERENCE: REFERENCE_TIMEOUT_SECS,
        WorkerStage.BUILDING: protocol.build_timeout_secs,
        WorkerStage.TIMING: protocol.run_timeout_secs,
        WorkerStage.CHECKING: protocol.run_timeout_secs,
    }
    return limits.get(stage, LOCK_TIMEOUT_SECS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What a worker process must know before its first job."""

    #: TVM target of the device, as a dictionary.
    target: dict[str, Any]
    #: TVM device name (`cpu`, `cuda`) and index.
    device: str
    index: int
    timing_cores: tuple[int, ...]
    build_cores: tuple[int, ...]
    #: The timing lock of the device; empty where it is exclusive by other means.
    lock_path: str
    #: Through which the timing cores are lent to builders; empty where they are not.
    slot_path: str = ""
    threads: int = 1
    #: RPC tracker and key; empty for a device of this host.
    tracker: str = ""
    key: str = ""
    #: Entries of the environment of records that replace this host's own.
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def builds_where_it_times(self) -> bool:
        """Whether this process may build only while it holds the timing lock."""
        return bool(self.lock_path and set(self.build_cores) & set(self.timing_cores))

    @property
    def gpu_index(self) -> int | None:
        """Ordinal of the CUDA device of this host, if it is one."""
        return self.index if self.device == "cuda" and not self.tracker else None
