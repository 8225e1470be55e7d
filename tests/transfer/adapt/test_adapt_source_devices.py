from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, make_dataset, trained, with_latency
from tests.strategy_fixtures import task_of
from transfer.adapt.base import Adapted
from transfer.adapt.source_devices import SourceCorrection, SourceDevices
from transfer.data.ranking import kendall_tau
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP

TARGET = "cpu-new"
DATASET = make_dataset(workloads=8, candidates=12)
SOURCE_ROWS = np.arange(len(DATASET))
NOTHING = np.zeros(0, dtype=np.int64)
QUICK = replace(CONFIG, epochs=3)


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    return trained(DATASET)


def adapt(source: FleetTLP, dataset=DATASET, few_shot=NOTHING, nets: int = 1) -> Adapted:
    return SourceDevices(nets=nets).adapt(task_of(source, dataset, TARGET, few_shot, SOURCE_ROWS, QUICK))


@pytest.fixture(scope="module")
def adapted(source) -> Adapted:
    return adapt(source)


def test_candidates_that_source_devices_measured_go_by_their_latencies(adapted):
    latency = DATASET.latency_secs
    both = np.flatnonzero(np.isfinite(latency[:, :2]).all(axis=1))
    scores = adapted.score(DATASET, both)
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


def test_a_candidate_that_failed_on_the_source_devices_comes_last(adapted):
    latency, failed = DATASET.latency_secs.copy(), DATASET.failed.copy()
    rows = np.flatnonzero(DATASET.group == 2)
    latency[rows[3], :], failed[rows[3], :2] = np.nan, True
    scores = adapted.score(replace(DATASET, latency_secs=latency, failed=failed), rows)
    assert np.argmin(scores) == 3


def test_no_source_device_is_an_error(source):
    latency = DATASET.latency_secs.copy()
    latency[:, :2] = np.nan
    with pytest.raises(TransferError, match="needs a device beside 'cpu-new'"):
        adapt(source, replace(DATASET, latency_secs=latency), SOURCE_ROWS, nets=3)
