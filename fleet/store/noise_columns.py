"""What `fleet.store.noise` and the flags of a record tell, worked out on columns of the store. Pure.

Called by whoever reads a whole store: status, training and export. A record costs some 12 microseconds to
make, a row of columns less than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import REPEATS, DeviceId, Outcome, has_flag
from fleet.errors import StoreError
from fleet.store.noise import Reading, grade

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
