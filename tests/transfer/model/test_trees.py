"""The trees: what they learn, that no score depends on its company, and that they stay with the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_fixtures import CONFIG, make_block, make_dataset
from transfer.data.ranking import order_agreement
from transfer.errors import TransferError
from transfer.features.flat import flat_inputs
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP
from transfer.model.trees import Trees, joint_scores, pack
from transfer.train.training import train

DATASET = make_dataset(workloads=16, candidates=20)
ROWS, HELD = np.flatnonzero(DATASET.group < 12), np.flatnonzero(DATASET.group >= 12)
RUN = replace(CONFIG, epochs=4, trees=60)
FLAT = flat_inputs(DATASET.features, DATASET.spec.category_sizes)


@pytest.fixture(scope="module")
def model() -> FleetTLP:
    return train(DATASET, ROWS, config=RUN, seed=0).model


def hardware(device_id: str) -> np.ndarray:
    return DATASET.hardware[DATASET.column(device_id)]


def test_they_rank_workloads_that_they_never_saw(model: FleetTLP) -> None:
    told = model.trees.log_speeds(FLAT[HELD], hardware("cpu.a"))
    found = []
    for group in np.unique(DATASET.group[HELD]):
        mine = np.flatnonzero((DATASET.group[HELD] == group) & np.isfinite(DATASET.latency_secs[HELD, 0]))
        found.append(order_agreement(told[mine], DATASET.latency_secs[HELD[mine], 0])[0])
    assert np.mean(found) > 0.75


def test_a_score_is_the_vote_of_both(model: FleetTLP) -> None:
    block = DATASET.features.take(HELD)
    network = model.copy()
    network.trees = None
    alone = np.log(network.score(block, "cpu.b"))
    told = model.trees.log_speeds(FLAT[HELD], hardware("cpu.b"))
    scores = model.score(block, "cpu.b")
    assert scores == pytest.approx(joint_scores(alone, told))
    assert np.array_equal(np.argsort(scores), np.argsort(alone + told))
    for rows in (np.array([5]), np.arange(len(block))[::-1]):
        assert np.array_equal(model.score(block.take(rows), "cpu.b"), scores[rows]), "in any company"


@given(st.lists(st.floats(-50, 0), min_size=2, max_size=20, unique=True), st.floats(-50, 30, allow_nan=False))
def test_scores_stay_in_order_above_0_and_not_above_1(network: list[float], trees: float) -> None:
    values = np.sort(np.array(network))
    scores = joint_scores(values, np.full(len(values), trees))
    assert ((scores > 0) & (scores <= 1)).all()
    assert (np.diff(scores) >= 0).all()


def test_they_are_kept_with_the_model_and_without_them_the_network_stands_alone(
    model: FleetTLP, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path / "v1", model, {})
    again, _ = checkpoint.load(tmp_path / "v1")
    block = make_block(30, seed=5)
    for device_id in model.device_ids:
        assert np.array_equal(again.score(block, device_id), model.score(block, device_id))
    alone = train(DATASET, ROWS, config=replace(RUN, trees=0), seed=0).model
    assert alone.trees is None
    assert not [name for name in alone.state_dict() if name.startswith(("trees.", "hardware."))]
    twin = model.copy()
    twin.load_state_dict(alone.state_dict())
    assert twin.trees is None


def test_damaged_trees_and_other_inputs_are_refused(model: FleetTLP, monkeypatch: pytest.MonkeyPatch) -> None:
    flat, device = np.zeros((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
    with pytest.raises(TransferError, match="trees read 21 numbers a candidate, this program has 5"):
        model.trees.log_speeds(flat, device)
    monkeypatch.setattr("transfer.model.trees._MOST_BYTES", 1_000)
    for raw in (b"no trees", b"x", pack(b"{" * 99)[:-4], pack(b"{" * 2_000)):
        with pytest.raises(TransferError, match="trees cannot be read"):
            Trees(raw, 0.0).log_speeds(flat, device)
