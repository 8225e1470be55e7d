"""The process of a refresh, seen from outside: its request, its output, how often it was tried, its end.

Called by `fleet.refresh.refresher`. It knows files and processes, nothing of models.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.device.device_cores import quiet_cores
from agents.host.child_process import ChildProcess, discard_folder
from agents.host.probe import core_groups
from agents.records import DeviceKind, DeviceSpec
from fleet.durable import write_durably
from fleet.errors import FleetError
from fleet.refresh.process import DONE, STOPPED, TOO_FEW
from fleet.refresh.request import (
    EPOCHS,
    PLAN,
    REQUEST,
    RefreshRequest,
    count_tried,
    request_from_json,
    request_text,
    tried,
    warm_epochs,
)
from transfer.train import CURVES_NAME

_LOG = logging.getLogger(__name__)

_MODULE = "fleet.refresh.process"
#: Times that one request is tried again after its process was killed.
ATTEMPTS = 3
#: After which a process that was asked to end is killed.
_GRACE_SECS = 1.0
#: After which a killed process is given up: it hangs in the kernel.
_KILL_SECS = 5.0
#: Niceness of what nobody waits for.
_LAST = 19


class RefreshChild:
    """A process at work on a request, which is written to its folder.

    Raises:
        OSError: There is no room, or no process to be had.
    """

    def __init__(self, request: RefreshRequest) -> None:
        self.request = request
        #: Why it was ended by force; empty if it was not.
        self._ended_for = ""
        self._folder = Path(request.folder)
        before = _read(self._folder)
        if before is None or before.request_id != request.request_id:
            discard_folder(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / REQUEST
        write_durably(path, request_text(request).encode())
        count_tried(self._folder, 1)
        try:
            self._process = ChildProcess(
                [_MODULE, str(path)],
                self._folder,
                variables={"OMP_NUM_THREADS": "1"},
                cores=request.cores,
                nice=request.nice,
            )
        except OSError:
            count_tried(self._folder, -1)  # it is no fault of the request
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def was_given_up(self) -> bool:
        """Whether it was ended for a fault of its own: the same request would only come to the same."""
        return bool(self._ended_for)

    @property
    def wants_records(self) -> bool:
        """Whether it ended because there is too little to learn from yet."""
        return self._process.poll() == TOO_FEW

    def give_up(self, reason: str) -> None:
        """End it and what it started at once, because the request cannot be done."""
        self._ended_for = reason
        self._process.end()

    def end_if_late(self, ran_secs: float, deadline_secs: float) -> None:
        """Give it up where it ran for longer than its deadline; `poll` tells once it has ended."""
        if ran_secs > deadline_secs and not self.was_given_up:
            self.give_up(
                f"it was not done after {deadline_secs:,.0f} s, its deadline (daemon.training_deadline_secs)"
            )

    def stop(self) -> None:
        """Ask it to end, and return at once; it is killed if it does not."""
        self._process.end(_GRACE_SECS)

    def close(self, timeout_secs: float = _GRACE_SECS) -> None:
        """End it in order if it does so in the time, else by force, and wait for that."""
        self._process.end(timeout_secs)
        if not self._process.wait(timeout_secs + _KILL_SECS):
            _LOG.warning("process %d of a refresh hangs in the kernel, and is left to it", self.pid)

    def answer(self) -> dict[str, Any] | None:
        """The line of JSON that it ended with, if it did."""
        if self._process.poll() != DONE:
            return None
        try:
            value = json.loads(self._process.answer())
        except ValueError:
            return None
        return value if isinstance(value, dict) and "kind" in value else None

    def epochs(self) -> dict[str, Any]:
        """How far the training is: epochs `done` and `of` how many at most, `left_secs`, a `finding`.

        Empty before the first epoch has ended.
        """
        try:
            plan = json.loads((self._folder / PLAN).read_text())
            curves = (self._folder / EPOCHS).glob(f"*/{CURVES_NAME}")
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

    def failure(self) -> str:
        """How it ended, with the end of its standard error."""
        was_stopped = self._process.poll() == STOPPED
        how = self._ended_for or ("its process was stopped" if was_stopped else self._process.how_it_ended())
        tail = self._process.stderr_tail()
        if self.wants_records and tail:
            return tail
        return f"{how}: {tail}" if tail else how

    def forget(self) -> None:
        """Drop what was kept of the request: the next one begins anew."""
        # What cannot be deleted, as on a disk that became read-only, is gone on with: its run is known then.
        with suppress(OSError):
            (self._folder / REQUEST).unlink(missing_ok=True)
        self._process.discard()

    def forget_if_hopeless(self) -> None:
        """Drop a request that failed or was given up, or was killed so often that it may be why."""
        code = self._process.poll()
        was_ended = code is not None and (code < 0 or code == STOPPED)
        if self.was_given_up or not was_ended or tried(self._folder) >= ATTEMPTS:
            self.forget()


class StrategyScorer:
    """Keeps leave-one-device-out scores ready, in a process that gives way to everybody.

    One family at a time; trainings and looks go on beside it. `request` makes the one for a family
    (`fleet.refresh.device_scores`). What takes longer than `deadline_secs` on `clock` is ended: a hung
    process would keep every family from being scored.
    """

    def __init__(
        self, request: Callable[[str], RefreshRequest], *, deadline_secs: float, clock: Callable[[], float]
    ) -> None:
        self._request = request
        self._deadline_secs, self._clock = deadline_secs, clock
        self._since = 0.0
        self._child: RefreshChild | None = None
        self._due_families: dict[str, None] = {}

    @property
    def family(self) -> str:
        """The family that it is at work for; empty while it rests."""
        return "" if self._child is None else self._child.request.family

    def want(self, family: str) -> None:
        """Have the scores of a family made again where its records have grown much."""
        self._due_families[family] = None

    def poll(self, *, may_start: bool) -> None:
        """Look after the process, and start the next; what failed is not tried again before it is wanted."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._child = None
            if child.answer() is None:
                _LOG.warning("leave-one-device-out scores of %s: %s", child.request.family, child.failure())
            child.forget()
        elif child is not None:
            child.end_if_late(self._clock() - self._since, self._deadline_secs)
        if self._child is not None or not self._due_families or not may_start:
            return
        family = next(iter(self._due_families))
        del self._due_families[family]
        try:
            self._child = RefreshChild(replace(self._request(family), nice=_LAST))
            self._since = self._clock()
        except OSError as error:
            _LOG.warning("leave-one-device-out scores of %s: %s", family, error)

    def close(self) -> None:
        """End the process; its scores are made from the beginning the next time."""
        child, self._child = self._child, None
        if child is not None:
            child.close()


def unfinished(folder: Path) -> RefreshRequest | None:
    """The request that an earlier process left in a folder, to go on with."""
    return _read(folder) if tried(folder) < ATTEMPTS else None


def _read(folder: Path) -> RefreshRequest | None:
    try:
        return request_from_json((folder / REQUEST).read_text())
    except (OSError, FleetError):
        return None


def refresh_cores(specs: Iterable[DeviceSpec]) -> tuple[int, ...]:
    """Logical CPUs of this process on which a refresh disturbs no timing of the fleet's devices."""
    timing = {core for spec in specs if spec.kind is DeviceKind.LOCAL for core in spec.cores}
    return quiet_cores(sorted(timing), sorted(os.sched_getaffinity(0)), core_groups())
