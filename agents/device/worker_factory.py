"""Make the worker of a device from the request that starts its agent. Called by who runs an `AgentHost`."""

from __future__ import annotations

import os
from pathlib import Path

from agents.device.device_cores import agent_cores
from agents.device.messages import BeginAgent
from agents.device.replay import ReplayWorker, open_records
from agents.device.replay_records import ReplayRecords
from agents.device.worker import DeviceWorker
from agents.host.probe import core_groups
from agents.records import DeviceId
from agents.spool.disk_spool import Spool

#: What an agent does its work with.
Worker = DeviceWorker | ReplayWorker

#: A killed agent holds its spool until the kernel has ended it, and its last write.
_SPOOL_WAIT_SECS = 10.0


def open_device(start: BeginAgent) -> Worker:
    """Make the worker of a device that is measured.

    Raises:
        AgentError: As `DeviceWorker`.
    """
    usable = start.usable_cores or tuple(sorted(os.sched_getaffinity(0)))
    return DeviceWorker(
        start.spec,
        Path(start.spool_folder).expanduser(),
        usable_cores=agent_cores(start.spec, start.neighbours or (start.spec,), usable, core_groups()),
        spool_wait_secs=_SPOOL_WAIT_SECS,
    )


class ReplayWorkerFactory:
    """Makes the workers of replay devices; those that replay the same device share its records.

    Args:
        spooled: Whether what they answer waits on the disk, as that of other devices does; else in memory.
    """

    def __init__(self, *, spooled: bool = False) -> None:
        self._spooled = spooled
        #: By path and recorded device.
        self._records: dict[tuple[str, DeviceId] | None, ReplayRecords] = {}

    def open(self, start: BeginAgent) -> Worker:
        """Make the worker of a replay device.

        Raises:
            DeviceRefusedError: As `ReplayWorker`.
            SpoolError: As `Spool`.
        """
        replay = start.spec.replay
        key = None if replay is None else (replay.records, replay.device)
        if key not in self._records:
            self._records[key] = open_records(start.spec)
        spool = None
        if self._spooled:
            spool = Spool(Path(start.spool_folder), lock_timeout_secs=_SPOOL_WAIT_SECS)
        try:
            return ReplayWorker(start.spec, spool=spool, records=self._records[key])
        except BaseException:
            if spool is not None:
                spool.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for records in self._records.values():
            records.close()
        self._records.clear()
