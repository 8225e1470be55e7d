"""A new device's head as a version: which of several serves, and what the version says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceId
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHeads
from fleet.models.versions import ORIGIN, DatasetSnapshot, training_workloads
from fleet.onboarding.head_version import adapt_version, onboarding_of, serving_of
from fleet.onboarding.text import lines_of
from fleet.store.store import Store
from tests.model_scenarios import upside_down
from tests.onboarding_fixtures import NEW
from transfer.adapt.nearest import Nearest
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.rows import TrainConfig

CONFIG = TrainConfig(epochs=1, trees=5)
TARGET = DeviceId(NEW)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


Onboard = Callable[..., str]


@pytest.fixture
def onboard(
    recorded: DatasetSnapshot, recorded_store: Path, registry: Registry, source_model: FleetTLP
) -> Onboard:
    """Gives the target a head from so many samples, and the name of its version."""
    store = Store.read(recorded_store)
    shipped = ShippedHeads(registry, store, enabled=False)

    def made(samples: int, records: DatasetSnapshot = recorded, **changes: Any) -> str:
        group = records.dataset.group.tolist()
        # As many of each workload.
        order = sorted(range(len(group)), key=lambda row: (group[:row].count(group[row]), row))
        few_shot = {records.dataset.candidate_ids[row] for row in order[:samples]}
        one = onboarding_of(records, TARGET, few_shot, source_model, CONFIG, 0)
        return adapt_version(replace(one, **changes), records, shipped, Nearest())[1]

    return made


def test_a_second_head_does_not_serve_unjudged_and_it_is_said(onboard: Onboard, registry: Registry) -> None:
    first = onboard(16)
    assert {device: one.version for device, one in registry.champions().items()} == {TARGET: first}
    served = serving_of(registry, TARGET, first)
    assert served["served_by"] == first
    assert served["why_served"].startswith("first head, unjudged: it needs 54 more measured workloads")
    second = onboard(64)
    assert {one.version for one in registry.champions().values()} == {first}
    found = serving_of(registry, TARGET, second)
    # The source model and the first head have learnt from all workloads of the samples.
    why = "needs samples of 8 more workloads to be judged: 0 of 8 can judge it"
    assert found["served_by"] == first
    assert found["why_not_served"].startswith(why)
    assert registry.champions()[TARGET].retained.startswith(f"{second}: {why}")
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
    assert f"{NEW} is served by {first}: first head, unjudged" in text
    assert f"{second} is a challenger: {why}" in text
    assert f"fleet models use {NEW} {second}" in text
    registry.use(TARGET, second, reason="as the report says", by_hand=True)
    assert registry.champions()[TARGET].version == second


@pytest.mark.parametrize("is_better", [True, False])
def test_a_head_from_samples_serves_where_they_judge_it_better(
    is_better: bool, onboard: Onboard, registry: Registry, model_of_all: FleetTLP, source_model: FleetTLP
) -> None:
    """Each sample is scored by a head that learnt from other workloads; the champion meets it there."""
    champion = upside_down(model_of_all) if is_better else model_of_all
    # It goes back to the model that the onboarding starts from, which so gives none of them a lead.
    first = registry.add(champion, {ORIGIN: "kin", "trained_workloads": []})
    registry.publish(first, {NEW: {}})
    version = onboard(64, origin="kin", source=source_model if is_better else upside_down(source_model))
    found = serving_of(registry, TARGET, version)
    if is_better:
        assert found["served_by"] == version
        assert found["why_served"].startswith("better: ")
        assert "on 8 held-out workloads, +" in found["why_served"]
    else:
        assert found["served_by"] == first
        assert found["why_not_served"].startswith("worse: ")


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
    found = serving_of(registry, TARGET, version)
    assert (found["served_by"], found["why_not_served"]) == ("v000001", "v000001 took the place meanwhile")


def test_a_champion_that_cannot_serve_is_followed_unless_it_is_pinned(
    onboard: Onboard, registry: Registry
) -> None:
    first = onboard(16)
    (registry.path(first) / "model.safetensors").write_bytes(b"torn")
    # A person decided.
    registry.use(TARGET, first, reason="for the release", pins=True)
    second = onboard(64)
    found = serving_of(registry, TARGET, second)
    assert found["served_by"] == first
    assert found["why_not_served"].startswith(f"the device is pinned to {first}")
    registry.unpin(TARGET, reason="")
    third = onboard(16)
    champion = registry.champions()[TARGET]
    assert champion.version == third
    assert champion.reason.startswith(f"{first} cannot serve any more (")
