"""Other people's rankers keep what every ranker promises, and their finished fits are not made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import read_kept
from benchmarks.rivals.base import hold_out_workloads, need
from benchmarks.rivals.kept_scores import run_kept_fits
from benchmarks.rivals.mlp import MlpConfig, SummaryMlp
from benchmarks.rivals.named import RIVALS, make_rival
from benchmarks.rivals.nearest import NearestDevice
from benchmarks.rivals.tlp import PublishedTlp
from benchmarks.rivals.trees import BoostedTrees
from tests.model_fixtures import DEVICES, folds_of, make_dataset, of_devices, published, with_latency
from tests.transfer.evaluate.test_compare import Noisy, Peeker
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.errors import TransferError
from transfer.evaluate.compare import fits_of, judge_fits
from transfer.evaluate.rankers import Ranker
from transfer.train.published_procedure import TlpConfig

QUICK_TLP = TlpConfig(epochs=1, batch=64)
QUICK_MLP = MlpConfig(width=32, epochs=20, learning_rate=5e-3, dropout=0.0)


def rankers() -> list[Ranker]:
    return [
        PublishedTlp(QUICK_TLP),
        PublishedTlp(QUICK_TLP, multi_task=True, variant="lstm"),
        NearestDevice(),
        NearestDevice("mean"),
        SummaryMlp(QUICK_MLP),
    ]


def taus(dataset: Dataset, ranker: Ranker, rows: np.ndarray, device_id: str) -> float:
    speed = -np.log(dataset.latency_secs[rows, dataset.column(device_id)])
    return rank_agreement(ranker.score(dataset, rows, device_id), speed, dataset.group[rows])


def without_latency(dataset: Dataset, rows: np.ndarray, device_id: str | None = None) -> Dataset:
    failed = dataset.failed.copy()
    failed[rows, slice(None) if device_id is None else dataset.column(device_id)] = False
    return replace(with_latency(dataset, rows, device_id, np.nan), failed=failed)


@pytest.mark.parametrize("place", range(5))
def test_every_rival_reads_training_rows_only_and_is_the_same_each_time(place: int) -> None:
    dataset = published(make_dataset(workloads=7, candidates=6))
    train, test = np.flatnonzero(dataset.group < 5), np.flatnonzero(dataset.group >= 5)
    first, second = rankers()[place], rankers()[place]
    first.fit(dataset, train, DEVICES, 3)
    second.fit(without_latency(dataset, test), train, DEVICES, 3)
    for device_id in DEVICES:
        scores = first.score(dataset, test, device_id)
        assert scores.shape == test.shape
        assert np.isfinite(scores).all()
        # Held-out latencies of the device itself must not matter, neither in fitting nor in scoring.
        blind = without_latency(dataset, test, device_id)
        np.testing.assert_array_equal(scores, second.score(blind, test, device_id))
    with pytest.raises(TransferError, match="has not learnt device 'gpu'"):
        first.score(dataset, test, "gpu")
    with pytest.raises(TransferError, match=r"cannot train a head for cpu\.b"):
        first.fit(without_latency(dataset, train, "cpu.b"), train, DEVICES, 0)


def test_each_rival_has_the_name_that_it_is_asked_for_by() -> None:
    assert [make_rival(name).name for name in RIVALS] == list(RIVALS)
    with pytest.raises(TransferError, match="unknown rival 'oracle'; known: xgboost, "):
        make_rival("oracle")
    with pytest.raises(TransferError, match=r"tensor-fleet\[baselines\]"):
        need("no_such_package_of_trees")
    with pytest.raises(TransferError, match="tlp reads published features, and the dataset has none"):
        make_rival("tlp").fit(make_dataset(), np.arange(9), DEVICES, 0)


def test_nearest_device_is_the_one_with_the_same_order() -> None:
    dataset = make_dataset(workloads=6, candidates=8)
    own = dataset.latency_secs[:, 0]
    dataset = replace(
        dataset,
        latency_secs=np.stack([own, 3 * own, 1 / own], axis=1),
        failed=np.zeros_like(dataset.failed),
    )
    rows, test = np.flatnonzero(dataset.group < 4), np.flatnonzero(dataset.group >= 4)
    ranker = NearestDevice()
    ranker.fit(dataset, rows, ["cpu.a"], 0)
    assert ranker.order["cpu.a"] == ("cpu.b", "cpu-new")
    measured = test[np.isfinite(own[test])]
    assert taus(dataset, ranker, measured, "cpu.a") == pytest.approx(1)
    # The next best device fills in where the nearest did not measure.
    gone = without_latency(dataset, measured[:1], "cpu.b")
    second = NearestDevice()
    second.fit(of_devices(dataset, "cpu.a", "cpu-new"), rows, ["cpu.a"], 0)
    ranker.fit(gone, rows, ["cpu.a"], 0)
    assert ranker.score(gone, measured, "cpu.a")[0] == second.score(gone, measured, "cpu.a")[0]


def test_a_perceptron_learns_and_another_may_go_on_from_it() -> None:
    dataset = make_dataset(workloads=16, candidates=12)
    latency = np.exp(dataset.features.summary[:, :1] * np.array([1.0, 1.0, -1.0]))
    dataset = replace(dataset, latency_secs=latency)
    train, test = np.flatnonzero(dataset.group < 12), np.flatnonzero(dataset.group >= 12)
    source = SummaryMlp(QUICK_MLP)
    source.fit(dataset, train, ["cpu.a", "cpu-new"], 0)
    assert min(taus(dataset, source, test, device_id) for device_id in ("cpu.a", "cpu-new")) > 0.9
    before = source.score(dataset, test, "cpu.a")
    tuned = SummaryMlp(replace(QUICK_MLP, epochs=10), start=source)
    tuned.fit(dataset, train[:60], ["cpu.b"], 0)
    assert taus(dataset, tuned, test, "cpu.b") > 0.9
    np.testing.assert_array_equal(source.score(dataset, test, "cpu.a"), before)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("pooled", [False, True])
def test_trees_learn_the_order(library: str, pooled: bool) -> None:
    pytest.importorskip(library)
    dataset = make_dataset(workloads=12, candidates=12)
    train, test = hold_out_workloads(dataset, np.arange(len(dataset)), 0.25, seed=1)
    assert set(dataset.group[train]).isdisjoint(dataset.group[test])
    ranker = BoostedTrees(library, pooled=pooled, rounds=(10, 30))
    ranker.fit(dataset, train, DEVICES, 1)
    assert ranker.chosen["cpu.a"]["rounds"] in (10, 30)
    assert np.mean([taus(dataset, ranker, test, device_id) for device_id in DEVICES]) > 0.3


def test_finished_fits_are_kept_and_only_others_or_damaged_ones_are_made_again(tmp_path: Path) -> None:
    dataset = make_dataset(workloads=9, candidates=10)
    fits = fits_of([Noisy(0.3)], folds_of(dataset), [0, 1])
    whole = judge_fits(fits, run_kept_fits(fits, dataset, tmp_path, 1), dataset)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    untouched = Peeker(name="noisy")
    again = fits_of([untouched], folds_of(dataset), [0, 1])
    same = judge_fits(again, run_kept_fits(again, dataset, tmp_path, 1), dataset)
    assert not untouched.shown
    for key, runs in whole.metrics.items():
        for run, other in zip(runs, same.metrics[key], strict=True):
            np.testing.assert_array_equal(run.tau_by_workload, other.tau_by_workload)
    raw = files[0].read_bytes()
    for damaged in (b"", b"PK\x03\x04", raw[: len(raw) // 2]):
        files[0].write_bytes(damaged)
        list(run_kept_fits(again, dataset, tmp_path, 1))
        assert read_kept(files[0]) is not None
    assert len(untouched.shown) == 3
    slower = replace(dataset, latency_secs=dataset.latency_secs * 2)
    list(run_kept_fits(fits[:1], slower, tmp_path, 1))
    assert len(list(tmp_path.iterdir())) == 7
