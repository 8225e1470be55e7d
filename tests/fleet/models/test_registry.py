"""Versions and champions: whole or not at all, picked up without a restart, never pruned while they serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceId
from fleet.models.registry import Registry
from fleet.models.registry_file import RegistryError
from tests.model_scenarios import ModelScenario
from tests.refresh_fixtures import small_model
from tests.scenario_fixtures import read_scenarios
from transfer.errors import TransferError

HEADS = ("box.a", "box.b")


def added(registry: Registry, *heads: str, seed: int = 0, **manifest: Any) -> str:
    return registry.add(small_model(*(heads or HEADS), seed=seed), manifest)


def with_versions(folder: Path, count: int, *devices: str) -> Registry:
    """A registry whose versions served some devices one after the other, each with figures of its own."""
    registry = Registry(folder / "models", clock=lambda: 7.0)
    for number in range(count):
        told = {"judged": {"tau": [number / 10, 0.0, 1.0]}}
        registry.publish(added(registry, *devices, seed=number), dict.fromkeys(devices, told))
    return registry


def served(registry: Registry) -> dict[str, str]:
    return {device: champion.version for device, champion in registry.champions().items()}


def test_a_version_that_was_changed_is_not_served(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    version = added(registry)
    registry.publish(version, {"box.a": {}})
    ref = registry.champion("box.a")
    tensors = registry.path(version) / "model.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(TransferError, match="torn or changed"):
        registry.load(ref)
    tensors.write_bytes(whole)
    manifest = registry.path(version) / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(RegistryError, match="was changed since the version was published"):
        registry.load(ref)


def test_why_a_champion_stays_is_kept_without_a_change_of_it_however_fast_the_next_one_comes(
    tmp_path: Path,
) -> None:
    """On a fast disk two changes come within one tick of the clock that dates files."""
    writer, reader = with_versions(tmp_path, 1, "box.a"), Registry(tmp_path / "models")
    serial = writer.state().serial
    for number in range(30):
        writer.retain({"box.a": f"{number:04d}", "box.z": "nobody serves it"})
        assert reader.champions()[DeviceId("box.a")].retained == f"{number:04d}"
    assert (reader.state().serial, len(reader.history())) == (serial, 1)


# ---- scenarios ----

SCENARIOS = read_scenarios(Path(__file__).with_name("registry_scenarios.txt"))


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, tmp_path: Path) -> None:
    ModelScenario(tmp_path, ()).play(SCENARIOS[title])
