"""Records of many devices joined by candidate: the table that every model trains and is judged on.

Made of records by `transfer.data.joined_records`. Knows nothing of where records are kept, nor of any model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId, DeviceId, WorkloadId
from transfer.arrays import Floats, Groups, Ints, Mask, Singles
from transfer.data.labels import relative_speed
from transfer.errors import DatasetError
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import FeatureSpec


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
    #: (W,) floating-point operations of one run.
    flops: Floats
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
