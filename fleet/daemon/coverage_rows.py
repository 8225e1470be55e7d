"""Rows of the store as arrays, for `fleet.daemon.coverage`: what of each record the matrix wants to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import NOISE, CandidateId, Outcome, WorkloadId
from fleet.daemon.candidate_index import raw_ids
from fleet.store.noise_columns import says

#: Columns that are read of every record at the start.
COLUMNS = (
    "workload_id",
    "candidate_id",
    "environment_id",
    "outcome",
    "origin",
    "attempt",
    "measured_at",
    "latency_secs",
    "quality",
)


class Rows:
    """Some rows of one device.

    Args:
        table: Rows with `COLUMNS`, at least one.

    Attributes:
        candidates: (n,) ids of 16 bytes.
        attempts: (n,).
        secs: (n,) latencies; NaN where there is none.
        times: (n,) Unix seconds.
        lost, quarantined, ok, noise: (n,) flags; `ok` leaves out suspect records, `noise` marks the second
            records of A/A pairs.
    """

    def __init__(self, table: pa.Table) -> None:
        columns = {name: table.column(name).combine_chunks() for name in COLUMNS}
        columns = {name: one.chunk(0) if hasattr(one, "chunk") else one for name, one in columns.items()}
        self._workloads = columns["workload_id"].dictionary_encode()
        self._environments = columns["environment_id"].dictionary_encode()
        self.candidates = raw_ids(_bytes(columns["candidate_id"]))
        self.attempts = _numbers(columns["attempt"])
        self.secs: NDArray[np.float64] = columns["latency_secs"].to_numpy(zero_copy_only=False)
        self.times: NDArray[np.float64] = columns["measured_at"].to_numpy(zero_copy_only=False)
        is_steady = ~says(columns["quality"], "suspect")
        self.lost = _bools(pc.equal(columns["outcome"], str(Outcome.LOST)))
        self.quarantined = says(columns["quality"], "quarantined")
        self.ok = _bools(pc.equal(columns["outcome"], str(Outcome.OK))) & is_steady
        self.noise = _bools(pc.equal(columns["origin"], NOISE)) & (self.attempts % 2 == 0) & ~self.lost

    def groups(self) -> Iterator[tuple[WorkloadId, str, NDArray[np.int64]]]:
        """Yield workload, environment and row numbers of the rows of both."""
        number = len(self._environments.dictionary)
        pair = _numbers(self._workloads.indices) * number + _numbers(self._environments.indices)
        for code in np.unique(pair).tolist():
            workload, environment = divmod(code, number)
            yield (
                WorkloadId(self._workloads.dictionary[workload].as_py()),
                self._environments.dictionary[environment].as_py(),
                np.flatnonzero(pair == code),
            )

    def id_at(self, row: int) -> CandidateId:
        """Candidate of a row."""
        return CandidateId(self.candidates[row : row + 1].tobytes().hex())


def set_few(bits: bytearray, places: Sequence[int]) -> int:
    """As `set_bits`, of places in any order: arrays pay from some fifty on."""
    need = max(places) // 8 + 1
    if len(bits) < need:
        bits.extend(bytes(need - len(bits)))
    new = 0
    for place in places:
        mask = 1 << (place & 7)
        if not bits[place >> 3] & mask:
            bits[place >> 3] |= mask
            new += 1
    return new


def set_bits(bits: bytearray, places: NDArray[np.int64]) -> int:
    """Set bits, growing the row as needed.

    Args:
        bits: One bit a place.
        places: (n,) sorted, without repeats, at least one.

    Returns:
        How many were not set before.
    """
    need = int(places[-1]) // 8 + 1
    if len(bits) < need:
        bits.extend(bytes(need - len(bits)))
    row = np.frombuffer(bits, dtype=np.uint8)
    masks = np.left_shift(1, places & 7).astype(np.uint8)
    new = int(np.count_nonzero((row[places >> 3] & masks) == 0))
    np.bitwise_or.at(row, places >> 3, masks)
    return new


def keep_best(
    best: list[tuple[float, CandidateId]], secs: float, candidate_id: CandidateId, most: int
) -> None:
    """Put a candidate among the fastest ones, fastest first, if it belongs there and is not there yet."""
    if (len(best) == most and best[-1][0] <= secs) or any(one == candidate_id for _, one in best):
        return
    best.append((secs, candidate_id))
    best.sort()
    del best[most:]


def places_of(bits: bytes | bytearray) -> NDArray[np.int64]:
    """Places whose bits are set, in order."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(bytes(bits), dtype=np.uint8), bitorder="little"))


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _bools(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _bytes(column: pa.Array) -> NDArray[np.uint8]:
    """All characters of a column of texts, one after the other."""
    data = column.cast(pa.large_binary())
    _, offsets, content = data.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[data.offset : data.offset + len(data) + 1]
    return np.frombuffer(content, dtype=np.uint8)[bounds[0] : bounds[-1]]


__all__ = ["COLUMNS", "Rows", "keep_best", "places_of", "set_bits", "set_few"]
