from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, make_dataset, with_latency
from tests.strategy_fixtures import task_of
from transfer.adapt.base import Adapted, unmeasured
from transfer.adapt.source_devices import SourceCorrection, SourceDevices
from transfer.adapt.source_model import fast_weights, fit_source_model, hardware_mix, part_latencies
from transfer.data.ranking import kendall_tau
from transfer.errors import TransferError
from transfer.model.encoder import ModelSizes
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.training import train

TARGET = "cpu-new"
DATASET = make_dataset(workloads=8, candidates=12)
SOURCE_ROWS = np.arange(len(DATASET))
NOTHING = np.zeros(0, dtype=np.int64)
QUICK = replace(CONFIG, epochs=3)


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    return train(DATASET, SOURCE_ROWS, config=CONFIG, seed=0, devices=("cpu.a", "cpu.b")).model


def adapt(source: FleetTLP, dataset=DATASET, few_shot=NOTHING, nets: int = 1) -> Adapted:
    return SourceDevices(nets=nets).adapt(task_of(source, dataset, TARGET, few_shot, SOURCE_ROWS, QUICK))


@pytest.fixture(scope="module")
def adapted(source) -> Adapted:
    return adapt(source)


def test_a_table_with_holes_is_parted_into_what_made_it():
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(5), 20).astype(np.int32)
    shared, level = random.normal(size=100), random.normal(size=(5, 3))
    latency = np.exp(shared[:, None] + level[group])
    latency[random.random(latency.shape) < 0.3] = np.nan
    agreed = part_latencies(latency, group)
    known = np.isfinite(latency).any(axis=1)
    assert np.array_equal(np.isfinite(agreed.shared), known)
    assert np.abs(agreed.own).max() < 0.02
    for one in range(5):
        mine = known & (group == one)
        difference = agreed.shared[mine] - shared[mine]
        assert np.ptp(difference) < 0.05


def test_fast_candidates_weigh_most_and_unknown_ones_nothing():
    weight = fast_weights(np.array([0.0, 1.0, np.nan, 5.0, 6.0]), np.array([0, 0, 0, 1, 1], dtype=np.int32))
    assert np.allclose(weight, [1.0, np.exp(-1), 0.0, 1.0, np.exp(-1)])


def test_hardware_beyond_the_source_devices_goes_on_with_their_trend():
    sources = np.array([[1.0, 7.0], [2.0, 7.0], [3.0, 7.0]])
    known = np.vstack([sources, [4.0, 7.0]])
    mix = hardware_mix(sources, known[3], known)
    assert mix[2] > 0 > mix[0]
    assert abs(mix[1]) < 1e-9
    assert np.array_equal(hardware_mix(sources[:1], known[3], known), [0.0])


def test_like_hardware_takes_up_what_is_a_source_devices_own():
    sources = np.array([[0.0], [1.0]])
    mix = hardware_mix(sources, sources[1], np.vstack([sources, sources[1:]]))
    assert mix[1] > 0.3 > -0.3 > mix[0]


def test_candidates_that_source_devices_measured_go_by_their_latencies(adapted):
    latency = DATASET.latency_secs
    both = np.flatnonzero(np.isfinite(latency[:, :2]).all(axis=1))
    scores = adapted.score(DATASET, both)
    mean = np.log(latency[both, :2]).mean(axis=1)
    for one in np.unique(DATASET.group[both]):
        mine = DATASET.group[both] == one
        assert kendall_tau(scores[mine], mean[mine]) > 0.8


def test_the_head_has_half_of_the_weight_on_what_source_devices_measured(adapted):
    known = np.flatnonzero(np.isfinite(DATASET.latency_secs[:, :2]).any(axis=1) & (DATASET.group == 1))
    whole = np.log(adapted.score(DATASET, known))
    correction = adapted.correction
    estimate = np.log(replace(correction, head_share=0.0).score(adapted.model, DATASET, known))
    head = np.log(correction.score_unseen(adapted.model, DATASET.features.take(known)))
    assert np.allclose(whole - whole.max(), (estimate + head) / 2 - ((estimate + head) / 2).max())
    assert not np.allclose(whole, estimate)


def test_the_vote_of_the_head_is_kept_with_the_model(adapted):
    correction = adapted.correction
    settings = correction.settings()
    assert SourceCorrection.restored(correction.arrays(), settings).head_share == 0.5
    del settings["head_share"]
    with pytest.raises(TransferError, match=r"head_share.*adapt the device again"):
        SourceCorrection.restored(correction.arrays(), settings)


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
        found = adapt(source, part, few_shot)
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


def test_the_targets_own_latencies_are_not_looked_at_when_scoring(adapted):
    plain = replace(DATASET, failed=DATASET.failed & False)
    other = with_latency(plain, slice(None), TARGET, DATASET.latency_secs[::-1, DATASET.column(TARGET)])
    assert np.array_equal(adapted.score(plain, SOURCE_ROWS), adapted.score(other, SOURCE_ROWS))


def test_without_labels_of_source_devices_head_and_networks_are_an_ensemble(source, adapted):
    rows = np.arange(24)
    scores = adapted.score(unmeasured(DATASET, rows), rows)
    head = adapted.model.score(DATASET.features.take(rows), TARGET)
    assert ((scores > 0) & (scores <= 1)).all()
    assert not np.array_equal(scores, head)
    alone = adapt(source, nets=0)
    assert np.allclose(
        alone.score(unmeasured(DATASET, rows), rows),
        alone.model.score(DATASET.features.take(rows), TARGET),
        rtol=1e-9,
    )


def test_a_candidate_that_only_one_source_device_lacks_is_not_taken_for_fast(adapted):
    rows = np.flatnonzero(DATASET.group == 0)
    latency = DATASET.latency_secs[:, :2].mean(axis=1)
    slowest = rows[np.nanargmax(latency[rows])]
    holes = DATASET.latency_secs.copy()
    # The source device that is slow throughout lacks it.
    holes[slowest, 1] = np.nan
    holes[:, 1] *= 100
    scores = adapted.score(replace(DATASET, latency_secs=holes), rows)
    assert scores[rows == slowest][0] < np.median(scores)


def test_a_candidate_that_failed_on_the_source_devices_comes_last(adapted):
    latency, failed = DATASET.latency_secs.copy(), DATASET.failed.copy()
    rows = np.flatnonzero(DATASET.group == 2)
    latency[rows[3], :], failed[rows[3], :2] = np.nan, True
    scores = adapted.score(replace(DATASET, latency_secs=latency, failed=failed), rows)
    assert np.argmin(scores) == 3


def test_measured_samples_draw_the_estimate_towards_the_source_device_that_is_right():
    # On the target, candidates behave as on the second source device; hardware says nothing of it.
    random = np.random.default_rng(1)
    latency = np.exp(random.normal(size=(len(DATASET), 3)) * 0.5)
    latency[:, 2] = latency[:, 1]
    hidden = latency.copy()
    few_shot = random.permutation(len(DATASET))[:64]
    hidden[np.setdiff1d(SOURCE_ROWS, few_shot), 2] = np.nan
    hardware = np.zeros_like(DATASET.hardware)
    few = replace(DATASET, latency_secs=hidden, hardware=hardware)
    none = replace(few, latency_secs=np.where(np.arange(3) == 2, np.nan, latency))
    held = np.setdiff1d(SOURCE_ROWS, few_shot)
    tau = {}
    for name, part in (("none", none), ("few", few)):
        _, log_secs = fit_source_model(part, TARGET, ("cpu.a", "cpu.b"), 0)
        tau[name] = np.mean(
            [
                kendall_tau(-log_secs[mine], latency[mine, 2])
                for one in range(8)
                if len(mine := held[DATASET.group[held] == one]) > 1
            ]
        )
    assert tau["few"] > tau["none"] + 0.1


def test_estimates_are_those_of_the_stored_model():
    part = replace(
        DATASET, latency_secs=np.where(np.isfinite(DATASET.latency_secs), DATASET.latency_secs, 1.0)
    )
    model, log_secs = fit_source_model(part, TARGET, ("cpu.a", "cpu.b"), 0)
    rows, value = model.predict(part, np.arange(8))
    for one in range(8):
        mine = DATASET.group == one
        assert np.ptp((log_secs[rows] - value)[mine[rows]]) < 1e-4


def test_what_lacks_its_arrays_is_not_restored(adapted):
    with pytest.raises(TransferError, match="adapt the device again"):
        SourceCorrection.restored({}, adapted.correction.settings())


def test_a_device_adds_at_most_two_megabytes():
    # The real widths: 101 summary slots, and as many measurements as are kept.
    slots, sizes = 101, ModelSizes()
    head = 4 * (sizes.trunk_width * sizes.head_width + 2 * sizes.head_width + 1)
    nets = 4 * SourceDevices().nets * (slots * 256 + 256 * 256 + 3 * 256 + 1)
    assert head + nets + 4 * 1024 * (slots + 1) + 16 * slots < 2e6


def test_no_source_device_is_an_error(source):
    latency = DATASET.latency_secs.copy()
    latency[:, :2] = np.nan
    with pytest.raises(TransferError, match="needs a device beside 'cpu-new'"):
        adapt(source, replace(DATASET, latency_secs=latency), SOURCE_ROWS, nets=3)
