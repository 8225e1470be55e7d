"""The parts that the rivals share. What each of them promises: `transfer.evaluate.rankers.Ranker`.

What those of an onboarding read of a situation is made once for it (`Situation.once`), and holds no
measurement that may not be seen.

Legend: n rows of a call, N candidates of a dataset, P columns of the flat features, H slots of a hardware
vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from benchmarks.onboarding_cases import Situation
from transfer.arrays import Floats, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.labels import relative_speed
from transfer.data.ranking import places_in, rank_agreement
from transfer.errors import TransferError
from transfer.evaluate.rankers import Ranker
from transfer.features.flat import flat_inputs
from transfer.features.hardware import vector_distances
from transfer.train.rows import need_pairs

_Model = TypeVar("_Model")


def training_labels(dataset: Dataset, rows: Rows, devices: Sequence[str]) -> Singles:
    """(n, D) relative speeds in (0, 1] of rows to learn from, NaN where there is none.

    Raises:
        TransferError: On a device no workload has two measured candidates among the rows.
    """
    need_pairs(dataset, rows, devices)
    columns = [dataset.column(device_id) for device_id in devices]
    return dataset.labels(rows)[:, columns].astype(np.float32)


def nearest_first(
    dataset: Dataset, target: str, rows: Rows, secs: Floats, sources: Sequence[str]
) -> list[str]:
    """Sources, most similar first: by their order of what a device measured, then by hardware vector.

    Args:
        dataset: With the sources' measurements.
        target: The device.
        rows: What it measured.
        secs: (rows,) its seconds, NaN where it failed.
        sources: Other devices.
    """
    apart = vector_distances(dataset.hardware, dataset.column(target))

    def unlike(source: str) -> tuple[float, float]:
        other = dataset.latency_secs[rows, dataset.column(source)]
        truth = np.where(np.isfinite(other), -secs, np.nan)
        agreement = rank_agreement(-np.nan_to_num(other), truth, dataset.group[rows])
        return -round(agreement, 6), float(apart[dataset.column(source)])

    return sorted(sources, key=unlike)


def place_by_sources(places: Floats, *, is_mean: bool) -> Floats:
    """(n,) place of each candidate by the sources' (n, sources): the first that is known, or their mean.

    0 where no source has one.
    """
    known = np.isfinite(places)
    if is_mean:
        return np.asarray(np.where(known, places, 0).sum(axis=1) / np.maximum(1, known.sum(axis=1)))
    return np.asarray(np.nan_to_num(places[np.arange(len(places)), known.argmax(axis=1)]))


def sources_measured_test(situation: Situation) -> bool:
    """Whether a source device's measurement of some test row may be seen (regime *device new*)."""
    dataset = situation.dataset
    columns = np.array([dataset.column(source) for source in situation.sources], dtype=np.int64)
    return bool(np.isfinite(dataset.latency_secs[np.ix_(situation.test, columns)]).any())


def flat_of(situation: Situation) -> Singles:
    """(N, P) features without their sequence; columns that never differ are left out."""

    def make() -> Singles:
        rows = np.union1d(situation.source_rows, situation.test)
        wide = flat_features(situation.dataset, np.arange(len(situation.dataset)))
        return np.ascontiguousarray(wide[:, np.ptp(wide[rows], axis=0) > 0])

    return situation.once("flat", make)


def places_of(situation: Situation) -> Floats:
    """(N, sources) share of the workload's candidates that are no faster.

    0 where a candidate failed there, NaN where it was not measured.
    """
    dataset = situation.dataset

    def make() -> Floats:
        columns = [dataset.column(source) for source in situation.sources]
        secs, failed = dataset.latency_secs[:, columns], dataset.failed[:, columns]
        places = np.stack([places_in(-column, dataset.group) for column in secs.T], axis=1)
        return np.where(np.isnan(places) & failed, 0.0, places)

    return situation.once("places", make)


def speeds_of(situation: Situation) -> Floats:
    """(N, sources) relative speeds, NaN where unmeasured."""
    dataset = situation.dataset
    columns = [dataset.column(source) for source in situation.sources]
    return situation.once(
        "speeds",
        lambda: relative_speed(dataset.latency_secs[:, columns], dataset.group, len(dataset.workload_ids)),
    )


def flat_features(dataset: Dataset, rows: Rows) -> Singles:
    """Our features without their sequence, for models that read one vector a candidate.

    Args:
        dataset: Candidates.
        rows: Row numbers.

    Returns:
        (n, P), see `transfer.features.flat.flat_inputs`.
    """
    return flat_inputs(dataset.features, dataset.spec.category_sizes, rows)


def hold_out_workloads(dataset: Dataset, rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Part rows by workload, for choices made inside the training rows.

    Returns:
        Rows to learn from and rows of other workloads; of one workload alone everything is on both sides.
    """
    groups = np.unique(dataset.group[rows])
    if len(groups) < 2:
        return rows, rows
    count = min(len(groups) - 1, max(1, round(share * len(groups))))
    held = np.isin(dataset.group[rows], np.random.default_rng(seed).permutation(groups)[:count])
    return rows[~held], rows[held]


def need(module: str) -> Any:
    """Import an optional package.

    Raises:
        TransferError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise TransferError(
            f"this baseline needs the package {module}: install the extra, "
            "`pip install 'tensor-fleet[baselines]'`"
        ) from error


def of_device(ranker: Ranker, models: Mapping[str, _Model], device_id: str) -> _Model:
    """What a ranker has learnt of a device.

    Raises:
        TransferError: It was not fitted for the device.
    """
    if device_id not in models:
        raise TransferError(
            f"{ranker.name} has not learnt device {device_id!r}; it knows: {', '.join(models) or 'none'}. "
            "Call `fit` with it first"
        )
    return models[device_id]


class EachDevice:
    """A ranker of its own for each device.

    Args:
        like: What each is a copy of.
        name: In tables; that of `like` unless given.
    """

    def __init__(self, like: Ranker, name: str = "") -> None:
        self.like, self.name = like, name or like.name
        self._rankers: dict[str, Ranker] = {}

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Learn each device from its own labels. See `Ranker.fit`."""
        self._rankers = {device_id: copy(self.like) for device_id in devices}
        for device_id, ranker in self._rankers.items():
            ranker.fit(dataset, rows, (device_id,), seed)

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Scores of the device's own ranker. See `Ranker.score`."""
        return of_device(self, self._rankers, device_id).score(dataset, rows, device_id)
