"""Rankers compared: nothing held out is shown to them, and the figures are those of their scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.model_fixtures import folds_of, make_dataset
from transfer.data.dataset import Dataset
from transfer.data.intervals import resample_ratio
from transfer.data.metrics import MEASURES
from transfer.evaluate.compare import compare

DATASET = make_dataset(workloads=9, candidates=10)
GROUP, FOLDS = DATASET.group, folds_of(DATASET)


@dataclass
class Peeker:
    """Scores by whatever latencies it can find, and remembers what it was shown."""

    name: str = "peeker"
    shown: list[tuple[Dataset, np.ndarray, tuple[str, ...], int]] = field(default_factory=list)
    asked: list[tuple[Dataset, np.ndarray, str]] = field(default_factory=list)

    def fit(self, dataset: Dataset, rows: np.ndarray, devices: Sequence[str], seed: int) -> None:
        self.shown.append((dataset, rows, tuple(devices), seed))

    def score(self, dataset: Dataset, rows: np.ndarray, device_id: str) -> np.ndarray:
        self.asked.append((dataset, rows, device_id))
        latency = dataset.latency_secs[rows, dataset.column(device_id)]
        return -np.where(np.isnan(latency), 1.0, latency)


@dataclass
class Noisy:
    """Knows the true latency up to noise that depends on the seed."""

    noise: float
    name: str = "noisy"
    seed: int = 0

    def fit(self, dataset: Dataset, rows: np.ndarray, devices: Sequence[str], seed: int) -> None:
        self.seed = seed

    def score(self, dataset: Dataset, rows: np.ndarray, device_id: str) -> np.ndarray:
        truth = DATASET.latency_secs[rows, dataset.column(device_id)]
        random = np.random.default_rng([self.seed, *rows[:1].tolist()])
        return -np.nan_to_num(np.log(truth)) + random.normal(size=len(rows)) * self.noise


def test_a_ranker_is_shown_nothing_that_is_held_out_and_who_peeks_is_no_better_than_chance() -> None:
    peeker = Peeker()
    found = compare([peeker], DATASET, lambda _: FOLDS, [0])
    assert len(peeker.shown) == 3
    for (dataset, rows, devices, _), split in zip(peeker.shown, FOLDS, strict=True):
        assert np.array_equal(rows, split.train)
        assert devices == DATASET.device_ids
        assert np.isnan(dataset.latency_secs[split.test]).all()
        assert not dataset.failed[split.test].any()
        np.testing.assert_array_equal(dataset.latency_secs[split.train], DATASET.latency_secs[split.train])
    for dataset, rows, device_id in peeker.asked:
        assert np.isnan(dataset.latency_secs[rows, dataset.column(device_id)]).all()
        # What source devices say of a held-out candidate may be looked at: replay does nothing else.
        others = [column for column in range(3) if column != dataset.column(device_id)]
        np.testing.assert_array_equal(dataset.latency_secs[:, others], DATASET.latency_secs[:, others])
    # A constant score, that is.
    for device_id in DATASET.device_ids:
        [metrics] = found.metrics["peeker", device_id]
        np.testing.assert_allclose(metrics.values["top1"], metrics.values["random_top1"])
        assert (metrics.values["pairwise"] == 0.5).all()


def test_differences_are_paired_and_the_json_is_whole_and_plain() -> None:
    found = compare([Noisy(0.1, "good"), Noisy(2.0, "bad")], DATASET, lambda _: FOLDS, [0, 1, 2])
    good, bad = (
        np.stack([run.values["tau"] for run in found.metrics[name, "cpu.a"]]) for name in ("good", "bad")
    )
    difference = found.difference("good", "bad", "cpu.a", "tau")
    expected = resample_ratio(good - bad, np.ones_like(good), seed=0).estimate()
    assert (difference.value, difference.low, difference.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )
    assert difference.is_above_zero
    assert found.difference("bad", "good", "cpu.a", "tau").value == pytest.approx(-difference.value)
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    device = told["devices"]["cpu-new"]
    assert device["workloads"] == [f"w{index:02d}" for index in range(9)]
    assert np.shape(device["rankers"]["good"]["by_workload"]["top1"]) == (3, 9)
    assert set(MEASURES) <= set(device["rankers"]["bad"])
    assert device["differences"]["bad"]["tau"][0] > 0
    assert told["seeds"] == [0, 1, 2]
