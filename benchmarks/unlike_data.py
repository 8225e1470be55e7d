"""MIOpen's find databases as a dataset: the data of `benchmarks.unlike`.

Read by the product's own dialect and features. Of the problems a share is taken: whole convolutions with all
types and directions, the same on every GPU. For the backward directions the sizes are in another order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agents.records import CandidateId, Descriptor, DeviceId, DeviceSpec, Workload, WorkloadId
from fleet.interchange.dialects.miopen import read_find_db
from fleet.interchange.logs.catalog import Catalog
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import LogLines, Unreadable
from fleet.interchange.logs.targets import device_from_log
from transfer.arrays import Rows
from transfer.data.dataset import Dataset
from transfer.data.joined_records import MeasuredRow, build_dataset

SUFFIX = ".HIP.fdb.txt.bz2"


class _SampledLines(LogLines):
    """The lines of one convolution in so many."""

    def __init__(self, path: Path, one_in: int) -> None:
        super().__init__(path)
        self._one_in = one_in

    def __iter__(self) -> Iterator[bytes | Unreadable]:
        for line in super().__iter__():
            if isinstance(line, bytes) and convolution_of(line) % self._one_in == 0:
                yield line


def convolution_of(line: bytes) -> int:
    """A number for the sizes of a key, the same for all types and directions."""
    sizes = line.partition(b"=")[0].rsplit(b"-", 2)[0]
    return zlib.crc32(b"-".join(sorted(sizes.split(b"-"))))


@dataclass(frozen=True, slots=True, eq=False)
class FindData:
    """Problems of the databases, joined by problem and solver.

    Legend: N candidates, W problems.
    """

    dataset: Dataset
    #: (N,) place of the solver's name in `solvers`.
    solver: Rows
    solvers: tuple[str, ...]
    #: (W,) place of direction and type together, within which solvers are alike.
    kind: Rows
    #: (W,) convolution that the problem is a direction and type of.
    convolution: Rows


def read_databases(folder: Path, one_in: int) -> FindData:
    """Read one convolution in `one_in` of every database of a folder."""
    workloads: dict[WorkloadId, Workload] = {}
    devices: dict[DeviceId, tuple[DeviceSpec, Descriptor]] = {}
    traces: dict[CandidateId, str] = {}
    rows: list[MeasuredRow] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        device_id = DeviceId(path.name.removesuffix(SUFFIX))
        catalog = Catalog()
        for entry in read_find_db(_SampledLines(path, one_in), catalog):
            if isinstance(entry, Rejected):
                continue
            if device_id not in devices:
                devices[device_id] = device_from_log(device_id, entry.environment.machine)
            workload = entry.workload.workload
            workloads[workload.workload_id] = workload
            candidate_id = CandidateId(entry.workload.candidate_id(entry.trace))
            traces[candidate_id] = entry.trace
            rows.append(
                MeasuredRow(
                    str(len(rows)),
                    device_id,
                    workload.workload_id,
                    candidate_id,
                    entry.workload.dialect,
                    entry.trace,
                    entry.result.outcome,
                    entry.result.run_secs,
                )
            )
    dataset = build_dataset(rows, workloads, devices)
    names = [traces[candidate_id] for candidate_id in dataset.candidate_ids]
    solvers, solver = np.unique(names, return_inverse=True)
    listed = [workloads[workload_id] for workload_id in dataset.workload_ids]
    keys = [workload.name.rpartition(" ")[2] for workload in listed]
    _, kind = np.unique([f"{one.operator} {one.arg_dtypes[0]}" for one in listed], return_inverse=True)
    convolutions = np.array([convolution_of(key.encode()) for key in keys], dtype=np.int64)
    return FindData(dataset, solver.ravel(), tuple(solvers.tolist()), kind.ravel(), convolutions)
