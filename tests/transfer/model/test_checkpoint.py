from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model_fixtures import SIZES, SPEC, make_block
from transfer import checked_folder
from transfer.checked_folder import CheckpointError
from transfer.model import checkpoint
from transfer.model.checkpoint import load, save
from transfer.model.fleet_tlp import FleetTLP, model_config, scoped_seed


@pytest.fixture
def model() -> FleetTLP:
    with scoped_seed(1):
        model = FleetTLP(model_config(SPEC, SIZES), ("pi.local", "cpu_b"))
    model.fit_scaler(make_block(50, 7))
    return model.eval()


@pytest.fixture
def saved(tmp_path: Path, model: FleetTLP) -> Path:
    directory = tmp_path / "models" / "v1"
    save(directory, model, {"seed": 3, "table_version": 12, "metrics": {"top1": {"pi.local": 0.8}}})
    return directory


def edit(directory: Path, **changes: object) -> None:
    path = directory / checked_folder.MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_round_trip_gives_bit_equal_scores_and_the_manifest(saved, model):
    state = torch.random.get_rng_state()
    loaded, manifest = load(saved, SPEC)
    assert torch.equal(torch.random.get_rng_state(), state)
    block = make_block(40)
    for device_id in model.device_ids:
        assert np.array_equal(loaded.score(block, device_id), model.score(block, device_id))
    assert loaded.config == model.config
    assert loaded.device_ids == model.device_ids == tuple(manifest["heads"])
    assert not loaded.training
    assert manifest["table_version"] == 12
    assert manifest["metrics"] == {"top1": {"pi.local": 0.8}}
    assert manifest["spec_hash"] == SPEC.hash
    assert manifest["parameters"] == sum(p.numel() for p in model.parameters())


def test_folder_holds_two_files_and_equal_models_give_equal_ones(saved, model, tmp_path):
    assert sorted(p.name for p in saved.iterdir()) == ["manifest.json", "model.safetensors"]
    assert [p.name for p in saved.parent.iterdir()] == ["v1"]
    save(tmp_path / "again", model.copy(), {})
    first, again = (folder / "model.safetensors" for folder in (saved, tmp_path / "again"))
    assert first.read_bytes() == again.read_bytes()


def test_other_features_are_refused(saved):
    with pytest.raises(
        CheckpointError, match=r"model reads features .* this program makes .* train it again"
    ):
        load(saved, replace(SPEC, version=SPEC.version + 1))


@pytest.mark.parametrize("cut", [0, 1, 100, -1, None])
def test_torn_tensors_and_one_flipped_bit_are_refused(saved, cut):
    path = saved / "model.safetensors"
    raw = bytearray(path.read_bytes())
    if cut is None:
        raw[-5] ^= 1
    path.write_bytes(raw[:cut])
    with pytest.raises(CheckpointError, match="torn or changed"):
        load(saved)


def test_newer_layout_is_refused(saved):
    edit(saved, format_version=checkpoint.FORMAT_VERSION + 1)
    with pytest.raises(CheckpointError, match=r"layout version 2 is newer than this program's 1; update"):
        load(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_missing_file_or_folder_is_named(saved, name, tmp_path):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing .folder without this file"):
        load(saved)
    with pytest.raises(CheckpointError, match=r"nothere.*missing .no such folder"):
        load(tmp_path / "nothere")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[]", "expected an object, got list"), ("{}", "not a manifest of layout 1")],
)
def test_damaged_manifest_is_refused(saved, text, message):
    (saved / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load(saved)


def test_manifest_that_does_not_fit_the_tensors_is_refused(saved):
    edit(saved, heads=["pi.local"])
    with pytest.raises(CheckpointError, match="do not fit together"):
        load(saved)
    edit(saved, model={"unknown": 1})
    with pytest.raises(CheckpointError, match="do not fit together"):
        load(saved)


def test_a_checkpoint_is_never_overwritten(saved, model):
    before = (saved / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match="exists already"):
        save(saved, model, {})
    assert (saved / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("manifest", [{"heads": []}, {"score": float("nan")}, {"path": Path("x")}])
def test_bad_manifest_leaves_nothing_behind(tmp_path, model, manifest):
    with pytest.raises(CheckpointError, match="manifest"):
        save(tmp_path / "v1", model, manifest)
    assert list(tmp_path.iterdir()) == []


def test_interrupted_save_leaves_no_folder_of_that_name(tmp_path, model, monkeypatch):
    def fail(path: Path, raw: bytes) -> None:
        if path.name == checked_folder.MANIFEST_NAME:
            raise OSError(28, "No space left on device")
        path.write_bytes(raw)

    monkeypatch.setattr(checked_folder, "_write_synced", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "v1", model, {})
    assert list(tmp_path.iterdir()) == []
