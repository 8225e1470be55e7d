"""Records of many devices joined by candidate: the table that every model trains and is judged on.

Called by `fleet train`, `fleet eval` and onboarding with the records of one snapshot of the store. Knows
nothing of where records are kept, nor of any model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
    median,
)
from transfer.errors import DatasetError
from transfer.features import DEFAULT_SPEC, Extractor, FeatureBlock, FeatureSpec, hardware_vector
from transfer.labels import check_latency, relative_speed

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
    group: NDArray[np.int32]
    #: (D,) columns of the arrays below.
    device_ids: tuple[DeviceId, ...]
    #: (N, D) seconds of one run, NaN where there is no ok measurement.
    latency_secs: NDArray[np.float64]
    #: (N, D) True where the candidate itself failed on the device.
    failed: NDArray[np.bool_]
    #: (W,) floating-point operations of one run.
    flops: NDArray[np.float64]
    #: (W,) occurrences over all networks.
    weight: NDArray[np.float64]
    #: (D, H) hardware vectors.
    hardware: NDArray[np.float32]

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.candidate_ids)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Dataset:
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

    def labels(self, rows: NDArray[np.integer] | NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
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
            known = ", ".join(self.device_ids)
            raise DatasetError(f"the dataset has no device {device_id!r}; it has: {known}") from None

    def rows_of(self, device_id: str) -> NDArray[np.int64]:
        """Indexes of the rows with an ok latency on a device."""
        return np.flatnonzero(~np.isnan(self.latency_secs[:, self.column(device_id)]))


@dataclass(slots=True)
class _Joined:
    """All that is known of one candidate while records stream in."""

    workload_id: WorkloadId
    trace: str
    dialect: str
    latencies: dict[DeviceId, list[float]]
    failed: set[DeviceId]


def build_dataset(
    records: Iterable[Record],
    workloads: Mapping[WorkloadId, Workload],
    devices: Mapping[DeviceId, tuple[DeviceSpec, Descriptor]],
    extractor: Extractor | None = None,
) -> Dataset:
    """Join records by candidate and extract their features.

    Several ok records of one candidate on one device give the median of their latencies. Devices of the
    result are those with at least one record, by name; rows go by workload, then candidate. A candidate
    whose every record was lost or rejected is left out.

    Args:
        records: Records of one snapshot, in any order.
        workloads: Every workload that a record names.
        devices: Every device that a record names.
        extractor: What makes the features; a fresh one of `DEFAULT_SPEC` where None.

    Raises:
        DatasetError: There is no ok record; a record names an unknown workload or device, or its seconds
            are not finite and above 0.
    """
    joined, seen_devices = _join(records, workloads, devices)
    device_ids = tuple(sorted(seen_devices))
    ordered = sorted(joined.items(), key=lambda item: (item[1].workload_id, item[0]))
    workload_ids = tuple(sorted({one.workload_id for _, one in ordered}))
    group_of = {workload_id: index for index, workload_id in enumerate(workload_ids)}
    column_of = {device_id: index for index, device_id in enumerate(device_ids)}
    latency = np.full((len(ordered), len(device_ids)), np.nan)
    failed = np.zeros(latency.shape, dtype=np.bool_)
    for row, (_, one) in enumerate(ordered):
        for device_id, values in one.latencies.items():
            latency[row, column_of[device_id]] = median(values)
        for device_id in one.failed - one.latencies.keys():
            failed[row, column_of[device_id]] = True
    check_latency(latency)
    extractor = extractor or Extractor(spec=DEFAULT_SPEC)
    features = extractor.extract(
        workloads,
        [Candidate(workload_id=one.workload_id, trace=one.trace, dialect=one.dialect) for _, one in ordered],
    )
    return Dataset(
        features=features,
        spec=extractor.spec,
        candidate_ids=tuple(candidate_id for candidate_id, _ in ordered),
        workload_ids=workload_ids,
        group=np.array([group_of[one.workload_id] for _, one in ordered], dtype=np.int32),
        device_ids=device_ids,
        latency_secs=latency,
        failed=failed,
        flops=np.array([workloads[workload_id].flops for workload_id in workload_ids], dtype=np.float64),
        weight=np.array([workloads[workload_id].weight for workload_id in workload_ids], dtype=np.float64),
        hardware=np.stack([hardware_vector(*devices[device_id]) for device_id in device_ids]),
    )


def _join(
    records: Iterable[Record],
    workloads: Mapping[WorkloadId, Workload],
    devices: Mapping[DeviceId, tuple[DeviceSpec, Descriptor]],
) -> tuple[dict[CandidateId, _Joined], set[DeviceId]]:
    """Gather latencies and failures by candidate, and the devices seen."""
    joined: dict[CandidateId, _Joined] = {}
    seen_devices: set[DeviceId] = set()
    total = good = 0
    for record in records:
        total += 1
        if record.outcome is not Outcome.OK and record.outcome not in _FAILURES:
            continue
        if record.device_id not in devices:
            known = ", ".join(sorted(devices)) or "none"
            raise DatasetError(
                f"record {record.record_id} is of device {record.device_id!r}, which has no spec and "
                f"descriptor here (known: {known}); add its YAML or filter its records"
            )
        if record.workload_id not in workloads:
            raise DatasetError(
                f"record {record.record_id} is of workload {record.workload_id!r}, which is not in the table "
                "of workloads; collect or import that workload again"
            )
        one = joined.get(record.candidate_id)
        if one is None:
            one = joined[record.candidate_id] = _Joined(
                record.workload_id, record.trace, record.dialect, {}, set()
            )
        seen_devices.add(record.device_id)
        if record.outcome is Outcome.OK:
            good += 1
            one.latencies.setdefault(record.device_id, []).append(_latency(record))
        else:
            one.failed.add(record.device_id)
    if not good:
        found = f"none of the {total} records is ok" if total else "there are no records"
        raise DatasetError(f"no dataset: {found}; run `fleet collect` first")
    return joined, seen_devices


def _latency(record: Record) -> float:
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
