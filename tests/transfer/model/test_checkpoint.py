from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import run_code
from tests.model_fixtures import SIZES, SPEC, make_block, untrained
from tests.table_fixtures import rows
from transfer import checked_folder
from transfer.checked_folder import CheckpointError
from transfer.model.checkpoint import load, save
from transfer.model.fleet_tlp import FleetTLP


@pytest.fixture
def model() -> FleetTLP:
    return untrained("pi.local", "cpu_b")


@pytest.fixture
def saved(tmp_path: Path, model: FleetTLP) -> Path:
    directory = tmp_path / "models" / "v1"
    save(directory, model, {"seed": 3, "table_version": 12, "metrics": {"top1": {"pi.local": 0.8}}})
    return directory


def edit(directory: Path, **changes: object) -> None:
    path = directory / checked_folder.MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_loading_imports_no_compiler_of_torch(model: FleetTLP, tmp_path: Path) -> None:
    model.set_validity("cpu_b", torch.ones(SIZES.trunk_width + 1))
    save(tmp_path / "v2", model, {})
    code = (
        "import sys, pathlib; from transfer.model.checkpoint import load; load(pathlib.Path(sys.argv[1])); "
    )
    code += "print([name for name in ('sympy', 'torch._dynamo') if name in sys.modules])"
    assert run_code(code, tmp_path / "v2") == "[]\n"


def test_round_trip_gives_bit_equal_scores_and_the_manifest(saved, model, tmp_path):
    state = torch.random.get_rng_state()
    loaded, manifest = load(saved, SPEC)
    assert torch.equal(torch.random.get_rng_state(), state)
    block = make_block(40)
    for device_id in model.device_ids:
        assert np.array_equal(loaded.score(block, device_id), model.score(block, device_id))
    assert loaded.settings() == model.settings()
    assert loaded.device_ids == model.device_ids == tuple(manifest["heads"])
    assert not loaded.training
    assert manifest["table_version"] == 12
    assert manifest["metrics"] == {"top1": {"pi.local": 0.8}}
    assert manifest["spec_hash"] == SPEC.hash
    assert manifest["parameters"] == sum(p.numel() for p in model.parameters())
    # Two files, and equal models give equal ones.
    assert sorted(p.name for p in saved.iterdir()) == ["manifest.json", "model.safetensors"]
    assert [p.name for p in saved.parent.iterdir()] == ["v1"]
    save(tmp_path / "again", model.copy(), {})
    first, again = (folder / "model.safetensors" for folder in (saved, tmp_path / "again"))
    assert first.read_bytes() == again.read_bytes()
    # Never written over, and never read as other features.
    with pytest.raises(CheckpointError, match="exists already"):
        save(saved, model, {})
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


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_file_that_is_missing_or_no_regular_one_is_named(saved, name, tmp_path):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing .folder without this file"):
        load(saved)
    with pytest.raises(CheckpointError, match=r"nothere.*missing .no such folder"):
        load(tmp_path / "nothere")
    os.mkfifo(saved / name)
    with pytest.raises(CheckpointError, match=f"{name}: is no regular file"):
        load(saved)
    (saved / name).unlink()
    (saved / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=f"{name}: is no regular file"):
        load(saved)


#: What a manifest says otherwise, and why it is refused.
MANIFESTS = r"""
    {"format_version": 1}         -> has layout 1, this version reads 2; use the version
    {"format_version": 3}         -> has layout 3, this version reads 2; use the version
    {"model_kind": "oracle"}      -> unknown kind of model 'oracle'; update the program
    {"heads": ["pi.local"]}       -> do not fit together
    {"model": {"unknown": 1}}     -> do not fit together
    {"heads": null}               -> heads: Input should be a valid list
    {"heads": [null]}             -> heads\.0: Input should be a valid string
    {"model": []}                 -> model: Input should be a valid dictionary
    {"tensors_sha256": ["x"]}     -> tensors_sha256: Input should be a valid string
    {"created_at": null}          -> created_at: Input should be a valid number
    {"created_at": 1e300}         -> created_at: Input should be less than
    {"data_until": {"a": "x"}}    -> data_until\.a: Input should be a valid number
    {"verdicts": {"a": null}}     -> verdicts\.a: Input should be a valid dictionary
    {"beside": {"x": null}}       -> beside\.x: Input should be a valid string
"""
#: What stands in its place.
NO_MANIFESTS = {
    "{": "not JSON",
    "[" * 100_000: "not JSON",
    "[]": "expected an object",
    "{}": "no manifest of",
}


@pytest.mark.parametrize(("changes", "message"), rows(MANIFESTS))
def test_a_manifest_that_says_what_cannot_be_is_refused_in_one_line(saved, changes, message):
    edit(saved, **json.loads(changes))
    with pytest.raises(CheckpointError, match=message) as refused:
        load(saved)
    assert "\n" not in str(refused.value)


def test_what_is_no_manifest_is_refused_in_one_line(saved):
    for text, message in NO_MANIFESTS.items():
        (saved / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match=message) as refused:
            load(saved)
        assert "\n" not in str(refused.value)


def test_more_heads_than_any_fleet_has_are_not_built(saved):
    edit(saved, heads=[str(number) for number in range(100_000)])
    with pytest.raises(CheckpointError, match="100000 heads"):
        load(saved)


#: Sizes that a manifest may name.
SIZES_OF_NO_MODEL = """
    {"step_width": 524288}
    {"step_width": 1099511627776}
    {"step_width": -8}
    {"step_width": 0}
    {"step_width": null}
    {"step_width": "8"}
    {"residual_blocks": 100000}
    {"attention_layers": 100000}
    {"summary_ramps": 100000}
    {"attention_heads": 0}
    {"attention_heads": 7}
    {"dropout": 2.0}
"""


@pytest.mark.parametrize("sizes", SIZES_OF_NO_MODEL.strip().splitlines())
def test_sizes_that_the_tensors_do_not_have_build_no_model(saved, sizes, monkeypatch):
    """A manifest could name sizes that fill the memory before any tensor was looked at."""
    config = json.loads((saved / checked_folder.MANIFEST_NAME).read_text())["model"]
    edit(saved, model={**config, "sizes": {**config["sizes"], **json.loads(sizes)}})
    monkeypatch.setattr(torch.random, "fork_rng", lambda **_: pytest.fail("it began to build one"))
    with pytest.raises(CheckpointError, match="do not fit together"):
        load(saved)


def test_interrupted_save_leaves_no_folder_of_that_name(tmp_path, model, monkeypatch):
    def fail(_paths: list[Path]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checked_folder, "fsync_all", fail)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path / "v1", model, {})
    assert list(tmp_path.iterdir()) == []
