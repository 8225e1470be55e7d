"""What measuring twice tells: how much a device's numbers vary, and which record of a candidate counts. Pure.

Called by whoever reads records for a dataset, a report or the status. It reads records in any order, from
one device or many, and knows neither the store nor how a second measurement came about. For rows of the
store that are no records yet there is `readings`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import CONFIRM, NOISE, REPEATS, CandidateId, DeviceId, Outcome, Record, has_flag
from fleet.errors import StoreError

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
    noise = {attempt: timed for attempt, timed in attempts.items() if timed.is_noise}
    return [
        (earlier, noise[attempt + 1])
        for attempt, earlier in noise.items()
        if attempt % 2 == 1 and attempt + 1 in noise
    ]


# The same, and what the flags of a record tell, worked out on columns of the store. Pure.
#
# Called by whoever reads a whole store: status, training and export. A record costs some 12 microseconds to
# make, a row of columns less than one.

#: Columns that `settled_rows` needs.
SETTLING_COLUMNS = ("candidate_id", "environment_id", "outcome", "origin", "attempt", "quality")
#: Columns that `present_rows` needs.
PRESENT_COLUMNS = (*SETTLING_COLUMNS, "measured_at")
#: Columns that `readings` needs.
READING_COLUMNS = (*SETTLING_COLUMNS, "run_secs", "measured_at")

#: Outcomes that tell of the device, not of the candidate.
SAYS_NOTHING = (Outcome.LOST.value, Outcome.REJECTED.value)
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def flag_column(quality: pa.Array, key: str) -> NDArray[np.bool_]:
    """Whether each quality has a flag, as `Record.is_suspect` and its like say. Each text is parsed once.

    Args:
        quality: (n,) JSON objects, without nulls.
        key: The flag's name, such as `suspect`.
    """
    distinct = quality.dictionary_encode()
    flags = np.array([has_flag(text, key) for text in distinct.dictionary.to_pylist()], dtype=np.bool_)
    return flags[numbers(distinct.indices)]


def settled_rows(batches: Iterable[pa.RecordBatch]) -> NDArray[np.bool_]:
    """Mark the rows that `fleet.store.noise.settled` would choose.

    Args:
        batches: Rows of one device with `SETTLING_COLUMNS`. Some 60 bytes are kept for each.

    Returns:
        (n,) True for one row a candidate and environment.
    """
    candidates: list[pa.Array] = []
    environments: list[pa.Array] = []
    attempts: list[NDArray[np.int64]] = []
    grades: list[NDArray[np.int8]] = []
    for batch in batches:
        candidates.append(batch.column("candidate_id"))
        environments.append(batch.column("environment_id").dictionary_encode())
        attempts.append(numbers(batch.column("attempt")))
        grades.append(_grades(batch))
    if not candidates:
        return np.zeros(0, dtype=np.bool_)
    candidate, _ = _codes(candidates)
    environment, number = _codes(environments)
    key = candidate * number + environment
    # The last key of `lexsort` counts most; rows that are equal in all stay in their order.
    return _first_of_each(key, np.lexsort((np.concatenate(attempts), np.concatenate(grades), key)))


def present_rows(batches: Iterable[pa.RecordBatch]) -> NDArray[np.bool_]:
    """Mark of each candidate the row that counts now: a settled one, of the environment last measured in.

    A model should follow the driver and compiler of today, and learn from older ones what nobody measured
    again. An environment in which a candidate was only lost or rejected says nothing of it.

    Args:
        batches: Rows of one device with `PRESENT_COLUMNS`. Some 100 bytes are kept for each.

    Returns:
        (n,) True for one row a candidate.
    """
    candidates: list[pa.Array] = []
    environments: list[pa.Array] = []
    measured_at: list[NDArray[np.float64]] = []
    silent: list[NDArray[np.int64]] = []

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            candidates.append(batch.column("candidate_id"))
            environments.append(batch.column("environment_id").dictionary_encode())
            measured_at.append(batch.column("measured_at").to_numpy())
            silent.append(numbers(pc.is_in(batch.column("outcome"), pa.array(SAYS_NOTHING))))
            yield batch

    settled = settled_rows(noted())
    if not len(settled):
        return settled
    environment, number = _codes(environments)
    if number == 1:
        return settled
    last = np.full(number, -np.inf)
    np.maximum.at(last, environment, np.concatenate(measured_at))
    candidate, _ = _codes(candidates)
    rows = np.flatnonzero(settled)
    keys = (-last[environment[rows]], np.concatenate(silent)[rows], candidate[rows])
    return _first_of_each(candidate, rows[np.lexsort(keys)])


def _first_of_each(key: NDArray[np.int64], order: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark in (n,) keys the first row of each key, of rows in an order in which equal keys are neighbours."""
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = np.diff(key[order]) != 0
    chosen = np.zeros(len(key), dtype=np.bool_)
    chosen[order[is_first]] = True
    return chosen


def _codes(parts: list[pa.Array]) -> tuple[NDArray[np.int64], int]:
    """A number for each text, and how many there are."""
    encoded = pa.chunked_array(parts).dictionary_encode().combine_chunks()
    return numbers(encoded.indices), len(encoded.dictionary)


def numbers(column: pa.Array) -> NDArray[np.int64]:
    """A column of whole numbers or truths, without nulls."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _grades(batch: pa.RecordBatch) -> NDArray[np.int8]:
    """`fleet.store.noise.grade` of each row, worked out once for each combination that there is."""
    outcomes = batch.column("outcome").dictionary_encode()
    outcome_values = [outcome_of(text) for text in outcomes.dictionary.to_pylist()]
    both = (False, True)
    table = np.array(
        [
            grade(outcome, is_suspect=suspect, is_second=second)
            for outcome in outcome_values
            for suspect in both
            for second in both
        ],
        dtype=np.int8,
    ).reshape(len(outcome_values), 2, 2)
    is_suspect = flag_column(batch.column("quality"), "suspect")
    is_second = pc.is_in(batch.column("origin"), pa.array(sorted(REPEATS)))
    return table[numbers(outcomes.indices), is_suspect.astype(np.int64), numbers(is_second)]


def readings(device_id: DeviceId, batch: pa.RecordBatch) -> Iterator[Reading]:
    """What `fleet.store.noise.noise_floor` reads of some rows of one device, in their order."""
    columns = (
        batch.column("candidate_id").to_pylist(),
        batch.column("environment_id").to_pylist(),
        map(outcome_of, batch.column("outcome").to_pylist()),
        batch.column("origin").to_pylist(),
        batch.column("attempt").to_pylist(),
        map(tuple, batch.column("run_secs").to_pylist()),
        batch.column("measured_at").to_pylist(),
        flag_column(batch.column("quality"), "suspect").tolist(),
        flag_column(batch.column("quality"), "stopped_early").tolist(),
    )
    for values in zip(*columns, strict=True):
        yield Reading(device_id, *values)


def outcome_of(text: str) -> Outcome:
    """The outcome in a column.

    Raises:
        StoreError: There is no such outcome.
    """
    outcome = _OUTCOMES.get(text)
    if outcome is None:
        raise StoreError(f"a record has the outcome {text!r}; known: {', '.join(_OUTCOMES)}")
    return outcome
