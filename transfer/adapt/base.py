"""What every strategy of adaptation promises, and the one place that hides the target's unseen data.

A strategy gives a model with a head for a new device from a few measured candidates. Onboarding and
`transfer.evaluate` choose among strategies by name; a strategy knows of neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from transfer.dataset import Dataset
from transfer.errors import TransferError
from transfer.model import MultiTaskTLP
from transfer.train import TrainConfig


class Strategy(Protocol):
    """One way to make a head for a new device.

    Promises: the source model is not changed; of the target device no latency outside the support
    rows has any influence; equal arguments give equal weights.
    """

    @property
    def name(self) -> str:
        """Short name in reports and on the command line."""
        ...

    def adapt(
        self,
        source: MultiTaskTLP | None,
        dataset: Dataset,
        target_device: str,
        support_rows: NDArray[np.int64],
        *,
        source_rows: NDArray[np.int64],
        config: TrainConfig,
        seed: int,
    ) -> MultiTaskTLP:
        """Give a model with a head for `target_device`.

        Args:
            source: Model of the source devices; None where there is none yet.
            dataset: Candidates of all devices.
            target_device: The new device.
            support_rows: Rows whose target latency may be seen; labels are relative to the best of them.
            source_rows: Rows whose latencies on the other devices may be seen.
            config: How the source model was, or would be, trained; a strategy may train for less long.
            seed: Of everything random.

        Raises:
            TransferError: The support set cannot rank anything, or the strategy needs a source model.
        """
        ...


def visible_part(
    dataset: Dataset,
    target_device: str,
    support_rows: NDArray[np.int64],
    source_rows: NDArray[np.int64],
) -> Dataset:
    """The dataset as a strategy may see it: the rows of both sets, other target measurements taken out.

    Args:
        dataset: Candidates of all devices.
        target_device: The new device.
        support_rows: Rows with visible target latency.
        source_rows: Rows with visible latency on the other devices. On support rows outside of these
            only the target's latency is visible.

    Returns:
        A dataset of the union of both sets of rows, in ascending order.

    Raises:
        TransferError: No support row has a target latency.
    """
    column = dataset.column(target_device)
    if not np.isfinite(dataset.latency_secs[support_rows, column]).any():
        raise TransferError(
            f"none of the {len(support_rows)} support rows has an ok measurement on {target_device!r}; "
            f"measure candidates there first"
        )
    rows = np.union1d(support_rows, source_rows).astype(np.int64)
    part = dataset.take(rows)
    hidden = np.repeat(~np.isin(rows, source_rows)[:, None], len(dataset.device_ids), axis=1)
    hidden[:, column] = ~np.isin(rows, support_rows)
    return replace(
        part,
        latency_secs=np.where(hidden, np.nan, part.latency_secs),
        failed=part.failed & ~hidden,
    )
