"""Records of many devices joined by candidate: the table that every model trains and is judged on.

Made of records by `transfer.data.joined_records`. Knows nothing of where records are kept, nor of any model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId, DeviceId, WorkloadId
from transfer.array_folder import read_folder, write_folder
from transfer.data.labels import relative_speed
from transfer.errors import DatasetError
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import FeatureSpec

#: Kind of a saved dataset, and the version of its layout.
_SAVED_AS = "dataset", 1
#: Arrays saved beside those of the features.
_ARRAYS = ("group", "latency_secs", "failed", "flops", "weight", "hardware")


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

    def where(self, is_visible: NDArray[np.bool_]) -> Dataset:
        """The same candidates, with every measurement taken out that is not among the (N, D) `is_visible`."""
        return replace(
            self,
            latency_secs=np.where(is_visible, self.latency_secs, np.nan),
            failed=self.failed & is_visible,
        )

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

    def of_devices(self, device_ids: Iterable[str]) -> Dataset:
        """The same candidates with the measurements of some devices only."""
        columns = [self.column(device_id) for device_id in device_ids]
        return replace(
            self,
            device_ids=tuple(self.device_ids[column] for column in columns),
            latency_secs=self.latency_secs[:, columns],
            failed=self.failed[:, columns],
            hardware=self.hardware[columns],
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
            names = ", ".join(self.device_ids)
            raise DatasetError(f"the dataset has no device {device_id!r}; it has: {names}") from None

    def rows_of(self, device_id: str) -> NDArray[np.int64]:
        """Indexes of the rows with an ok latency on a device."""
        return np.flatnonzero(~np.isnan(self.latency_secs[:, self.column(device_id)]))

    def save(self, folder: Path) -> None:
        """Write the dataset as .npy files and a manifest; the folder appears whole or not at all.

        Raises:
            TransferError: The folder exists already, or cannot be written.
        """
        arrays = {f"features_{name}": array for name, array in self.features.arrays().items()}
        arrays |= {name: getattr(self, name) for name in _ARRAYS}
        arrays["candidate_ids"] = np.array(self.candidate_ids, dtype=np.bytes_)
        extra = {
            "workload_ids": self.workload_ids,
            "device_ids": self.device_ids,
            "spec": asdict(self.spec),
            "spec_hash": self.spec.hash,
        }
        write_folder(folder, *_SAVED_AS, arrays, extra)

    @classmethod
    def open(cls, folder: Path) -> Dataset:
        """Open a saved dataset; its arrays stay on disk and are read as they are used.

        Raises:
            TransferError: There is no such dataset, it is damaged, or another version made its features.
        """
        arrays, extra = read_folder(folder, *_SAVED_AS)
        try:
            spec = FeatureSpec(**{name: _tuples(value) for name, value in extra["spec"].items()})
            if spec.hash != extra["spec_hash"]:
                raise DatasetError(
                    f"{folder} was saved by another version of the project (features {extra['spec_hash']}); "
                    "delete it and make it again"
                )
            names = {name: arrays[name] for name in _ARRAYS}
            features = {
                name.removeprefix("features_"): array for name, array in arrays.items() if "features_" in name
            }
            return cls(
                features=FeatureBlock(**features),
                spec=spec,
                candidate_ids=tuple(CandidateId(name.decode()) for name in arrays["candidate_ids"].tolist()),
                workload_ids=tuple(map(WorkloadId, extra["workload_ids"])),
                device_ids=tuple(map(DeviceId, extra["device_ids"])),
                **names,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DatasetError(
                f"cannot open {folder}: {type(error).__name__}: {error}; delete it and make it again"
            ) from error


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
