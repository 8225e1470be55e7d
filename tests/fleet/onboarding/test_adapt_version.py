"""A new device's head as a version: which of several serves, and what the version says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceId
from fleet.models.judge import training_workloads
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot, load_snapshot, retention_reason
from fleet.onboarding.head_version import adapt_version, onboarding_of, serving_of
from fleet.onboarding.text import lines_of
from fleet.store.store import Store
from tests.onboarding_fixtures import NEW, SOURCES
from transfer.adapt.nearest import Nearest
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig

CONFIG = TrainConfig(epochs=1, trees=5)
TARGET = DeviceId(NEW)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


Onboard = Callable[..., str]


@pytest.fixture
def onboard(recorded: DatasetSnapshot, registry: Registry, source_model: FleetTLP) -> Onboard:
    """Gives the target a head from so many samples, and the name of its version."""

    def made(samples: int, records: DatasetSnapshot = recorded, **changes: Any) -> str:
        few_shot = set(records.dataset.candidate_ids[:samples])
        one = onboarding_of(records, TARGET, few_shot, source_model, CONFIG, 0)
        return adapt_version(replace(one, **changes), records, registry.folder, Nearest())[1]

    return made


@pytest.mark.parametrize("samples", [16, 64])
def test_a_second_head_does_not_serve_unjudged_and_it_is_said(
    samples: int, onboard: Onboard, registry: Registry
) -> None:
    first = onboard(16)
    assert {one.version for one in registry.champions().values()} == {first}
    assert serving_of(registry, TARGET, first) == {"served_by": first}
    second = onboard(samples)
    assert {one.version for one in registry.champions().values()} == {first}
    found = serving_of(registry, TARGET, second)
    why = (
        f"it was onboarded from 16 samples, this one onboarded from {samples}, and nobody judged which is "
        "better"
    )
    assert found == {"served_by": first, "why_not_served": why}
    assert registry.champions()[TARGET].retained == f"{second}: {why}"
    told = {
        "device": NEW,
        "samples": 16,
        "samples_asked": 16,
        "strategy": "nearest",
        "taken": "nearest",
        "source_devices": [],
        **found,
    }
    text = "\n".join(lines_of({**told, "version": second, "path": "p", "seconds": {}}))
    assert f"{NEW} is still served by {first}, not by {second}: it was onboarded from 16" in text
    registry.rollback(TARGET, second, reason="as the report says", by_hand=True)
    assert registry.champions()[TARGET].version == second


def test_a_version_says_what_its_source_model_learnt_from(
    recorded_store: Path, recorded: DatasetSnapshot, onboard: Onboard, registry: Registry
) -> None:
    """The weights of the source have seen it, whether the onboarding looks at its rows or not."""
    reader = Store.read(recorded_store)
    told = {"trained_workloads": ["x"], "inherited_workloads": ["y"]}
    manifest = registry.manifest(onboard(16, inherited=training_workloads(reader, told)))
    own = set(recorded.dataset.workload_ids)
    assert set(manifest["trained_workloads"]) == own
    assert manifest["inherited_workloads"] == ["x", "y"]
    # What goes on from this one has seen all of it.
    assert training_workloads(reader, manifest) == own | {"x", "y"}
    # Where nobody knows, it may have seen anything.
    assert training_workloads(reader, {}) == set(reader.workloads())


def test_a_champion_that_comes_while_a_head_is_kept_stays(
    onboard: Onboard, registry: Registry, model_of_all: FleetTLP, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a refresh publishes one between the onboarding's question who serves and its own publication."""
    add = Registry.add

    def beaten(self: Registry, *arguments: Any) -> str:
        monkeypatch.undo()
        registry.publish(registry.add(model_of_all, {}), {one: {} for one in model_of_all.device_ids})
        return add(self, *arguments)

    monkeypatch.setattr(Registry, "add", beaten)
    version = onboard(64)
    assert {one.version for one in registry.champions().values()} == {"v000001"}
    assert serving_of(registry, TARGET, version) == {
        "served_by": "v000001",
        "why_not_served": "v000001 took the place meanwhile",
    }


def test_a_champion_that_cannot_serve_is_followed_unless_it_is_pinned(
    onboard: Onboard, registry: Registry
) -> None:
    first = onboard(16)
    (registry.path(first) / "model.safetensors").write_bytes(b"torn")
    # A person decided.
    registry.pin(TARGET, reason="for the release")
    second = onboard(64)
    why = f"{TARGET} is pinned to {first}"
    assert serving_of(registry, TARGET, second) == {"served_by": first, "why_not_served": why}
    registry.unpin(TARGET, reason="")
    third = onboard(16)
    champion = registry.champions()[TARGET]
    assert (champion.version, champion.reason) == (third, f"{first} cannot serve any more; not judged")
    assert {one.version for device, one in registry.champions().items() if device != TARGET} == {first}


def test_a_trained_head_stays(onboard: Onboard, registry: Registry, model_of_all: FleetTLP) -> None:
    registry.publish(registry.add(model_of_all, {}), {one: {} for one in model_of_all.device_ids})
    version = onboard(64)
    assert registry.champions()[TARGET].version == "v000001"
    assert "was trained" in serving_of(registry, TARGET, version)["why_not_served"]
    # One that cannot be asked any more protects nobody.
    (registry.path("v000001") / "manifest.json").write_text("{")
    assert retention_reason(registry, TARGET, {"onboarded": NEW, "samples": 1}) == ""


def test_a_head_that_the_store_has_no_records_of_is_no_error(
    recorded_store: Path, onboard: Onboard, registry: Registry
) -> None:
    """It was seen at the very end, when all samples had been measured."""
    fewer = load_snapshot(
        Store.read(recorded_store), device_ids=[DeviceId("dev-a"), DeviceId("dev-b"), TARGET]
    )
    manifest = registry.manifest(onboard(16, fewer))
    assert set(manifest["heads"]) == {*SOURCES, NEW}
    assert set(manifest["trained_heads"]) == {"dev-a", "dev-b", NEW}
