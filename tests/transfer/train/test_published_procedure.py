"""TLP and MTL-TLP are the published ones: their network, their loss, and how they are trained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, DEVICES, make_dataset, published, same_weights, with_latency
from transfer.features.blocks import CPU_LAYOUT
from transfer.model.kinds import MTL_TLP
from transfer.model.mtl_tlp import MtlTLP, TlpNetwork, mixed_lambda_rank
from transfer.train.rows import TrainConfig
from transfer.train.trainers import TlpConfig, TrainingTask, published_config, train_model, train_mtl_tlp


def test_the_network_has_the_published_parameters_but_for_the_dead_layer() -> None:
    def parameters(network: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in network.parameters())

    dead = 65_792
    assert parameters(TlpNetwork(22)) == 610_369 == 676_161 - dead
    assert parameters(TlpNetwork(20)) == 676_033 - dead
    assert [parameters(TlpNetwork(22, heads)) + dead for heads in (2, 3, 5)] == [783_170, 890_179, 1_104_197]
    parts = {name: parameters(module) for name, module in TlpNetwork(22).named_children()}
    assert parts == {"encoder": 108_608, "attention": 263_168, "residual": 131_584, "decoders": 107_009}


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


def test_training_lowers_the_loss_keeps_the_best_epoch_and_uses_the_rows_that_have_a_label() -> None:
    dataset = published(make_dataset(workloads=6, candidates=6))
    # The last device has a handful of labels.
    dataset = with_latency(dataset, slice(5, None), DEVICES[2], np.nan)
    rows, config = np.arange(len(dataset)), TlpConfig(epochs=5, batch=12)

    def trained(config: TlpConfig) -> tuple[MtlTLP, tuple[float, ...], int]:
        model, losses = train_mtl_tlp(
            dataset, rows, layout=CPU_LAYOUT, config=config, seed=0, devices=DEVICES
        )
        return model, losses, 1 + int(np.argmin(losses))

    model, losses, best = trained(config)
    assert len(losses) == 5
    assert losses[best - 1] == min(losses) < losses[0]
    # Stopped at the best epoch by hand, the same run gives the same weights.
    assert same_weights(trained(replace(config, epochs=best))[0], model)


def test_a_task_trains_an_mtl_tlp_too_if_its_features_are_there() -> None:
    dataset = make_dataset(workloads=4, candidates=6)
    rows, stop = np.split(np.arange(len(dataset)), [18])
    task = TrainingTask(
        dataset=published(dataset),
        rows=rows,
        stop_rows=stop,
        devices=DEVICES[:2],
        config=replace(CONFIG, epochs=1),
        seed=0,
    )
    made = train_model(MTL_TLP, task)
    assert (made.model.kind, made.model.device_ids) == (MTL_TLP, DEVICES[:2])
    assert (made.epochs_done, made.config["batch"], made.resumed_epochs) == (2, 1024, 0)
    # It holds back rows of its own, so it learns from all.
    whole = train_model(MTL_TLP, replace(task, rows=np.arange(len(dataset)), stop_rows=stop[:0]))
    assert same_weights(whole.model, made.model)
    # The published epochs stand beside the default ones of ours.
    assert published_config(TrainConfig(device="cpu")) == TlpConfig()
    assert published_config(TrainConfig(epochs=12, device="cpu")).epochs == 25
