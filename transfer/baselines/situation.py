"""What may be seen of a new device and its source devices: common ground of a curve's contenders.

Made by `transfer.evaluate.onboarding_contenders`, read by the baselines of the onboarding curve.
Holds no measurement that may not be seen.

Legend: N candidates of a dataset, P columns of the flat features, H slots of a hardware vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from transfer.baselines.base import Rows, flat_features
from transfer.data.dataset import Dataset
from transfer.data.labels import relative_speed
from transfer.data.ranking import places_in

Floats = NDArray[np.float64]
_Made = TypeVar("_Made")


@dataclass(slots=True, kw_only=True, eq=False)
class Situation:
    """A new device, and what may be seen when some rows are to be put in order for it.

    Attributes:
        dataset: All candidates, with every measurement taken out that may not be seen; no measurement of the
            target at all.
        target: The new device.
        sources: Devices that may be learnt from.
        source_rows: Rows that they were measured on, as far as it may be seen.
        test: Rows to score.
        seed: Of everything random.
    """

    dataset: Dataset
    target: str
    sources: tuple[str, ...]
    source_rows: Rows
    test: Rows
    seed: int
    _made: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], _Made]) -> _Made:
        """What `make` gives, made once for all contenders and numbers of samples."""
        if name not in self._made:
            self._made[name] = make()
        return cast(_Made, self._made[name])

    @property
    def sources_measured_test(self) -> bool:
        """Whether a source device's measurement of some test row may be seen (regime *device new*)."""
        columns = [self.dataset.column(one) for one in self.sources]
        return bool(
            np.isfinite(self.dataset.latency_secs[np.ix_(self.test, np.array(columns, dtype=np.int64))]).any()
        )

    @property
    def flat(self) -> NDArray[np.float32]:
        """(N, P) features without their sequence; columns that never differ are left out."""

        def make() -> NDArray[np.float32]:
            rows = np.union1d(self.source_rows, self.test)
            wide = flat_features(self.dataset, np.arange(len(self.dataset)))
            return np.ascontiguousarray(wide[:, np.ptp(wide[rows], axis=0) > 0])

        return self.once("flat", make)

    @property
    def places(self) -> Floats:
        """(N, sources) share of the workload's candidates that are no faster; NaN where unmeasured."""
        return self.once(
            "places",
            lambda: np.stack([places_on(self.dataset, one) for one in self.sources], axis=1),
        )

    @property
    def speeds(self) -> Floats:
        """(N, sources) relative speeds, NaN where unmeasured."""
        columns = [self.dataset.column(one) for one in self.sources]
        return self.once(
            "speeds",
            lambda: relative_speed(
                self.dataset.latency_secs[:, columns], self.dataset.group, len(self.dataset.workload_ids)
            ),
        )

    def hardware_of(self, device_id: str) -> NDArray[np.float32]:
        """(H,) what the probe saw of a device."""
        vector: NDArray[np.float32] = self.dataset.hardware[self.dataset.column(device_id)]
        return vector


@dataclass(frozen=True, slots=True, eq=False)
class FewShotSet:
    """What was measured on the new device."""

    rows: Rows
    #: (len(rows),) seconds, NaN where the candidate failed.
    latency_secs: Floats


def with_few_shot(dataset: Dataset, target: str, few_shot: FewShotSet) -> Dataset:
    """The dataset with what was measured on the target put in."""
    column = dataset.column(target)
    latency, failed = dataset.latency_secs.copy(), dataset.failed.copy()
    latency[few_shot.rows, column] = few_shot.latency_secs
    failed[few_shot.rows, column] = ~np.isfinite(few_shot.latency_secs)
    return replace(dataset, latency_secs=latency, failed=failed)


def places_on(dataset: Dataset, device_id: str) -> Floats:
    """(N,) share of the workload's candidates measured on a device that are no faster.

    0 where a candidate failed there, NaN where it was not measured.
    """
    column = dataset.column(device_id)
    found = places_in(-dataset.latency_secs[:, column], dataset.group)
    found[np.isnan(found) & dataset.failed[:, column]] = 0.0
    return found
