"""The validity output: learnt from failures, kept with the model, and no part of any score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.model_fixtures import CONFIG, SPEC, make_block, make_dataset
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.training import LEAST_OF_EACH, train

RUN = replace(CONFIG, epochs=4)


def with_failures() -> Dataset:
    """On the first device all with a large summary fail; on the second a few; on the third none."""
    dataset = make_dataset(workloads=12, candidates=20)
    latency = np.where(np.isnan(dataset.latency_secs), 1e-3, dataset.latency_secs)
    failed = np.zeros_like(dataset.failed)
    failed[:, 0] = dataset.features.summary[:, 0] > 0.8
    failed[: LEAST_OF_EACH - 1, 1] = True
    return replace(dataset, latency_secs=np.where(failed, np.nan, latency), failed=failed)


DATASET = with_failures()
CALM = replace(DATASET, failed=np.zeros_like(DATASET.failed))
ROWS, HELD = np.flatnonzero(DATASET.group < 9), np.flatnonzero(DATASET.group >= 9)


@pytest.fixture(scope="module")
def model() -> FleetTLP:
    return train(DATASET, ROWS, config=RUN, seed=0).model


def test_failures_are_told_from_candidates_that_run(model: FleetTLP) -> None:
    found = model.validity(DATASET.features.take(HELD), "cpu.a")
    failed = DATASET.failed[HELD, 0]
    assert ((found > 0) & (found <= 1)).all()
    # Chance that one that ran has the larger value: the area under the ROC curve.
    assert (found[~failed][:, None] > found[failed][None, :]).mean() > 0.9
    assert found.mean() == pytest.approx(1 - failed.mean(), abs=0.15)


def test_where_too_few_failed_nothing_is_claimed(model: FleetTLP) -> None:
    for device_id in ("cpu.b", "cpu-new"):
        assert not model.tells_validity(device_id)
        assert (model.validity(DATASET.features, device_id) == 1).all()
    with pytest.raises(TransferError, match="no head for device 'gpu'"):
        model.validity(DATASET.features, "gpu")


def test_the_ranking_is_the_same_with_and_without_failures(model: FleetTLP) -> None:
    other = train(CALM, ROWS, config=RUN, seed=0).model
    assert not other.tells_validity("cpu.a")
    for device_id in model.device_ids:
        np.testing.assert_array_equal(
            model.score(DATASET.features, device_id), other.score(DATASET.features, device_id)
        )


def test_checkpoints_hold_it_where_it_is_told(tmp_path, model: FleetTLP) -> None:
    block = make_block(30)
    for name, one in (("told", model), ("untold", model.copy())):
        if name == "untold":
            one.validity_outputs.clear()
        checkpoint.save(tmp_path / name, one, {})
        loaded, _ = checkpoint.load_fleet_tlp(tmp_path / name, SPEC)
        assert loaded.tells_validity("cpu.a") == (name == "told")
        together = loaded.validity(block, "cpu.a")
        assert np.array_equal(together, one.validity(block, "cpu.a"))
        # A probability does not depend on company.
        few = np.array([5, 3, 17])
        assert np.array_equal(loaded.validity(block.take(few), "cpu.a"), together[few])
