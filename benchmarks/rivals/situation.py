"""What the rivals of an onboarding read of a situation: flat features, and what source devices measured.

Each is made once for a situation (`Situation.once`). Holds no measurement that may not be seen.

Legend: N candidates of a dataset, P columns of the flat features, H slots of a hardware vector.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.base import flat_features
from transfer.data.dataset import Dataset
from transfer.data.labels import relative_speed
from transfer.data.ranking import places_in
from transfer.evaluate.onboarding_cases import Situation

Floats = NDArray[np.float64]


def sources_measured_test(situation: Situation) -> bool:
    """Whether a source device's measurement of some test row may be seen (regime *device new*)."""
    dataset = situation.dataset
    columns = np.array([dataset.column(source) for source in situation.sources], dtype=np.int64)
    return bool(np.isfinite(dataset.latency_secs[np.ix_(situation.test, columns)]).any())


def flat_of(situation: Situation) -> NDArray[np.float32]:
    """(N, P) features without their sequence; columns that never differ are left out."""

    def make() -> NDArray[np.float32]:
        rows = np.union1d(situation.source_rows, situation.test)
        wide = flat_features(situation.dataset, np.arange(len(situation.dataset)))
        return np.ascontiguousarray(wide[:, np.ptp(wide[rows], axis=0) > 0])

    return situation.once("flat", make)


def places_of(situation: Situation) -> Floats:
    """(N, sources) share of the workload's candidates that are no faster; NaN where unmeasured."""
    return situation.once(
        "places",
        lambda: np.stack([places_on(situation.dataset, source) for source in situation.sources], axis=1),
    )


def speeds_of(situation: Situation) -> Floats:
    """(N, sources) relative speeds, NaN where unmeasured."""
    dataset = situation.dataset
    columns = [dataset.column(source) for source in situation.sources]
    return situation.once(
        "speeds",
        lambda: relative_speed(dataset.latency_secs[:, columns], dataset.group, len(dataset.workload_ids)),
    )


def hardware_of(situation: Situation, device_id: str) -> NDArray[np.float32]:
    """(H,) what the probe saw of a device."""
    vector: NDArray[np.float32] = situation.dataset.hardware[situation.dataset.column(device_id)]
    return vector


def places_on(dataset: Dataset, device_id: str) -> Floats:
    """(N,) share of the workload's candidates measured on a device that are no faster.

    0 where a candidate failed there, NaN where it was not measured.
    """
    column = dataset.column(device_id)
    places = places_in(-dataset.latency_secs[:, column], dataset.group)
    places[np.isnan(places) & dataset.failed[:, column]] = 0.0
    return places
