"""Does the check tell a source that helps from one that hurts?"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from agents.records import DeviceId
from tests.model_fixtures import CONFIG, folds_of, make_dataset, with_latency
from transfer.data.intervals import Estimate
from transfer.errors import TransferError
from transfer.evaluate.negative_transfer import HURTS, UNCLEAR, Effect, check_transfer

QUICK = replace(CONFIG, epochs=4)
DATASET = make_dataset(workloads=9, candidates=8)
SPLITS = folds_of(DATASET)


def test_every_head_is_compared_with_every_source_and_alone():
    seen: list[tuple[int, int]] = []
    check = check_transfer(DATASET, SPLITS, QUICK, seed=0, on_progress=lambda *at: seen.append(at))
    pairs = {(effect.head, effect.source) for effect in check.effects}
    devices = [str(device_id) for device_id in DATASET.device_ids]
    assert pairs == {(head, source) for head in devices for source in (None, *devices) if source != head}
    assert seen[-1] == (21, 21)
    assert all(effect.workloads == 9 for effect in check.effects)
    for effect in check.effects:
        assert effect.pairwise.low <= effect.pairwise.value <= effect.pairwise.high
    assert json.loads(json.dumps(check.to_json()))["folds"] == 3


def test_a_source_that_ranks_the_other_way_round_is_found_to_hurt():
    good = make_dataset(workloads=24, candidates=12, seed=2)
    latency = good.latency_secs[:, [0, 0, 0]].copy()
    # Few labels of its own, so that the head leans on what the others say of the backbone.
    latency[:, 1] = 1e-6 / latency[:, 1]
    own = np.random.default_rng(0).random(len(good)) < 0.25
    latency[~own, 0] = np.nan
    device_ids = tuple(map(DeviceId, ("own", "liar", "twin")))
    mixed = replace(
        good, latency_secs=latency, device_ids=device_ids, failed=np.zeros(latency.shape, dtype=bool)
    )
    check = check_transfer(mixed, folds_of(good, 2), replace(CONFIG, epochs=12), seed=0)
    effects = {(effect.head, effect.source): effect.pairwise.value for effect in check.effects}
    assert effects["own", "twin"] > effects["own", "liar"]


def effect(low: float, high: float, source: str | None = "b") -> Effect:
    estimate = Estimate((low + high) / 2, low, high)
    return Effect(head="a", source=source, pairwise=estimate, top1=estimate, workloads=3)


def test_the_verdict_needs_the_whole_interval_on_one_side():
    assert effect(-0.2, -0.1).verdict == HURTS
    assert effect(-0.2, 0.1).verdict == UNCLEAR
    assert effect(0.1, 0.2).verdict == "helps"


def test_devices_that_cannot_be_compared_are_refused():
    alone = with_latency(with_latency(DATASET, slice(None), "cpu.b", np.nan), slice(None), "cpu-new", np.nan)
    with pytest.raises(TransferError, match=r"only 1 can be trained in all folds; measure at least two"):
        check_transfer(alone, SPLITS, QUICK, seed=0)
