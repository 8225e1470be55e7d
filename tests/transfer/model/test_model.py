from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import SIZES, SPEC, changed_block, make_block, untrained
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP, model_config


@pytest.fixture
def model() -> FleetTLP:
    return untrained("cpu.a", "cpu_b")


def test_a_candidate_has_the_same_score_in_any_company(model):
    block = make_block(700)
    together = model.score(block, "cpu.a")
    order = np.random.default_rng(0).permutation(700)
    assert np.array_equal(model.score(block.take(order), "cpu.a"), together[order])
    for size in (1, 3, 128, 300):
        rows = order[:size]
        assert np.array_equal(model.score(block.take(rows), "cpu.a"), together[rows])


def test_scores_lie_within_zero_and_one_and_leave_mode_gradients_and_threads_alone(model):
    block = make_block(300)
    no_steps = replace(block, steps=np.zeros_like(block.steps))
    expected = model.score(block, "cpu.a")
    before = torch.get_num_threads()
    model.train()
    torch.set_num_threads(2)
    try:
        assert np.array_equal(model.score(block, "cpu.a"), expected)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    for one in (block, no_steps, block.take(np.arange(0)), block.take(np.arange(1))):
        scores = model.score(one, "cpu.a")
        assert scores.shape == (len(one),)
        assert ((scores > 0) & (scores <= 1)).all()
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "device_id", ["pi.local:9190", "a%2Eb", "keys", "forward", "Ünï code", "x86-64-v3", ""]
)
def test_any_device_id_names_a_head(device_id):
    # Ids that look alike have heads of their own.
    others = tuple(one for one in ("a.b", "a%2Eb", "a_b", "a%b") if one != device_id)
    model = FleetTLP(model_config(SPEC, SIZES), others)
    model.add_head(device_id)
    assert model.device_ids == (*others, device_id)
    assert model.score(make_block(2), device_id).shape == (2,)


def test_a_head_like_others_is_their_mean_and_goes_its_own_way_as_a_copy_does(model):
    block = make_block(9)
    before = model.score(block, "cpu.a")
    model.add_head("twin", like=("cpu.a",))
    model.add_head("mean", like=("cpu.a", "cpu_b"))
    assert np.array_equal(model.score(block, "twin"), before)
    states = [model.head(device_id).state_dict() for device_id in ("cpu.a", "cpu_b")]
    for name, value in model.head("mean").state_dict().items():
        assert torch.allclose(value, (states[0][name] + states[1][name]) / 2)
    copied = model.copy()
    with torch.no_grad():
        for parameter in (*model.head("twin").parameters(), *copied.parameters()):
            parameter.add_(0.1)
    assert np.array_equal(model.score(block, "cpu.a"), before)


def test_errors_name_what_is_there(model):
    with pytest.raises(TransferError, match=r"no head for device 'gpu'.*cpu\.a, cpu_b"):
        model.score(make_block(2), "gpu")
    with pytest.raises(TransferError, match="already has a head for device 'cpu_b'"):
        model.add_head("cpu_b")
    with pytest.raises(TransferError, match="no head for device 'gpu'"):
        model.add_head("x", like=("gpu",))
    block = make_block(2)
    narrow = changed_block(block, numbers=block.numbers[..., :2], workload=block.workload[:, :1])
    with pytest.raises(
        TransferError, match=r"number slots: got 2, expected 3; workload slots: got 1, expected 2"
    ):
        model.score(narrow, "cpu.a")
    with pytest.raises(TransferError, match="steps: got 9, at most 7"):
        model.score(make_block(40, steps=9), "cpu.a")
