"""Canaries of one device: when they are due, what they say, which candidates to measure again.

Called by `worker.py`. It keeps the drift monitor beside the spool, so that a restarted agent still knows how
fast its device was. What counts as drift is for `quality.py`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from agents.errors import AgentError
from agents.files import write_durably
from agents.programs.canaries import Canary
from agents.programs.quality import Drift, DriftMonitor
from agents.records import (
    REMEASURE,
    REPEATS,
    Candidate,
    CandidateId,
    Outcome,
    Protocol,
    Record,
    Workload,
    WorkloadId,
)
from agents.sandbox.job import CandidateJob, JobResult

_LOG = logging.getLogger(__name__)

#: How canaries are timed: quickly, all alike.
CANARY_PROTOCOL = Protocol(
    repeat=3,
    extra_repeats=0,
    min_repeat_ms=5.0,
    visits=1,
    early_stop_ratio=0.0,
    check_share=0.0,
    reject_interval=0.0,
)
#: A reading older than this says nothing about the batch that begins now.
_FRESH_SECS = 60.0
#: Front-runners of each workload that are measured again after a drifting window, and at most in all:
#: the best decide what is chosen, and the rest of the window is marked.
_MOST_FRONT_RUNNERS = 3
_MOST_AGAIN = 24
#: Slower ones than this, over the best of a drifting window, are no front-runners.
_FRONT_RUNNER_RATIO = 1.2
#: Attempts between a record and the second measurement that an agent makes of its candidate, at most: one is
#: that of a front-runner right after its window, the next that after a drifting window, whenever it comes.
MOST_AHEAD = 2
_FILE = "canaries.json"
#: Name of the gate's probe among the canaries.
PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Again:
    """A candidate of a batch, or one that is to be measured once more: its number decides what is chosen."""

    candidate: Candidate
    workload: Workload
    attempt: int


def front_runners(
    records: Sequence[Record],
    workloads: Mapping[WorkloadId, Workload],
    *,
    within: float,
    origin: str,
    ahead: int = 1,
    best_secs: Mapping[str, float] = MappingProxyType({}),
) -> list[Again]:
    """The candidates that decide what is chosen: the fastest of each workload and those near it.

    Args:
        records: Of one window. A/A runs and second measurements have their own numbering of attempts, and
            their own next turn, so they are no front-runners.
        workloads: Every workload that the records name.
        within: How much slower than the best a front-runner may be, as a fraction.
        origin: Of the measurements to come.
        ahead: How many attempts after the one of the record.
        best_secs: Best latency by workload before this window; the window's own best counts where missing.

    Returns:
        At most three of each workload, to be measured with that attempt.
    """
    ok = [r for r in records if r.origin not in REPEATS and r.outcome is Outcome.OK]
    leaders: dict[str, list[Record]] = {}
    for record in sorted(ok, key=lambda record: record.latency_secs):
        led = leaders.setdefault(record.workload_id, [])
        first = led[0].latency_secs if led else record.latency_secs
        limit = (1 + within) * min(first, best_secs.get(record.workload_id, first))
        if record.latency_secs <= limit and len(led) < _MOST_FRONT_RUNNERS:
            led.append(record)
    return [
        Again(
            Candidate(
                workload_id=record.workload_id, trace=record.trace, dialect=record.dialect, origin=origin
            ),
            workloads[record.workload_id],
            record.attempt + ahead,
        )
        for led in leaders.values()
        for record in led
    ]


def unmeasured(again: Sequence[Again], measured: set[tuple[CandidateId, int]]) -> list[Again]:
    """Leave out what would be the same measurement twice: an id names one (candidate, attempt) of a device.

    The most important come first; what is new is added to `measured`, the measurements made or planned.
    """
    fresh = []
    for repeat in again:
        measurement = (repeat.candidate.candidate_id, repeat.attempt)
        if measurement not in measured:
            measured.add(measurement)
            fresh.append(repeat)
    return fresh


def kept_monitor(folder: Path, environment_id: str) -> DriftMonitor:
    """The drift monitor that was kept beside a spool; a fresh one where there is none of the environment."""
    path = folder / _FILE
    try:
        value = json.loads(path.read_text())
        if value["environment_id"] == environment_id:
            return DriftMonitor.from_json(value["monitor"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AgentError) as error:
        _LOG.warning("%s is not readable (%s); the canaries' usual speed is learned afresh", path, error)
    return DriftMonitor()


class CanaryWatch:
    """Tells steady windows from drifting ones, in one environment; its monitor is kept in `folder`."""

    def __init__(self, folder: Path, canaries: Sequence[Canary], environment_id: str) -> None:
        self._path = folder / _FILE
        self._canaries = tuple(canaries)
        self._environment_id = environment_id
        self._monitor = kept_monitor(folder, environment_id)
        self._last = Drift(suspect=False, ratios={}, which=())
        self._read_at = -float("inf")
        self._again: dict[str, Again] = {}

    def is_due(self) -> bool:
        """Whether nobody knows how the device does right now."""
        return time.monotonic() - self._read_at > _FRESH_SECS

    def jobs(self) -> list[CandidateJob]:
        """One set of readings."""
        return [
            CandidateJob(
                candidate=canary.candidate, workload=canary.workload, protocol=CANARY_PROTOCOL, is_canary=True
            )
            for canary in self._canaries
        ]

    def read(self, results: Sequence[JobResult]) -> Drift:
        """Take in the results of `jobs`; the window since the last reading is judged by both of them.

        A canary that failed says nothing; one that fails always would show as a device without readings.
        """
        readings = {
            canary.name: min(result.run_secs)
            for canary, result in zip(self._canaries, results, strict=True)
            if result.outcome is Outcome.OK
        }
        if probes := [result.probe_secs for result in results if result.probe_secs]:
            readings[PROBE] = min(probes)
        failed = [result.error for result in results if result.outcome is not Outcome.OK]
        if failed:
            _LOG.warning("a canary program failed: %s", failed[0])
        before, now = self._last, self._last
        if readings:
            now = self._monitor.observe(readings)
            if now.adopted:
                _LOG.warning("%s run at a new speed for good; it is the baseline now", ", ".join(now.adopted))
            self._save()
        self._last, self._read_at = now, time.monotonic()
        return replace(now, suspect=now.suspect or before.suspect)

    def usual_secs(self) -> dict[str, float]:
        """Usual seconds of each canary by name; empty before the first reading."""
        return self._monitor.usual_secs()

    def remember(self, records: Sequence[Record], workloads: Mapping[WorkloadId, Workload]) -> None:
        """Note the front-runners of a drifting window, to be measured again.

        The attempt before is that of a second measurement right after the window.
        """
        within = _FRONT_RUNNER_RATIO - 1
        for repeat in front_runners(records, workloads, within=within, origin=REMEASURE, ahead=MOST_AHEAD):
            if len(self._again) < _MOST_AGAIN:
                self._again[repeat.candidate.candidate_id] = repeat

    def take_again(self) -> list[Again]:
        """Hand over what is to be measured again, once."""
        repeats = list(self._again.values())
        self._again.clear()
        return repeats

    def _save(self) -> None:
        value = {"environment_id": self._environment_id, "monitor": self._monitor.to_json()}
        try:
            write_durably(self._path, json.dumps(value).encode())
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._path, error.strerror)
