"""Other people's rankers keep what every ranker promises, and their finished fits are not made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import read_kept
from benchmarks.rivals.base import EachDevice, need
from benchmarks.rivals.named import RIVALS, Perceptron, PublishedTlp, make_rival, run_kept_fits
from benchmarks.rivals.trees import BoostedTrees
from tests.model_fixtures import DEVICES, folds_of, make_dataset, published, with_latency
from tests.transfer.evaluate.test_compare import Noisy, Peeker
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.errors import TransferError
from transfer.evaluate.compare import fits_of
from transfer.evaluate.rankers import Ranker
from transfer.train.trainers import TlpConfig

TLP = TlpConfig(epochs=1, batch=64)


def tau(dataset: Dataset, ranker: Ranker, rows: np.ndarray, device_id: str) -> float:
    speed = -np.log(dataset.latency_secs[rows, dataset.column(device_id)])
    return rank_agreement(ranker.score(dataset, rows, device_id), speed, dataset.group[rows])


def without_latency(dataset: Dataset, rows: np.ndarray, device_id: str | None = None) -> Dataset:
    failed = dataset.failed.copy()
    failed[rows, slice(None) if device_id is None else dataset.column(device_id)] = False
    return replace(with_latency(dataset, rows, device_id, np.nan), failed=failed)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EachDevice(PublishedTlp(TLP)),
        lambda: PublishedTlp(TLP),
        Perceptron,
    ],
)
def test_every_rival_reads_training_rows_only_and_is_the_same_each_time(make: Callable[[], Ranker]) -> None:
    dataset = published(make_dataset(workloads=7, candidates=6))
    train, test = np.flatnonzero(dataset.group < 5), np.flatnonzero(dataset.group >= 5)
    first, second = make(), make()
    first.fit(dataset, train, DEVICES, 3)
    second.fit(without_latency(dataset, test), train, DEVICES, 3)
    for device_id in DEVICES:
        scores = first.score(dataset, test, device_id)
        assert np.isfinite(scores).all()
        # Held-out latencies of the device itself must not matter, neither in fitting nor in scoring.
        blind = without_latency(dataset, test, device_id)
        np.testing.assert_array_equal(scores, second.score(blind, test, device_id))
    with pytest.raises(TransferError, match="has not learnt device 'gpu'"):
        first.score(dataset, test, "gpu")


def test_each_rival_has_the_name_that_it_is_asked_for_by() -> None:
    assert [make_rival(name).name for name in RIVALS] == list(RIVALS)
    with pytest.raises(TransferError, match="unknown rival 'oracle'; known: xgboost, "):
        make_rival("oracle")
    with pytest.raises(TransferError, match=r"tensor-fleet\[baselines\]"):
        need("no_such_package_of_trees")


@pytest.mark.parametrize(
    ("package", "ranker"),
    [
        ("torch", Perceptron()),
        *((name, EachDevice(BoostedTrees(name, rounds=(10, 30)))) for name in ("xgboost", "lightgbm")),
        *((name, BoostedTrees(name, pooled=True, rounds=(10, 30))) for name in ("xgboost", "lightgbm")),
    ],
)
def test_every_rival_learns_the_order(package: str, ranker: Ranker) -> None:
    pytest.importorskip(package)
    dataset = make_dataset(workloads=16, candidates=12)
    latency = np.exp(dataset.features.summary[:, :1] * np.array([1.0, 2.0, -1.0]))
    dataset = replace(dataset, latency_secs=latency)
    train, test = np.flatnonzero(dataset.group < 12), np.flatnonzero(dataset.group >= 12)
    ranker.fit(dataset, train, DEVICES[:2], 0)
    assert min(tau(dataset, ranker, test, device_id) for device_id in DEVICES[:2]) > 0.6


def test_finished_fits_are_kept_and_only_others_or_damaged_ones_are_made_again(tmp_path: Path) -> None:
    dataset = make_dataset(workloads=9, candidates=10)

    def run(ranker: Ranker, dataset: Dataset) -> list[list[float]]:
        fits = fits_of([ranker], lambda _: folds_of(dataset), [0, 1])
        found = run_kept_fits(fits, dataset, tmp_path, 1)
        return [one.tolist() for scores, _ in found for one in scores.values()]

    whole = run(Noisy(0.3), dataset)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    untouched = Peeker(name="noisy")
    assert run(untouched, dataset) == whole
    assert not untouched.shown
    files[0].write_bytes(files[0].read_bytes()[:20])
    run(untouched, dataset)
    assert read_kept(files[0]) is not None
    assert len(untouched.shown) == 1
    run(Noisy(0.3), replace(dataset, latency_secs=dataset.latency_secs * 2))
    assert len(list(tmp_path.iterdir())) == 12
