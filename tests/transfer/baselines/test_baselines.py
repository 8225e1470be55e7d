from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.model_fixtures import DEVICES, make_dataset
from transfer.baselines.base import Ranker, flat_features, hold_out_workloads, need
from transfer.baselines.mlp import MlpConfig, SummaryMlp
from transfer.baselines.nearest import NearestDevice
from transfer.baselines.tlp import PublishedTlp
from transfer.baselines.trees import BoostedTrees
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.errors import TransferError
from transfer.train.published_procedure import TlpConfig
from transfer.train.rows import training_labels

QUICK_TLP = TlpConfig(epochs=1, batch=64)
QUICK_MLP = MlpConfig(width=32, epochs=20, learning_rate=5e-3, dropout=0.0)


def published_of(dataset: Dataset) -> np.ndarray:
    """Stand-in for published features: enough of the real ones to learn from."""
    block = dataset.features
    return np.concatenate([block.categories, block.numbers], axis=2).astype(np.float32)


def rankers(dataset: Dataset) -> list[Ranker]:
    return [
        PublishedTlp(published_of(dataset), QUICK_TLP),
        PublishedTlp(published_of(dataset), replace(QUICK_TLP, loss="mse", sequence="lstm"), multi_task=True),
        NearestDevice(),
        NearestDevice("mean"),
        SummaryMlp(QUICK_MLP),
    ]


def taus(dataset: Dataset, scores: np.ndarray, rows: np.ndarray, device_id: str) -> float:
    speed = -np.log(dataset.latency_secs[rows, dataset.column(device_id)])
    return rank_agreement(scores, speed, dataset.group[rows])


def without_latency(dataset: Dataset, rows: np.ndarray, device_id: str | None = None) -> Dataset:
    latency, failed = dataset.latency_secs.copy(), dataset.failed.copy()
    columns = slice(None) if device_id is None else dataset.column(device_id)
    latency[rows, columns] = np.nan
    failed[rows, columns] = False
    return replace(dataset, latency_secs=latency, failed=failed)


@pytest.mark.parametrize("place", range(5))
def test_every_ranker_reads_training_rows_only_and_is_the_same_each_time(place: int) -> None:
    dataset = make_dataset(workloads=7, candidates=6)
    train, test = np.flatnonzero(dataset.group < 5), np.flatnonzero(dataset.group >= 5)
    first, second = rankers(dataset)[place], rankers(dataset)[place]
    first.fit(dataset, train, DEVICES, 3)
    second.fit(without_latency(dataset, test), train, DEVICES, 3)
    for device_id in DEVICES:
        scores = first.score(dataset, test, device_id)
        assert scores.shape == test.shape
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()
        # Held-out latencies of the device itself must not matter, neither in fitting nor in scoring.
        np.testing.assert_array_equal(
            scores, second.score(without_latency(dataset, test, device_id), test, device_id)
        )
    with pytest.raises(TransferError, match="has not learnt device 'gpu'"):
        first.score(dataset, test, "gpu")
    with pytest.raises(TransferError, match=r"cannot learn cpu\.b"):
        first.fit(without_latency(dataset, train, "cpu.b"), train, DEVICES, 0)


def test_names_tell_rankers_apart() -> None:
    names = [ranker.name for ranker in rankers(make_dataset(2, 2))]
    assert names == ["tlp-batch-64", "mtl-tlp-lstm-mse-batch-64", "nearest-device", "mean-rank", "mlp"]


def test_failures_are_left_out_or_kept_near_zero_as_published() -> None:
    dataset = make_dataset(workloads=6, candidates=10)
    rows = np.arange(len(dataset))
    # A workload that failed throughout on one device has no best latency to compare with.
    latency, failed = dataset.latency_secs.copy(), dataset.failed.copy()
    latency[dataset.group == 0, 0], failed[dataset.group == 0, 0] = np.nan, True
    dataset = replace(dataset, latency_secs=latency, failed=failed)
    plain = training_labels(dataset, rows, DEVICES)
    kept = training_labels(dataset, rows, DEVICES, keep_failures=True)
    assert np.isnan(plain[dataset.failed]).all()
    told = dataset.failed.copy()
    told[dataset.group == 0, 0] = False
    assert told.any()
    assert ((kept[told] > 0) & (kept[told] < 1e-10)).all()
    assert np.isnan(kept[dataset.group == 0, 0]).all()
    same = np.isfinite(plain)
    np.testing.assert_array_equal(kept[same], plain[same])


def test_flat_features_count_steps_and_hold_summary_and_workload() -> None:
    dataset = make_dataset(workloads=3, candidates=4)
    flat = flat_features(dataset, np.arange(len(dataset)))
    block, sizes = dataset.features, dataset.spec.category_sizes
    assert flat.shape == (12, 1 + 2 + sum(sizes) + 2 * 3)
    np.testing.assert_array_equal(flat[:, :1], block.summary)
    np.testing.assert_array_equal(flat[:, 1:3], block.workload)
    row = 5
    steps = block.mask[row]
    kinds = np.bincount(block.categories[row, steps, 0], minlength=sizes[0])
    np.testing.assert_array_equal(flat[row, 3 : 3 + sizes[0]], kinds)
    np.testing.assert_allclose(flat[row, -6:-3], block.numbers[row, steps].mean(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(flat[row, -3:], block.numbers[row, steps].max(axis=0))
    np.testing.assert_array_equal(flat_features(dataset, np.array([row])), flat[[row]])


def test_held_out_workloads_share_nothing_with_the_others() -> None:
    dataset = make_dataset(workloads=9, candidates=3)
    rows = np.flatnonzero(dataset.group > 1)
    kept, held = hold_out_workloads(dataset, rows, 0.3, seed=1)
    assert not set(dataset.group[kept]) & set(dataset.group[held])
    assert len(np.unique(dataset.group[held])) == 2
    np.testing.assert_array_equal(np.union1d(kept, held), rows)


def test_rank_agreement_is_the_mean_of_taus() -> None:
    random = np.random.default_rng(0)
    scores, truth, group = random.normal(size=12), random.normal(size=12), np.repeat([0, 1], 6)
    truth[3] = np.nan
    expected = [
        kendalltau(scores[rows], truth[rows]).statistic
        for rows in (np.array([0, 1, 2, 4, 5]), np.arange(6, 12))
    ]
    assert rank_agreement(scores, truth, group.astype(np.int32)) == pytest.approx(np.mean(expected))


def test_nearest_device_is_the_one_with_the_same_order() -> None:
    dataset = make_dataset(workloads=6, candidates=8)
    latency = dataset.latency_secs.copy()
    latency[:, 1] = 3 * latency[:, 0]
    latency[:, 2] = 1 / latency[:, 0]
    dataset = replace(dataset, latency_secs=latency, failed=np.zeros_like(dataset.failed))
    rows, test = np.flatnonzero(dataset.group < 4), np.flatnonzero(dataset.group >= 4)
    ranker = NearestDevice()
    ranker.fit(dataset, rows, ["cpu.a"], 0)
    assert ranker.order["cpu.a"] == ("cpu.b", "cpu-new")
    measured = test[np.isfinite(latency[test, 0])]
    assert taus(dataset, ranker.score(dataset, measured, "cpu.a"), measured, "cpu.a") == pytest.approx(1)
    # The next best device fills in where the nearest did not measure; a failure there counts as slow.
    place = measured[0]
    gone = without_latency(dataset, np.array([place]), "cpu.b")
    second = NearestDevice()
    second.fit(dataset.of_devices(["cpu.a", "cpu-new"]), rows, ["cpu.a"], 0)
    ranker.fit(gone, rows, ["cpu.a"], 0)
    assert ranker.score(gone, measured, "cpu.a")[0] == second.score(gone, measured, "cpu.a")[0]
    gone.failed[place, 1] = True
    assert ranker.score(gone, measured, "cpu.a")[0] == 0


def test_mlp_learns_what_follows_from_the_summary_and_can_be_fine_tuned() -> None:
    dataset = make_dataset(workloads=16, candidates=12)
    # The order follows from the summary alone, and the other way round on the last device.
    latency = np.exp(dataset.features.summary[:, :1] * np.array([1.0, 1.0, -1.0]))
    dataset = replace(dataset, latency_secs=latency)
    train, test = np.flatnonzero(dataset.group < 12), np.flatnonzero(dataset.group >= 12)
    source = SummaryMlp(QUICK_MLP)
    source.fit(dataset, train, ["cpu.a", "cpu-new"], 0)
    for device_id in ("cpu.a", "cpu-new"):
        assert taus(dataset, source.score(dataset, test, device_id), test, device_id) > 0.9
    before = source.score(dataset, test, "cpu.a")
    tuned = SummaryMlp(replace(QUICK_MLP, epochs=10), start=source)
    tuned.fit(dataset, train[:60], ["cpu.b"], 0)
    assert tuned.name == "mlp-fine-tuned"
    assert taus(dataset, tuned.score(dataset, test, "cpu.b"), test, "cpu.b") > 0.9
    np.testing.assert_array_equal(source.score(dataset, test, "cpu.a"), before)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("pooled", [False, True])
def test_trees_learn_the_order(library: str, pooled: bool) -> None:
    pytest.importorskip(library)
    dataset = make_dataset(workloads=16, candidates=12)
    train, test = np.flatnonzero(dataset.group < 12), np.flatnonzero(dataset.group >= 12)
    scores = []
    for _ in range(2):
        ranker = BoostedTrees(library, pooled=pooled, rounds=(10, 30))
        ranker.fit(dataset, train, DEVICES, 1)
        scores.append([ranker.score(dataset, test, device_id) for device_id in DEVICES])
    np.testing.assert_array_equal(*scores)
    assert ranker.chosen["cpu.a"]["rounds"] in (10, 30)
    found = [taus(dataset, one, test, device_id) for one, device_id in zip(scores[0], DEVICES, strict=True)]
    assert np.mean(found) > 0.3


def test_a_long_list_is_cut_for_lightgbm(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setattr("transfer.baselines.trees._LONGEST_LIST", 5)
    dataset = make_dataset(workloads=4, candidates=13)
    ranker = BoostedTrees("lightgbm", rounds=(5,))
    ranker.fit(dataset, np.arange(len(dataset)), ["cpu.a"], 0)
    assert ranker.score(dataset, np.arange(4), "cpu.a").shape == (4,)


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(TransferError, match=r"tensor-fleet\[baselines\]"):
        need("no_such_package_of_trees")


def test_tlp_needs_the_published_features_of_the_same_dataset() -> None:
    dataset = make_dataset(workloads=4, candidates=6)
    ranker = PublishedTlp(published_of(dataset)[:-1], QUICK_TLP)
    with pytest.raises(TransferError, match="published features of 23 rows, the dataset has 24"):
        ranker.fit(dataset, np.arange(24), DEVICES, 0)
