"""TVM's own cost models as rankers, and its features of real candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Candidate, Family, Workload
from benchmarks.learning import MLP_COLUMNS, WAYS, TvmRanker, join_features, per_store_features
from tests.conftest import GENERIC_CPU
from tests.model_fixtures import make_dataset
from transfer.data.ranking import rank_agreement
from transfer.errors import TransferError


@pytest.mark.tvm
@pytest.mark.parametrize("name", WAYS)
def test_both_models_learn_from_arrays(name: str) -> None:
    if name == "tvm-xgb":
        pytest.importorskip("xgboost")
    # Latencies follow from made-up features, summed over two stores.
    dataset, random = make_dataset(workloads=16, candidates=16), np.random.default_rng(0)
    parts = np.zeros((len(dataset), 2, MLP_COLUMNS), dtype=np.float32)
    parts[:, :, :4] = random.random((len(dataset), 2, 4)) + 0.1
    latency = np.repeat(np.exp(parts[:, :, 0].sum(axis=1))[:, None], 3, axis=1)
    dataset, features = replace(dataset, latency_secs=latency), join_features(list(parts))
    train, test = np.flatnonzero(dataset.group < 12), np.flatnonzero(dataset.group >= 12)
    model = TvmRanker(name, features)
    model.fit(dataset, train, ["cpu.a"], 1)
    scores = model.score(dataset, test, "cpu.a")
    assert rank_agreement(scores, -np.log(dataset.latency_secs[test, 0]), dataset.group[test]) > 0.4
    with pytest.raises(TransferError, match="has not learnt"):
        model.score(dataset, test, "cpu.b")
    with pytest.raises(TransferError, match="per-store features of 256 rows, the dataset has 20"):
        model.score(dataset.take(np.arange(20)), np.arange(3), "cpu.a")


@pytest.mark.tvm
def test_features_of_real_candidates(matmul: Workload, matmul_candidates: list[Candidate]) -> None:
    load_tensor_intrinsics(Family.CPU)
    foreign = '[[["GetSBlock",[],["nothing of this name","main"],["b0"]]],[]]'
    traces = [matmul_candidates[0].trace, foreign, matmul_candidates[1].trace]
    first, refused, second = per_store_features(matmul, traces, GENERIC_CPU)
    assert len(refused) == 0
    assert first.shape[1] == MLP_COLUMNS
    assert np.isfinite(first).all()
    assert not np.array_equal(first, second)
