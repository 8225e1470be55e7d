from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.model_fixtures import CONFIG, make_dataset, same_weights, trained, with_latency
from tests.strategy_fixtures import task_of
from transfer.adapt.base import Adapted, Strategy, unmeasured
from transfer.adapt.guard import Auto, MultiTask, Scratch
from transfer.adapt.heads import Boosted, FineTuneHead, Momentum
from transfer.adapt.maml import Maml
from transfer.adapt.nearest import Nearest
from transfer.adapt.source_devices import SourceCorrection, SourceDevices
from transfer.data.ranking import kendall_tau
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP

TARGET = "cpu-new"
#: Those that train on the few-shot set.
TRAINED: list[Strategy] = [
    Scratch(),
    Boosted(),
    MultiTask(),
    FineTuneHead(),
    Momentum(),
    Maml(outer_steps=2, steps=(2, 5)),
]
WITHOUT_SAMPLES: list[Strategy] = [Nearest(), SourceDevices(nets=1)]
STRATEGIES = [*TRAINED, *WITHOUT_SAMPLES, Auto(strategies=(MultiTask(), Nearest(), Scratch()))]
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
    return trained(DATASET, SOURCE_ROWS)


def same(a: Adapted, b: Adapted) -> bool:
    if (a.correction is None) != (b.correction is None) or not same_weights(a.model, b.model):
        return False
    if a.correction is None or b.correction is None:
        return True
    left, right = a.correction.arrays(), b.correction.arrays()
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)


def adapted_by(strategy: Strategy, source: FleetTLP | None, dataset=DATASET, few_shot=FEW_SHOT) -> Adapted:
    return strategy.adapt(task_of(source, dataset, TARGET, few_shot, SOURCE_ROWS, QUICK))


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


def test_nearest_with_no_sample_takes_the_nearest_hardware(source):
    hardware = DATASET.hardware.copy()
    hardware[DATASET.column(TARGET)] = hardware[DATASET.column("cpu.b")] + 0.01
    adapted = adapted_by(Nearest(), source, replace(DATASET, hardware=hardware), NOTHING)
    assert adapted.notes["sources"] == ["cpu.b"]
    assert np.array_equal(
        adapted.model.score(DATASET.features, TARGET), source.score(DATASET.features, "cpu.b")
    )


@pytest.mark.parametrize("strategy", TRAINED, ids=named)
def test_nothing_measured_on_the_target_is_an_error(strategy, source):
    with pytest.raises(
        TransferError, match=rf"none of the {len(FEW_SHOT)} few-shot rows has an ok measurement"
    ):
        adapted_by(strategy, source, BLIND)


# ---- by what source devices measured ----


@pytest.fixture(scope="module")
def without_samples(source) -> Adapted:
    return adapted_by(SourceDevices(nets=1), source, few_shot=NOTHING)


def test_candidates_that_source_devices_measured_go_by_their_latencies(without_samples):
    latency = DATASET.latency_secs
    both = np.flatnonzero(np.isfinite(latency[:, :2]).all(axis=1))
    scores = without_samples.score(DATASET, both)
    mean = np.log(latency[both, :2]).mean(axis=1)
    for one in np.unique(DATASET.group[both]):
        mine = DATASET.group[both] == one
        assert kendall_tau(scores[mine], mean[mine]) > 0.8


def test_samples_that_no_source_device_measured_train_the_networks(source):
    random = np.random.default_rng(3)
    latency = DATASET.latency_secs.copy()
    samples = random.permutation(len(DATASET))[:48]
    samples = samples[np.isfinite(latency[samples, 0])]
    latency[samples, DATASET.column(TARGET)] = 1e-6 / latency[samples, 0]
    shared = replace(DATASET, latency_secs=latency)
    alone = with_latency(with_latency(shared, samples, "cpu.a", np.nan), samples, "cpu.b", np.nan)
    shares, agreed = {}, {}
    for name, part, few_shot in (
        ("shared", shared, samples),
        ("alone", alone, samples),
        ("one", alone, samples[:1]),
    ):
        found = adapted_by(SourceDevices(nets=1), source, part, few_shot)
        scores = found.correction.score_unseen(found.model, part.features.take(samples))
        shares[name] = found.correction.nets_share
        agreed[name] = np.mean(
            [
                kendall_tau(scores[mine], latency[samples[mine], DATASET.column(TARGET)])
                for one in range(8)
                if (mine := DATASET.group[samples] == one).sum() > 2
            ]
        )
        again = SourceCorrection.restored(found.correction.arrays(), found.correction.settings())
        assert again.nets_share == found.correction.nets_share
    assert shares == {"shared": 0.0, "alone": 0.5, "one": 0.0}
    # On the target what is slow on source devices is fast: only the samples tell.
    assert agreed["alone"] > agreed["one"] + 0.3


def test_a_candidate_that_failed_on_the_source_devices_comes_last(without_samples):
    latency, failed = DATASET.latency_secs.copy(), DATASET.failed.copy()
    rows = np.flatnonzero(DATASET.group == 2)
    latency[rows[3], :], failed[rows[3], :2] = np.nan, True
    scores = without_samples.score(replace(DATASET, latency_secs=latency, failed=failed), rows)
    assert np.argmin(scores) == 3


def test_no_source_device_is_an_error(source):
    latency = DATASET.latency_secs.copy()
    latency[:, :2] = np.nan
    with pytest.raises(TransferError, match="needs a device beside 'cpu-new'"):
        adapted_by(SourceDevices(nets=3), source, replace(DATASET, latency_secs=latency), SOURCE_ROWS)
