"""The process of a training or a look, seen from the coordinator: its request, how far it is, its answer.

It knows files and processes, nothing of models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agents.device.device_cores import quiet_cores
from agents.files import write_durably
from agents.host.child_process import ChildProcess, discard_folder
from agents.host.probe import core_groups
from agents.records import DeviceKind, DeviceSpec
from fleet.models.training import EPOCHS
from fleet.refresh.request import (
    PLAN,
    REQUEST,
    RefreshRequest,
    read_request,
    warm_epochs,
)
from transfer.train import CURVES_NAME

_MODULE = "fleet.refresh.process"
#: After which a killed process is given up: it hangs in the kernel.
_KILL_SECS = 5.0


class RefreshChild(ChildProcess):
    """A process at work on a request, which is written to its folder.

    Raises:
        OSError: There is no room, or no process to be had.
    """

    def __init__(self, request: RefreshRequest, deadline_secs: float) -> None:
        self.request = request
        folder = Path(request.folder)
        before = unfinished(folder)
        if before is None or before.request_id != request.request_id:
            discard_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / REQUEST
        write_durably(path, msgspec.json.encode(request))
        super().__init__(
            [_MODULE, str(path)],
            folder,
            variables={"OMP_NUM_THREADS": "1"},
            cores=request.cores,
            nice=request.nice,
            deadline_secs=deadline_secs,
        )

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it before its deadline, at which the same request would come to the same."""
        return not self.was_late and (self.poll() or 0) < 0

    def close(self) -> None:
        """Kill it, and wait for that; what is on the disk stays for the same request."""
        self.end()
        self.wait(_KILL_SECS)

    def outcome(self) -> dict[str, Any] | None:
        """The line of JSON that it ended with, if it did."""
        if self.poll() != 0:
            return None
        try:
            value = json.loads(self.answer())
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def epochs(self) -> dict[str, Any]:
        """How far the training is: epochs `done` and `of` how many at most, `left_secs`, a `finding`.

        Empty before the first epoch has ended.
        """
        try:
            folder = Path(self.request.folder)
            plan = json.loads((folder / PLAN).read_text())
            curves = (folder / EPOCHS).glob(f"*/{CURVES_NAME}")
            newest = max(curves, key=lambda path: path.stat().st_mtime)
            reports = [json.loads(line) for line in newest.read_text().splitlines()]
        except (OSError, ValueError):  # not there yet, or half written
            return {}
        if not reports:
            return {}
        done, of = len(reports), self.request.epochs
        of = warm_epochs(of) if plan["base"] else of
        secs = sum(report["seconds"] for report in reports) / done
        finding = f"epoch {done} of at most {of}, loss {reports[-1]['train_loss']:.4g}"
        return {"done": done, "of": of, "left_secs": secs * (of - done), "finding": finding}

    def forget(self) -> None:
        """Drop what was kept of the request: the next one begins anew."""
        # What cannot be deleted, as on a disk that became read-only, is gone on with: its run is known then.
        with suppress(OSError):
            (Path(self.request.folder) / REQUEST).unlink(missing_ok=True)
        self.discard()


def unfinished(folder: Path) -> RefreshRequest | None:
    """The request that an earlier process left in a folder, to go on with."""
    try:
        return read_request(folder / REQUEST)
    except (OSError, ValueError):
        return None


def refresh_cores(specs: Iterable[DeviceSpec]) -> tuple[int, ...]:
    """Logical CPUs of this process on which a refresh disturbs no timing of the fleet's devices."""
    timing = {core for spec in specs if spec.kind is DeviceKind.LOCAL for core in spec.cores}
    return quiet_cores(sorted(timing), sorted(os.sched_getaffinity(0)), core_groups())
