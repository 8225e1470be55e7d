from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, make_dataset, same_weights, with_latency
from tests.strategy_fixtures import task_of
from transfer.adapt.base import Adapted, Strategy, unmeasured, visible_part
from transfer.adapt.heads import most_similar_heads, with_target_head
from transfer.adapt.maml import Maml
from transfer.adapt.multitask import MultiTask, Scratch
from transfer.adapt.nearest import Nearest
from transfer.adapt.source_devices import SourceDevices
from transfer.adapt.tuned_heads import Boosted, FineTuneHead, Momentum
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.losses import LossWeights, head_loss
from transfer.train.training import train

TARGET = "cpu-new"
#: Those that train on the few-shot set.
TRAINED: list[Strategy] = [
    Scratch(),
    Boosted(),
    MultiTask(),
    FineTuneHead(rate_shares=(0.3, 1.0)),
    Momentum(),
    Maml(outer_steps=2, steps=(2, 5)),
]
WITHOUT_SAMPLES: list[Strategy] = [Nearest(), SourceDevices(nets=1)]
STRATEGIES = [*TRAINED, *WITHOUT_SAMPLES]
DATASET = make_dataset(workloads=8, candidates=12)
SOURCE_ROWS = np.flatnonzero(DATASET.group < 6)
FEW_SHOT = np.flatnonzero((DATASET.group < 4) & (np.arange(len(DATASET)) % 3 == 0))
NOTHING = np.zeros(0, dtype=np.int64)
QUICK = replace(CONFIG, epochs=3)
#: Nothing is measured on the target.
BLIND = with_latency(DATASET, slice(None), TARGET, np.nan)


def named(strategy: Strategy) -> str:
    return strategy.name


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    return train(DATASET, SOURCE_ROWS, config=CONFIG, seed=0, devices=("cpu.a", "cpu.b")).model


def same(a: Adapted, b: Adapted) -> bool:
    if (a.correction is None) != (b.correction is None) or not same_weights(a.model, b.model):
        return False
    if a.correction is None or b.correction is None:
        return True
    left, right = a.correction.arrays(), b.correction.arrays()
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


def adapted_by(
    strategy: Strategy, source: FleetTLP | None, dataset=DATASET, few_shot=FEW_SHOT, seed=0, config=QUICK
) -> Adapted:
    return strategy.adapt(task_of(source, dataset, TARGET, few_shot, SOURCE_ROWS, config, seed))


def few_shot_loss(model: FleetTLP) -> float:
    part = visible_part(DATASET, TARGET, FEW_SHOT, FEW_SHOT)
    scores = model.score(part.features, TARGET)
    labels = part.labels()[:, part.column(TARGET)]
    total = 0.0
    for group in np.unique(part.group):
        there = part.group == group
        logits = torch.logit(torch.from_numpy(scores[there]))[None]
        label = torch.from_numpy(labels[there])[None]
        loss = head_loss(logits, label, label.isfinite(), terms=LossWeights())
        total += 0.0 if loss is None else loss.item()
    return total


@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_every_strategy_gives_a_head_that_follows_from_what_it_may_see_alone(strategy, source):
    before = source.copy()
    adapted = adapted_by(strategy, source)
    assert same_weights(source, before)
    hidden = np.setdiff1d(np.arange(len(DATASET)), FEW_SHOT)
    failed = DATASET.failed.copy()
    failed[hidden, DATASET.column(TARGET)] = True
    random = np.random.default_rng(0).uniform(1e-9, 1e3, len(hidden))
    other = replace(with_latency(DATASET, hidden, TARGET, random), failed=failed)
    # Rows in neither set are hidden on every device.
    again = adapted_by(strategy, source, with_latency(other, np.setdiff1d(hidden, SOURCE_ROWS), None, 1.0))
    assert same(adapted, again)
    rows = np.arange(len(DATASET))
    assert np.array_equal(adapted.score(DATASET, rows), again.score(other, rows))
    unseen = np.flatnonzero(DATASET.group >= 6)
    scores = adapted.score(unmeasured(DATASET, unseen), np.arange(len(unseen)))
    assert scores.shape == unseen.shape
    assert np.isfinite(scores).all()
    assert TARGET in adapted.model.device_ids
    assert not adapted.model.training
    assert all(parameter.requires_grad for parameter in adapted.model.parameters())


#: Boosting adds nothing for so few; `tests/transfer/model/test_trees.py` has more.
@pytest.mark.parametrize("strategy", [*TRAINED[:1], *TRAINED[2:], SourceDevices(nets=1)], ids=named)
def test_target_latencies_of_the_few_shot_set_have_influence(strategy, source):
    turned = DATASET.latency_secs[FEW_SHOT[::-1], DATASET.column(TARGET)]
    other = with_latency(DATASET, FEW_SHOT, TARGET, turned)
    one, two = (adapted_by(strategy, source, dataset) for dataset in (DATASET, other))
    # Those that may leave the head alone say at least what they found.
    assert not same(one, two) or one.notes != two.notes


@pytest.mark.parametrize("strategy", WITHOUT_SAMPLES, ids=named)
def test_some_strategies_need_no_sample_or_do_without_where_all_failed(strategy, source):
    assert strategy.least_samples == 0
    adapted = adapted_by(strategy, source, few_shot=NOTHING)
    assert np.isfinite(adapted.score(DATASET, np.arange(len(DATASET)))).all()
    assert np.isfinite(adapted_by(strategy, source, BLIND).score(BLIND, FEW_SHOT)).all()


@pytest.mark.parametrize("strategy", [*TRAINED[1:], *WITHOUT_SAMPLES], ids=named)
def test_a_missing_source_is_an_error_that_names_the_way_out(strategy):
    if isinstance(strategy, MultiTask):
        pytest.skip("trains all heads from nothing")
    with pytest.raises(TransferError, match=r"starts from a model of other devices.*'scratch'"):
        adapted_by(strategy, None)


def test_fine_tuning_leaves_the_backbone_alone(source):
    adapted = adapted_by(FineTuneHead(rate_shares=(3.0,)), source)
    before = source.state_dict()
    for name, value in adapted.model.state_dict().items():
        if not name.startswith(("heads.", "hardware.")):
            assert torch.equal(value, before[name]), name


def test_fine_tuning_may_find_that_it_is_better_to_leave_the_head_alone(source):
    # A rate this large can only spoil what the source knows of these labels.
    like = with_latency(DATASET, slice(None), TARGET, 1 / source.score(DATASET.features, "cpu.a"))
    adapted = adapted_by(FineTuneHead(rate_shares=(1000.0,)), source, like)
    assert adapted.notes["learning_rate"] == 0.0


def test_the_slow_copy_moves_less_than_the_fast_one(source):
    moved = {}
    for keep in (0.5, 0.99):
        model = adapted_by(Momentum(keep=keep), source).model
        moved[keep] = (model.join.weight - source.join.weight).detach().abs().sum().item()
    assert 0 < moved[0.99] < moved[0.5]


def test_meta_training_is_done_once_for_a_source_model(source, tmp_path):
    strategy = Maml(outer_steps=2, steps=(2,), starts=tmp_path)
    first = strategy.start(source, DATASET, QUICK, 0)
    assert strategy.start(source, DATASET, QUICK, 0) is first
    [path] = tmp_path.iterdir()
    # Another process, and another device, go on from what is kept, whatever sources measured since.
    again = Maml(outer_steps=2, steps=(2,), starts=tmp_path).start(source, BLIND.take(SOURCE_ROWS), QUICK, 0)
    assert same_weights(again.model, first.model)
    assert again.rates.keys() == first.rates.keys()
    assert all(torch.equal(again.rates[name], rate) for name, rate in first.rates.items())
    assert not same_weights(first.model, source)
    # A damaged one is made again.
    path.write_bytes(path.read_bytes()[:-8])
    made = Maml(outer_steps=2, steps=(2,), starts=tmp_path).start(source, DATASET, QUICK, 0)
    assert same_weights(made.model, first.model)
    strategy.start(source, DATASET, QUICK, 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_meta_training_with_one_source_device_uses_its_own_head(source):
    model = source.copy()
    model.drop_head("cpu.b")
    start = Maml(outer_steps=2).start(model, DATASET, QUICK, 0)
    assert start.model.device_ids == ("cpu.a",)
    assert not same_weights(start.model, model)


def test_nearest_with_no_sample_takes_the_nearest_hardware(source):
    hardware = DATASET.hardware.copy()
    hardware[DATASET.column(TARGET)] = hardware[DATASET.column("cpu.b")] + 0.01
    adapted = adapted_by(Nearest(), source, replace(DATASET, hardware=hardware), NOTHING)
    assert adapted.notes["sources"] == ["cpu.b"]
    assert np.array_equal(
        adapted.model.score(DATASET.features, TARGET), source.score(DATASET.features, "cpu.b")
    )


def test_adapting_lowers_the_loss_on_the_few_shot_set(source):
    part = visible_part(DATASET, TARGET, FEW_SHOT, SOURCE_ROWS)
    start = with_target_head(source, part, TARGET, seed=0)
    adapted = adapted_by(MultiTask(), source, config=replace(CONFIG, epochs=100))
    assert few_shot_loss(adapted.model) < 0.8 * few_shot_loss(start)


def test_multitask_keeps_the_source_heads_or_trains_all_at_once(source):
    assert adapted_by(MultiTask(), source).model.device_ids == (*source.device_ids, TARGET)
    assert set(adapted_by(MultiTask(), None).model.device_ids) == set(DATASET.device_ids)


def test_multitask_works_without_any_replay(source):
    model = MultiTask().adapt(task_of(source, DATASET, TARGET, FEW_SHOT, NOTHING, QUICK)).model
    for device_id in source.device_ids:
        for a, b in zip(source.head(device_id).parameters(), model.head(device_id).parameters(), strict=True):
            assert torch.equal(a, b)


def test_scratch_has_the_target_head_only_and_ignores_the_source(source):
    models = [
        Scratch().adapt(task_of(s, DATASET, TARGET, FEW_SHOT, rows, QUICK)).model
        for s, rows in ((source, SOURCE_ROWS), (None, SOURCE_ROWS[:1]))
    ]
    assert models[0].device_ids == (TARGET,)
    assert same_weights(*models)


def test_the_most_similar_head_is_found(source):
    part = visible_part(DATASET, TARGET, FEW_SHOT, SOURCE_ROWS)
    # A target whose speed is exactly what one head says; measured everywhere, so that no other head ties.
    like = with_latency(part, slice(None), TARGET, 1 / source.score(part.features, "cpu.b"))
    assert most_similar_heads(source, like, TARGET) == ("cpu.b",)


@pytest.mark.parametrize("strategy", TRAINED, ids=named)
def test_nothing_measured_on_the_target_is_an_error(strategy, source):
    with pytest.raises(
        TransferError, match=rf"none of the {len(FEW_SHOT)} few-shot rows has an ok measurement"
    ):
        adapted_by(strategy, source, BLIND)
