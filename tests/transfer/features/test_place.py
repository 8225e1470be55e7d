"""A candidate's place in the design space: what it says, that company does not matter, and older models."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agents.records import Candidate
from tests.dataset_fixtures import NRM_TRACE, gmm_candidates, gmm_trace, gmm_workload
from transfer.checked_folder import CheckpointError
from transfer.errors import TransferError
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.place import PLACE_HASH, PLACE_NAMES, place_scale
from transfer.features.tiles import Tiles
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP, model_config
from transfer.train.training import TrainConfig

SIZES = TrainConfig().sizes


def extract(*traces: str) -> FeatureBlock:
    workload = gmm_workload()
    candidates = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in traces]
    return Extractor().extract([workload] * len(traces), candidates)


def block_of(count: int = 24) -> FeatureBlock:
    workload = gmm_workload()
    candidates = gmm_candidates(workload, count)
    return Extractor().extract([workload] * len(candidates), candidates)


def model_of(block: FeatureBlock, *, use_place: bool) -> FleetTLP:
    torch.manual_seed(0)
    model = FleetTLP(model_config(DEFAULT_SPEC, replace(SIZES, use_place=use_place)), ("board",))
    model.fit_scaler(block)
    return model.eval()


def tilings(*extents: int) -> Tiles:
    factors = np.ones((1, len(extents), 5))
    factors[0, :, 3] = extents
    return Tiles(factors=factors, reduction=np.zeros(len(extents), dtype=np.bool_))


def test_a_place_is_the_distance_from_a_sample_of_the_same_loops() -> None:
    scale = place_scale(tilings(64), [(0, 1, 2, 3)], None)
    assert scale is not None
    # Six factors of 2, each at one of four levels: 1.5 of them at a level on average, variance 6 * 1/4 * 3/4.
    at = PLACE_NAMES.index("spatial_0_factor_1")
    # Sizes are kept as logarithms, whose mean is the number of factors of 2.
    assert scale[0, at] == pytest.approx(1.5, abs=0.3)
    assert 1 / scale[1, at] == pytest.approx(math.sqrt(6 * 3 / 16), abs=0.2)
    # All of it lies inside of the outermost cut, whatever the tiling: nothing to compare.
    assert scale[:, PLACE_NAMES.index("cut_5_spatial")].tolist() == [0, 0]


@pytest.mark.parametrize("extent", [2**60, math.inf])
def test_loops_of_no_program_have_no_place(extent: float) -> None:
    tiles = tilings(1)
    tiles.factors[0, 0, 3] = extent
    assert place_scale(tiles, [(0, 1)], None) is None


def test_a_place_is_the_same_in_any_company() -> None:
    alone, together = extract(gmm_trace(unroll=1)), extract(NRM_TRACE, gmm_trace(), gmm_trace(unroll=1))
    np.testing.assert_array_equal(alone.place[0], together.place[2])
    assert not together.place[0].any(), "without tiles it is in no place"
    assert np.abs(alone.place).max() > 0
    workload = gmm_workload()
    used = Extractor()
    for candidate in gmm_candidates(workload, 4):
        fresh = Extractor().extract([workload], [candidate])
        np.testing.assert_array_equal(used.extract([workload], [candidate]).place, fresh.place)


def test_a_model_with_places_reads_them_and_refuses_features_without() -> None:
    block = block_of()
    model = model_of(block, use_place=True)
    assert block.place_scales is not None
    shifted = replace(block, place_scales=block.place_scales * np.float32(0.5))
    assert (model.score(block, "board") != model.score(shifted, "board")).any()
    with pytest.raises(TransferError, match="place slots: got 0"):
        model.score(replace(block, place_rows=None, place_scales=None), "board")


def test_a_checkpoint_by_other_samples_is_refused(tmp_path: Path) -> None:
    model = model_of(block_of(), use_place=True)
    checkpoint.save(tmp_path / "v", model, {})
    assert checkpoint.load(tmp_path / "v", DEFAULT_SPEC)[0].config == model.config
    path = tmp_path / "v" / "manifest.json"
    path.write_text(path.read_text().replace(PLACE_HASH, "0" * len(PLACE_HASH)))
    with pytest.raises(CheckpointError, match="other samples of design spaces"):
        checkpoint.load(tmp_path / "v", DEFAULT_SPEC)
