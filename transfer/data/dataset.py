"""Records of many devices joined by candidate: the table that every model trains and is judged on.

Knows nothing of where records are kept, nor of any model.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from agents.records import (
    Candidate,
    CandidateId,
    Descriptor,
    DeviceId,
    DeviceSpec,
    Outcome,
    Record,
    Workload,
    WorkloadId,
)
from transfer.arrays import Floats, Groups, Ints, Mask, Singles
from transfer.data.labels import check_latency, relative_speed
from transfer.errors import DatasetError, TraceError
from transfer.features.block_builder import BlockBuilder
from transfer.features.blocks import FeatureBlock, PublishedLayout
from transfer.features.extractor import DEFAULT_SPEC, Extractor, FeatureSpec
from transfer.features.hardware import hardware_table, hardware_vector


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """N candidates of W workloads, measured on up to D devices."""

    features: FeatureBlock
    spec: FeatureSpec
    #: (N,) the same candidate never appears twice.
    candidate_ids: tuple[CandidateId, ...]
    #: (W,) workloads that `group` points at.
    workload_ids: tuple[WorkloadId, ...]
    #: (N,) index into `workload_ids`.
    group: Groups
    #: (D,) columns of the arrays below.
    device_ids: tuple[DeviceId, ...]
    #: (N, D) seconds of one run, NaN where there is no ok measurement.
    latency_secs: Floats
    #: (N, D) True where the candidate itself failed on the device.
    failed: Mask
    #: (W,) occurrences over all networks.
    weight: Floats
    #: (D, H) hardware vectors.
    hardware: Singles

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.candidate_ids)

    def where(self, is_visible: Mask) -> Dataset:
        """The same candidates, with every measurement taken out that is not among the (N, D) `is_visible`."""
        return replace(
            self,
            latency_secs=np.where(is_visible, self.latency_secs, np.nan),
            failed=self.failed & is_visible,
        )

    def take(self, rows: NDArray[np.integer] | Mask) -> Dataset:
        """The dataset of some rows, in the order given; workloads and devices keep their indexes.

        Args:
            rows: Row indexes, or a (N,) boolean mask.
        """
        index = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        return replace(
            self,
            features=self.features.take(index),
            candidate_ids=tuple(self.candidate_ids[row] for row in index.tolist()),
            group=self.group[index],
            latency_secs=self.latency_secs[index],
            failed=self.failed[index],
        )

    def labels(self, rows: NDArray[np.integer] | Mask | None = None) -> Floats:
        """Relative speeds; the best candidate of each workload among the rows given has 1.

        Args:
            rows: Row indexes or mask; all rows where None.

        Returns:
            (rows, D) labels in (0, 1], NaN where there is no ok measurement.
        """
        latency = self.latency_secs if rows is None else self.latency_secs[rows]
        group = self.group if rows is None else self.group[rows]
        return relative_speed(latency, group, len(self.workload_ids))

    def column(self, device_id: str) -> int:
        """Column of a device.

        Raises:
            DatasetError: The dataset has no such device.
        """
        try:
            return self.device_ids.index(DeviceId(device_id))
        except ValueError:
            names = ", ".join(self.device_ids)
            raise DatasetError(f"the dataset has no device {device_id!r}; it has: {names}") from None

    def rows_of(self, device_id: str) -> Ints:
        """Indexes of the rows with an ok latency on a device."""
        return np.flatnonzero(~np.isnan(self.latency_secs[:, self.column(device_id)]))


# Records of many devices, in any order, joined by candidate as they stream by.
#
# Called by `fleet train`, `fleet eval` and onboarding with the records of one snapshot of the store. Knows
# nothing of where records are kept.

_LOG = logging.getLogger(__name__)

#: Outcomes that tell something about the candidate. A lost or rejected measurement only tells of the device.
_FAILURES = frozenset(
    {
        Outcome.BUILD_FAILED,
        Outcome.BUILD_TIMEOUT,
        Outcome.RUN_FAILED,
        Outcome.RUN_TIMEOUT,
        Outcome.WRONG_OUTPUT,
    }
)


_Name = TypeVar("_Name", WorkloadId, DeviceId)


class MeasuredRow(NamedTuple):
    """What a dataset takes of a record, for who reads columns; the names are those of `Record`."""

    record_id: str
    device_id: DeviceId
    workload_id: WorkloadId
    candidate_id: CandidateId
    dialect: str
    trace: str
    outcome: Outcome
    run_secs: tuple[float, ...]

    @property
    def latency_secs(self) -> float:
        """The fastest repeat of an ok record."""
        return min(self.run_secs)


def build_dataset(
    records: Iterable[Record | MeasuredRow],
    workloads: Mapping[WorkloadId, Workload],
    devices: Mapping[DeviceId, tuple[DeviceSpec, Descriptor]],
    layout: PublishedLayout | None = None,
) -> Dataset:
    """Join records by candidate and extract their features, in one pass over the records.

    Several ok records of one candidate on one device give the median of their latencies. Devices of the
    result are those with at least one record, by name; rows go by workload, then candidate. A candidate
    whose every record was lost or rejected is left out, and so is one whose trace cannot be read: how many
    such there are is logged once. Of the records only the result stays in memory:
    about 0.8 KB a candidate and 20 bytes a record.

    Args:
        records: Records of one snapshot, or what a dataset takes of them, in any order.
        workloads: Every workload that a record names.
        devices: Every device that a record names.
        layout: Of the published features that the block is to hold too; None for none.

    Raises:
        DatasetError: There is no ok record; a record names an unknown workload or device, or its seconds
            are not finite and above 0.
        TransferError: Nobody reads the dialect of a trace.
    """
    joiner = _Joiner(workloads, devices, layout)
    for record in records:
        joiner.add(record)
    dataset = joiner.finish()
    if joiner.unreadable:
        _LOG.warning(
            "%d candidates are left out: their traces cannot be read; the first: %s",
            len(joiner.unreadable),
            next(iter(joiner.unreadable.values())),
        )
    return dataset


class _Joiner:
    """Gathers rows, latencies and failures while records stream in.

    Args:
        workloads: Every workload that a record names.
        devices: Every device that a record names.
        layout: Of the published features that are wanted too; None for none.

    Attributes:
        unreadable: Why, by candidate whose trace cannot be read.
    """

    def __init__(
        self,
        workloads: Mapping[WorkloadId, Workload],
        devices: Mapping[DeviceId, tuple[DeviceSpec, Descriptor]],
        layout: PublishedLayout | None,
    ) -> None:
        self._workloads = workloads
        self._devices = devices
        self._builder = BlockBuilder(Extractor(), layout)
        #: Rows in the order of their first record.
        self._rows: dict[CandidateId, int] = {}
        self._workload_numbers: dict[WorkloadId, int] = {}
        self._group = array("i")
        self._columns: dict[DeviceId, int] = {}
        self._ok = array("q"), array("i"), array("d")
        self._failed = array("q"), array("i")
        self.unreadable: dict[CandidateId, str] = {}
        self._total = 0

    def add(self, record: Record | MeasuredRow) -> None:
        """Take one record.

        Raises:
            DatasetError: It names an unknown workload or device, or its seconds are no latency.
        """
        self._total += 1
        if record.outcome is not Outcome.OK and record.outcome not in _FAILURES:
            return
        row = self._row(record)
        if row is None:
            return
        column = self._column(record)
        if record.outcome is Outcome.OK:
            rows, columns, seconds = self._ok
            rows.append(row)
            columns.append(column)
            seconds.append(_latency(record))
        else:
            self._failed[0].append(row)
            self._failed[1].append(column)

    def _row(self, record: Record | MeasuredRow) -> int | None:
        """Row of the record's candidate; None where its trace cannot be read."""
        row = self._rows.get(record.candidate_id)
        if row is not None:
            return row
        if record.candidate_id in self.unreadable:
            return None
        workload = self._workloads.get(record.workload_id)
        if workload is None:
            raise DatasetError(
                f"record {record.record_id} is of workload {record.workload_id!r}, which is not in the table "
                "of workloads; collect or import that workload again"
            )
        candidate = Candidate(workload_id=record.workload_id, trace=record.trace, dialect=record.dialect)
        try:
            self._builder.add(workload, candidate)
        except TraceError as error:
            # One bad row of a stranger's log must not keep a whole store from being learnt from.
            self.unreadable[record.candidate_id] = str(error)
            return None
        row = self._rows[record.candidate_id] = len(self._rows)
        self._group.append(self._workload_numbers.setdefault(record.workload_id, len(self._workload_numbers)))
        return row

    def _column(self, record: Record | MeasuredRow) -> int:
        column = self._columns.get(record.device_id)
        if column is None:
            if record.device_id not in self._devices:
                names = ", ".join(sorted(self._devices)) or "none"
                raise DatasetError(
                    f"record {record.record_id} is of device {record.device_id!r}, which has no spec and "
                    f"descriptor here (known: {names}); add its YAML or filter its records"
                )
            column = self._columns[record.device_id] = len(self._columns)
        return column

    def finish(self) -> Dataset:
        """What is known of all records taken; the joiner is used up.

        Raises:
            DatasetError: None of them is ok.
        """
        if not self._ok[0]:
            problem = f"none of the {self._total} records is ok" if self._total else "there are no records"
            if self.unreadable:
                problem += f" and can be read (the first that cannot: {next(iter(self.unreadable.values()))})"
            raise DatasetError(f"no dataset: {problem}; run `fleet collect` first")
        device_ids, column_of = _sorted_places(self._columns)
        workload_ids, workload_of = _sorted_places(self._workload_numbers)
        group = workload_of[np.frombuffer(self._group, dtype=np.intc)]
        names = np.array(list(self._rows), dtype=np.bytes_)
        order = np.lexsort((names, group))
        candidate_ids = tuple(CandidateId(name.decode()) for name in names[order].tolist())
        self._rows.clear()
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        latency = np.full((len(order), len(device_ids)), np.nan)
        failed = np.zeros(latency.shape, dtype=np.bool_)
        rows, columns = (np.frombuffer(buffer, dtype=buffer.typecode) for buffer in self._failed)
        failed[place[rows], column_of[columns]] = True
        rows, columns, seconds = (np.frombuffer(buffer, dtype=buffer.typecode) for buffer in self._ok)
        rows, columns, seconds = _medians(place[rows], column_of[columns], seconds)
        latency[rows, columns] = seconds
        # What ran once can run.
        failed[rows, columns] = False
        check_latency(latency)
        described = [self._workloads[workload_id] for workload_id in workload_ids]
        return Dataset(
            features=self._builder.finish(order),
            spec=DEFAULT_SPEC,
            candidate_ids=candidate_ids,
            workload_ids=workload_ids,
            group=group[order].astype(np.int32),
            device_ids=device_ids,
            latency_secs=latency,
            failed=failed,
            weight=np.array([workload.weight for workload in described], dtype=np.float64),
            hardware=hardware_table([hardware_vector(*self._devices[device_id]) for device_id in device_ids]),
        )


def _sorted_places(numbers: Mapping[_Name, int]) -> tuple[tuple[_Name, ...], Ints]:
    """Names in their order, and of each number the place of its name."""
    ordered = tuple(sorted(numbers))
    places = np.empty(len(ordered), dtype=np.int64)
    places[[numbers[name] for name in ordered]] = np.arange(len(ordered))
    return ordered, places


def _medians(rows: NDArray[Any], columns: NDArray[Any], seconds: NDArray[Any]) -> tuple[Ints, Ints, Floats]:
    """The median of the seconds of each (row, column); of an even number the mean of the middle two."""
    order = np.lexsort((seconds, columns, rows))
    rows, columns, seconds = rows[order], columns[order], seconds[order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(rows) != 0) | (np.diff(columns) != 0)]))
    counts = np.diff([*first.tolist(), len(rows)])
    low, high = seconds[first + (counts - 1) // 2], seconds[first + counts // 2]
    return rows[first], columns[first], np.where(counts % 2, high, (low + high) / 2)


def _latency(record: Record | MeasuredRow) -> float:
    """Seconds of an ok record.

    Raises:
        DatasetError: They are missing, or not finite and above 0.
    """
    if not record.run_secs or not all(math.isfinite(secs) and secs > 0 for secs in record.run_secs):
        raise DatasetError(
            f"record {record.record_id} of device {record.device_id!r} is ok but its seconds are "
            f"{list(record.run_secs)}: expected at least one value, all finite and above 0; drop that record"
        )
    return record.latency_secs
