"""What measuring twice tells: how much a device's numbers vary, and which record of a candidate counts. Pure.

Called by whoever reads records for a dataset, a report or the status. It reads records in any order, from
one device or many, and knows neither the store nor how a second measurement came about. For rows of the
store that are no records yet there is `fleet.store.noise_columns`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from agents.records import CONFIRM, NOISE, REPEATS, CandidateId, DeviceId, Outcome, Record

#: Speed-up from which the second of two measurements of one program would pass for a better program.
WIN = 0.03

_Key = tuple[DeviceId, CandidateId, str]


class Reading(NamedTuple):
    """What the noise floor reads of a record, for who has no record; the names are those of `Record`."""

    device_id: DeviceId
    candidate_id: CandidateId
    environment_id: str
    outcome: Outcome
    origin: str
    attempt: int
    run_secs: tuple[float, ...]
    measured_at: float
    is_suspect: bool
    is_stopped_early: bool

    @property
    def latency_secs(self) -> float:
        """The fastest repeat of an ok record."""
        return min(self.run_secs)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """How much two measurements of one program differ when nothing was changed."""

    #: Pairs of measurements that this is made of.
    pairs: int
    #: Median and 90th percentile of |later / earlier - 1|.
    median_change: float
    p90_change: float
    #: Share of the pairs whose later measurement looks more than `WIN` faster.
    false_win_share: float
    #: Unix seconds of the last measurement among them.
    measured_at: float


@dataclass(frozen=True, slots=True)
class _Timed:
    secs: float
    measured_at: float
    is_noise: bool


def noise_floor(records: Iterable[Record | Reading]) -> NoiseFloor | None:
    """Compare measurements of the same candidate on the same device in the same environment.

    Pairs of an A/A run count: records of origin `noise` with the attempts a and a + 1 where a is odd (attempt
    0 is the normal one). Where there are none, each attempt is compared with the next one of its candidate,
    whatever they were made for. Left out are suspect records, which no dataset should use, those that an
    early stop gave one repeat only, leaders that were confirmed at once, and whatever has no latency.

    Args:
        records: Of one device for its own floor; read once. Some hundred bytes are kept for each.

    Returns:
        None where no candidate has two latencies to compare.
    """
    readings: dict[_Key, dict[int, _Timed]] = {}
    for record in records:
        if is_comparable(record):
            secs = record.latency_secs
            reading = _Timed(secs, record.measured_at, record.origin == NOISE)
            readings.setdefault(_key(record), {}).setdefault(record.attempt, reading)
    pairs = [pair for attempts in readings.values() for pair in _aa_pairs(attempts)]
    if not pairs:
        in_order = [[attempts[attempt] for attempt in sorted(attempts)] for attempts in readings.values()]
        pairs = [pair for attempts_of_one in in_order for pair in pairwise(attempts_of_one)]
    if not pairs:
        return None
    changes = sorted(abs(later.secs / earlier.secs - 1) for earlier, later in pairs)
    wins = sum(earlier.secs / later.secs - 1 > WIN for earlier, later in pairs)
    return NoiseFloor(
        pairs=len(pairs),
        median_change=median(changes),
        p90_change=changes[(9 * len(changes) + 9) // 10 - 1],
        false_win_share=wins / len(pairs),
        measured_at=max(max(earlier.measured_at, later.measured_at) for earlier, later in pairs),
    )


def settled(records: Iterable[Record]) -> list[Record]:
    """Choose the record that a dataset should use of each candidate, device and environment.

    A first measurement that can be trusted stands, whatever was measured later: candidates that were picked
    for a second look would otherwise get a steadier latency than the others. It gives way only where it says
    nothing of the candidate: suspect, `rejected` or `lost`. Then the first trusted second measurement
    replaces it, one with a latency before others.

    Args:
        records: In any order; read once. One record a candidate is kept.

    Returns:
        One record a candidate, device and environment, in the order in which these appeared. It may be a
        suspect, rejected or lost one where there is no better.
    """
    best: dict[_Key, tuple[tuple[int, int], Record]] = {}
    for record in records:
        key, rank = _key(record), _rank(record)
        if key not in best or rank < best[key][0]:
            best[key] = rank, record
    return [record for _, record in best.values()]


def _key(record: Record | Reading) -> _Key:
    return record.device_id, record.candidate_id, record.environment_id


def is_comparable(record: Record | Reading) -> bool:
    """Whether a latency may be compared with another one of its candidate to see how far numbers repeat.

    Not one of a drifting window, nor the one repeat of an early stop, nor the second look at a leader of a
    batch: that was chosen for being fast.
    """
    if record.outcome is not Outcome.OK or not record.run_secs:
        return False
    if record.is_suspect or record.is_stopped_early or record.origin == CONFIRM:
        return False
    return 0 < record.latency_secs < math.inf


def _rank(record: Record) -> tuple[int, int]:
    """Order of preference of the records of one candidate, the best first; attempts decide between equals."""
    is_second = record.origin in REPEATS
    return grade(record.outcome, is_suspect=record.is_suspect, is_second=is_second), record.attempt


def grade(outcome: Outcome, *, is_suspect: bool, is_second: bool) -> int:
    """How little a record should count among those of its candidate: the lowest grade is chosen.

    Args:
        outcome: Of the measurement.
        is_suspect: Whether the device was drifting.
        is_second: Whether its origin is one of `REPEATS`.
    """
    if outcome is Outcome.LOST:
        return 6
    if is_suspect:
        return 5
    if outcome is Outcome.REJECTED:
        return 4
    return 2 * is_second + (outcome is not Outcome.OK)


def _aa_pairs(attempts: dict[int, _Timed]) -> list[tuple[_Timed, _Timed]]:
    return [
        (earlier, attempts[attempt + 1])
        for attempt, earlier in attempts.items()
        if attempt % 2 == 1
        and earlier.is_noise
        and attempt + 1 in attempts
        and attempts[attempt + 1].is_noise
    ]
