"""Rows of the store as arrays, and from there into the matrix: what of each record it wants to know.

Only `fleet.coverage.coverage` calls it. A `Record` each would take minutes for millions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import NOISE, CandidateId, DeviceId, Outcome, WorkloadId
from fleet.coverage.candidate_index import ID_BYTES
from fleet.coverage.matrix import BEST, Matrix, PlaceBits, Row, Space
from fleet.store.delta.ids import keys_of_column
from fleet.store.noise_columns import numbers, says

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
#: Rows that are taken in at once: numbering the new candidates of a workload takes as long for a million as
#: for one. Some 60 MB.
_ROWS_AT_ONCE = 262_144
#: Below so many places, bits are set one by one.
_FEW = 50


def take_rows(
    matrix: Matrix,
    families: Mapping[DeviceId, str],
    wanted: Collection[WorkloadId],
    batches: Iterable[tuple[DeviceId, pa.RecordBatch]],
) -> None:
    """Take in records by their columns.

    Args:
        matrix: Gets them.
        families: Family of each device; records of others are passed over.
        wanted: Workloads; records of others are passed over.
        batches: Rows of a device with `COLUMNS`, in the order in which candidates are to be numbered.
    """
    names = pa.array(sorted(wanted), pa.string())
    waiting: list[tuple[DeviceId, pa.RecordBatch]] = []
    rows = 0
    for device_id, batch in batches:
        if device_id not in families:
            continue
        waiting.append((device_id, batch))
        rows += batch.num_rows
        if rows >= _ROWS_AT_ONCE:
            _take(matrix, families, names, waiting)
            waiting, rows = [], 0
    if waiting:
        _take(matrix, families, names, waiting)


def _take(
    matrix: Matrix,
    families: Mapping[DeviceId, str],
    names: pa.Array,
    batches: list[tuple[DeviceId, pa.RecordBatch]],
) -> None:
    table = pa.Table.from_batches([batch for _, batch in batches])
    devices = list(dict.fromkeys(device_id for device_id, _ in batches))
    number_of = {one: number for number, one in enumerate(devices)}
    device = np.repeat(
        [number_of[device_id] for device_id, _ in batches], [batch.num_rows for _, batch in batches]
    )
    is_wanted = pc.is_in(table.column("workload_id"), names)
    device, table = device[is_wanted.to_numpy()], table.filter(is_wanted)
    if not table.num_rows:
        return
    rows = _Rows(table)
    groups = sorted({families[one] for one in devices})
    family = np.array([groups.index(families[one]) for one in devices])[device]
    for code, of_workload in _groups(rows.workload * len(groups) + family):
        workload_id, group = rows.workloads[code // len(groups)], groups[code % len(groups)]
        space = matrix.space(group, workload_id)
        done = of_workload[~rows.lost[of_workload]]
        places = np.full(len(rows.lost), -1, dtype=np.int64)
        places[done] = space.index.add(rows.candidates[done])
        space.quarantine(map(rows.id_at, of_workload[rows.quarantined[of_workload]].tolist()))
        of_device = device[of_workload] * len(rows.environments) + rows.environment[of_workload]
        for other, some in _groups(of_device):
            device_id = devices[other // len(rows.environments)]
            row = matrix.row(device_id, rows.environments[other % len(rows.environments)])
            chosen = of_workload[some]
            _take_group(row, workload_id, space, rows, chosen, places)
            if rows.ok[chosen].any():
                space.leaders[device_id] = None


def _take_group(
    row: Row,
    workload_id: WorkloadId,
    space: Space,
    rows: _Rows,
    chosen: NDArray[np.int64],
    places: NDArray[np.int64],
) -> None:
    """Take in rows of one workload, device and environment."""
    row.records += len(chosen)
    done = chosen[~rows.lost[chosen]]
    if len(done) >= _FEW:
        row.mark(workload_id, space, np.unique(places[done]), PlaceBits.set_many)
    elif len(done):
        row.mark(workload_id, space, places[done].tolist(), PlaceBits.set_few)
    for one in done.tolist() if row.lost else ():
        row.close_gap(workload_id, rows.id_at(one))
    for one in chosen[rows.lost[chosen]].tolist():
        row.lose(workload_id, space, rows.id_at(one), int(rows.attempts[one]))
    timed = chosen[rows.ok[chosen]]
    for one in timed[np.argsort(rows.secs[timed], kind="stable")].tolist():
        best = row.best.get(workload_id, [])
        if len(best) == BEST and rows.secs[one] > best[-1][0]:
            break  # they come in their order, so none behind it is among the best
        row.keep_best(workload_id, float(rows.secs[one]), rows.id_at(one))
    noise = chosen[rows.noise[chosen]]
    if len(noise):
        row.noise_at = max(row.noise_at, float(rows.times[noise].max()))


class _Rows:
    """Some rows: numbers for texts, flags for what only matters as such.

    Args:
        table: Rows with `COLUMNS`, at least one.

    Attributes:
        workloads, environments: Texts by number.
        workload, environment: (n,) numbers.
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
        workloads = columns["workload_id"].dictionary_encode()
        environments = columns["environment_id"].dictionary_encode()
        self.workloads = [WorkloadId(one) for one in workloads.dictionary.to_pylist()]
        self.environments: list[str] = environments.dictionary.to_pylist()
        self.workload, self.environment = numbers(workloads.indices), numbers(environments.indices)
        self.candidates = np.frombuffer(keys_of_column(columns["candidate_id"]), dtype=f"S{ID_BYTES}")
        self.attempts = numbers(columns["attempt"])
        self.secs: NDArray[np.float64] = columns["latency_secs"].to_numpy(zero_copy_only=False)
        self.times: NDArray[np.float64] = columns["measured_at"].to_numpy(zero_copy_only=False)
        is_steady = ~says(columns["quality"], "suspect")
        self.lost = _bools(pc.equal(columns["outcome"], str(Outcome.LOST)))
        self.quarantined = says(columns["quality"], "quarantined")
        self.ok = _bools(pc.equal(columns["outcome"], str(Outcome.OK))) & is_steady
        self.noise = _bools(pc.equal(columns["origin"], NOISE)) & (self.attempts % 2 == 0) & ~self.lost

    def id_at(self, row: int) -> CandidateId:
        """Candidate of a row."""
        return CandidateId(self.candidates[row : row + 1].tobytes().hex())


def _groups(codes: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each code and where it stands, in order."""
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for part in np.split(order, ends):
        yield int(codes[part[0]]), part


def _bools(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)
