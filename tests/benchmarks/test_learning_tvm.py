from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Candidate, Family, Workload
from benchmarks.learning_tvm import (
    MLP_COLUMNS,
    PerStoreFeatures,
    TvmMlp,
    TvmXgb,
    join_features,
    per_store_features,
)
from tests.conftest import GENERIC_CPU
from tests.model_fixtures import make_dataset
from transfer.data.dataset import Dataset
from transfer.data.ranking import rank_agreement
from transfer.errors import TransferError


def learnable() -> tuple[Dataset, PerStoreFeatures]:
    """Latencies that follow from made-up features, summed over two stores."""
    dataset = make_dataset(workloads=16, candidates=16)
    random = np.random.default_rng(0)
    parts = []
    for _ in range(len(dataset)):
        part = np.zeros((2, MLP_COLUMNS), dtype=np.float32)
        part[:, :4] = random.random((len(part), 4)) + 0.1
        parts.append(part)
    cost = np.array([part[:, 0].sum() for part in parts])
    latency = np.repeat(np.exp(cost)[:, None], 3, axis=1)
    return replace(dataset, latency_secs=latency), join_features(parts)


@pytest.mark.tvm
@pytest.mark.parametrize("ranker", [TvmXgb, TvmMlp])
def test_both_models_learn_from_arrays(ranker: type[TvmXgb] | type[TvmMlp]) -> None:
    if ranker is TvmXgb:
        pytest.importorskip("xgboost")
    dataset, features = learnable()
    train, test = np.flatnonzero(dataset.group < 12), np.flatnonzero(dataset.group >= 12)
    scores = []
    for _ in range(2):
        model = ranker(features)
        model.fit(dataset, train, ["cpu.a"], 1)
        scores.append(model.score(dataset, test, "cpu.a"))
    np.testing.assert_array_equal(*scores)
    assert rank_agreement(scores[0], -np.log(dataset.latency_secs[test, 0]), dataset.group[test]) > 0.4
    with pytest.raises(TransferError, match="has not learnt"):
        model.score(dataset, test, "cpu.b")
    with pytest.raises(TransferError, match="per-store features of 256 rows, the dataset has 20"):
        model.score(dataset.take(np.arange(20)), np.arange(3), "cpu.a")


@pytest.mark.tvm
def test_features_of_real_candidates(matmul: Workload, matmul_candidates: list[Candidate]) -> None:
    load_tensor_intrinsics(Family.CPU)
    traces = [candidate.trace for candidate in matmul_candidates[:3]]
    foreign = '[[["GetSBlock",[],["nothing of this name","main"],["b0"]]],[]]'
    found = per_store_features(matmul, [*traces, foreign, traces[0]], GENERIC_CPU)
    assert all(part.shape[1] == MLP_COLUMNS and np.isfinite(part).all() for part in found)
    assert all(len(part) >= 1 for part in found[:3])
    assert len(found[3]) == 0
    np.testing.assert_array_equal(found[0], found[4])
    assert any(not np.array_equal(found[0], part) for part in found[1:3])
