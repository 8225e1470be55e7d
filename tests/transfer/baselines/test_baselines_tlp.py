from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from agents.records import Candidate
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from tests.model_fixtures import DEVICES, make_dataset, with_latency
from tests.transfer.baselines.test_baselines import published_of
from transfer.baselines import tlp
from transfer.baselines.tlp import PublishedTlp, published_rows
from transfer.data.dataset import Dataset
from transfer.data.joined_records import build_dataset
from transfer.errors import DatasetError
from transfer.features.extractor import Extractor
from transfer.features.published_features import CPU_LAYOUT, GPU_LAYOUT, published_features
from transfer.model.mtl_tlp import TlpNetwork, mixed_lambda_rank
from transfer.train.published_procedure import TlpConfig


def parameters(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_network_has_the_published_parameters_but_for_the_dead_layer() -> None:
    dead = 65_792
    assert parameters(TlpNetwork(22)) == 610_369 == 676_161 - dead
    assert parameters(TlpNetwork(20)) == 676_033 - dead
    assert [parameters(TlpNetwork(22, heads)) + dead for heads in (2, 3, 5)] == [783_170, 890_179, 1_104_197]
    network = TlpNetwork(22)
    parts = {name: parameters(module) for name, module in network.named_children()}
    assert parts["encoder"] == 108_608
    assert parts["attention"] == 263_168
    assert parts["residual"] == 131_584
    assert parts["decoders"] == 107_009


def test_the_score_ignores_the_order_of_steps_and_grows_with_padding() -> None:
    # Both are faults of the published model that ours must not have; here they must be present.
    torch.manual_seed(0)
    network = TlpNetwork(22).eval()
    steps = torch.randint(0, 4, (3, 25, 22)).float()
    with torch.no_grad():
        shuffled = network(steps[:, torch.randperm(25)])
        torch.testing.assert_close(network(steps), shuffled, rtol=1e-4, atol=1e-4)
        padded = torch.cat([steps, torch.zeros(3, 5, 22)], dim=1)
        assert (network(padded) - network(steps)).abs().min() > 1e-3
        with_order = TlpNetwork(22, sequence="lstm").eval()
        assert not torch.allclose(with_order(steps), with_order(steps.flip(1)))


def published_lambda_rank(scores: list[float], labels: list[float]) -> float:
    """The formulas of the public code, pair by pair."""
    n, floor = len(scores), 1e-10
    order = sorted(range(n), key=lambda i: -scores[i])
    s, y = [scores[i] for i in order], [max(labels[i], 0.0) for i in order]
    best = sum((2**v - 1) / math.log2(2 + i) for i, v in enumerate(sorted(y, reverse=True)))
    total = 0.0
    for i in range(n):
        for j in range(n):
            if y[i] > y[j]:
                gain = abs((2 ** y[i] - 1) - (2 ** y[j] - 1)) / max(best, floor)
                weight = abs(1 / math.log2(2 + i) - 1 / math.log2(2 + j)) * gain
                probability = max(1 / (1 + math.exp(min(700.0, -(s[i] - s[j])))), floor)
                total -= math.log2(max(probability**weight, floor))
    return total


@pytest.mark.parametrize("spread", [0.5, 5.0, 400.0])
def test_lambda_rank_is_the_published_one(spread: float) -> None:
    random = np.random.default_rng(1)
    scores, labels = spread * random.normal(size=9), random.uniform(0.01, 1, 9)
    labels[2] = labels[5]
    found = mixed_lambda_rank(torch.from_numpy(scores), torch.from_numpy(labels))
    assert float(found) == pytest.approx(published_lambda_rank(scores.tolist(), labels.tolist()), rel=1e-6)
    assert float(mixed_lambda_rank(torch.zeros(1), torch.ones(1))) == 0


def test_the_loss_compares_rows_of_different_workloads() -> None:
    scores, labels = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.5])
    assert float(mixed_lambda_rank(scores, labels)) > 0


@pytest.mark.parametrize("multi_task", [False, True])
def test_training_lowers_the_loss_and_keeps_the_best_epoch(multi_task: bool) -> None:
    dataset = make_dataset(workloads=6, candidates=6)
    rows = np.arange(len(dataset))
    config = TlpConfig(epochs=5, batch=12)
    ranker = PublishedTlp(published_of(dataset), config, multi_task=multi_task)
    ranker.fit(dataset, rows, DEVICES[:2], 0)
    losses = ranker.validation_losses
    assert len(losses) == 5
    assert min(losses) < losses[0]
    # Stopped at the best epoch by hand, the same run gives the same scores.
    best = int(np.argmin(losses)) + 1
    again = PublishedTlp(published_of(dataset), replace(config, epochs=best), multi_task=multi_task)
    again.fit(dataset, rows, DEVICES[:2], 0)
    np.testing.assert_array_equal(
        again.score(dataset, rows, DEVICES[1]), ranker.score(dataset, rows, DEVICES[1])
    )


def test_a_head_learns_from_the_rows_that_have_its_label() -> None:
    dataset = make_dataset(workloads=8, candidates=8)
    few = with_latency(dataset, slice(5, None), DEVICES[2], np.nan)
    ranker = PublishedTlp(published_of(dataset), TlpConfig(epochs=2, batch=16), multi_task=True)
    ranker.fit(few, np.arange(len(few)), DEVICES, 0)
    assert np.isfinite(ranker.score(few, np.arange(10), DEVICES[2])).all()


def real_rows() -> tuple[Dataset, list[Candidate]]:
    workload = gmm_workload()
    candidates = gmm_candidates(workload, 7)
    spec, descriptor = cpu_device("cpu.a")
    records = [record_of(candidate, "cpu.a", 1e-3 * (n + 1)) for n, candidate in enumerate(candidates)]
    devices = {spec.device_id: (spec, descriptor)}
    return build_dataset(records, {workload.workload_id: workload}, devices), candidates


@pytest.mark.parametrize("layout", [CPU_LAYOUT, GPU_LAYOUT])
def test_rows_stand_in_the_order_of_the_dataset(layout, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three chunks, the last one smaller.
    monkeypatch.setattr(tlp, "_CHUNK", 3)
    dataset, candidates = real_rows()
    extractor = Extractor()
    found = published_rows(dataset, reversed(candidates), extractor.read, layout)
    assert found.shape == (7, layout.steps, layout.width)
    assert found.dtype == np.float32
    by_id = {candidate.candidate_id: candidate for candidate in candidates}
    for row, candidate_id in enumerate(dataset.candidate_ids):
        expected = published_features([extractor.read(by_id[candidate_id])], layout)[0]
        np.testing.assert_array_equal(found[row], expected)
    assert len(np.unique(found.reshape(7, -1), axis=0)) == 7


def test_others_are_passed_over_and_a_missing_one_is_an_error() -> None:
    dataset, candidates = real_rows()
    part = dataset.take(np.array([4, 1]))
    found = published_rows(part, candidates, Extractor().read, CPU_LAYOUT)
    assert found.shape == (2, CPU_LAYOUT.steps, CPU_LAYOUT.width)
    assert (found >= 0).all()
    with pytest.raises(DatasetError, match="6 candidates of the dataset are not among those given"):
        published_rows(dataset, candidates[:1], Extractor().read, CPU_LAYOUT)
