"""Versions and champions: whole or not at all, picked up without a restart, never pruned while they serve."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.records import DeviceId
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY, Champion, RegistryError
from tests.refresh_fixtures import small_model
from tests.scenario_fixtures import fields_of, place_in, play, read_scenarios
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


def champion_of_a(registry: Registry) -> Champion:
    return registry.champions()[DeviceId("box.a")]


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


@pytest.mark.parametrize("cure", ["delete", "restore"])
def test_champions_go_on_after_the_cure_that_damage_is_told_with(cure: str, tmp_path: Path) -> None:
    registry = with_versions(tmp_path, 1, "box.a")
    path = registry.folder / REGISTRY
    older = path.read_bytes()
    for number in range(1, 4):
        registry.publish(added(registry, seed=number), {"box.a": {}})
    path.unlink() if cure == "delete" else path.write_bytes(older)
    again = Registry(registry.folder)
    before = again.state().serial
    if cure == "delete":
        assert (served(registry), registry.history()) == ({}, [])
        assert not path.exists(), "who reads makes no file"
    again.publish(added(again, seed=9), {"box.a": {}})
    assert [(one.serial, one.version) for one in again.history(after=before)] == [(before + 1, "v000005")]
    assert registry.champions() == again.champions()


def test_why_a_champion_stays_is_kept_without_a_change_of_it_however_fast_the_next_one_comes(
    tmp_path: Path,
) -> None:
    """On a fast disk two changes come within one tick of the clock that dates files."""
    writer, reader = with_versions(tmp_path, 1, "box.a"), Registry(tmp_path / "models")
    serial = writer.state().serial
    for number in range(30):
        writer.retain({"box.a": f"{number:04d}", "box.z": "nobody serves it"})
        assert champion_of_a(reader).retained == f"{number:04d}"
    assert (reader.state().serial, len(reader.history())) == (serial, 1)


# ---- scenarios ----

SCENARIOS = read_scenarios(Path(__file__).with_name("registry_scenarios.txt"))


class Scenario:
    """A registry, and what was done to it last."""

    def __init__(self, folder: Path) -> None:
        self.registry = Registry(folder / "models", clock=lambda: 7.0)
        self.published: list[str] = []

    def act(self, action: str) -> None:
        action, _, refusal = action.partition(" !! ")
        if refusal:
            before = (self.registry.folder / REGISTRY).read_bytes()
            with pytest.raises(RegistryError, match=refusal):
                self.act(action)
            assert (self.registry.folder / REGISTRY).read_bytes() == before
            return
        words, _, fields = action.partition(" | ")
        told = fields_of(fields)
        match words.split():
            case ["versions", count, *devices]:
                with_versions(self.registry.folder.parent, int(count), *devices)
            case ["add", *heads]:
                added(self.registry, *heads)
            case ["publish", version, *devices]:
                self.published = self.registry.publish(version, dict.fromkeys(devices, told))
            case ["use", device, version]:
                chosen = self.registry.before(device) if version == "previous" else version
                self.registry.use(device, chosen, **{"reason": "", **told})
            case ["unpin", device]:
                self.registry.unpin(device, **{"reason": "", **told})
            case ["gone", version]:
                shutil.rmtree(self.registry.path(version))
            case ["again"]:
                self.registry = Registry(self.registry.folder, clock=lambda: 7.0)

    def value(self, path: str) -> Any:
        history = self.registry.history()
        values = {
            "published": self.published,
            "last": asdict(history[-1]),
            "serials": [change.serial for change in history],
            **{name: asdict(champion) for name, champion in self.registry.champions().items()},
        }
        found = place_in(values, path)
        return list(found) if isinstance(found, tuple) else found


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, tmp_path: Path) -> None:
    scenario = Scenario(tmp_path)
    play(SCENARIOS[title], scenario.act, scenario.value)


# ---- any order of changes ----


class Changes(RuleBasedStateMachine):
    """Versions come, serve, are taken back and pruned; who serves must always be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.registry = Registry(self.folder / "models")
        self.made = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(devices=st.sets(st.sampled_from(("a", "b", "c")), min_size=1))
    def publish(self, devices: set[str]) -> None:
        version = self.registry.add(_MODEL, {})
        self.made += 1
        assert version == f"v{self.made:06d}"
        self.registry.publish(version, {device: {} for device in devices})

    @rule()
    def add_only(self) -> None:
        self.registry.add(_MODEL, {})
        self.made += 1

    @precondition(lambda self: self.registry.champions())
    @rule(device=st.sampled_from(("a", "b", "c")))
    def rollback(self, device: str) -> None:
        champion = self.registry.champions().get(DeviceId(device))
        there = self.registry.versions()
        before = [] if champion is None else [one for one in champion.before if one in there]
        if not before:
            with pytest.raises(RegistryError):
                self.registry.use(device, self.registry.before(device), reason="test")
        else:
            assert (
                self.registry.use(device, self.registry.before(device), reason="test").version == before[-1]
            )

    @rule(keep=st.integers(1, 4))
    def prune(self, keep: int) -> None:
        before = self.registry.versions()
        backs = {
            device: next((one for one in reversed(champion.before) if one in before), None)
            for device, champion in self.registry.champions().items()
        }
        gone = self.registry.prune(keep)
        there = self.registry.versions()
        assert sorted([*there, *gone]) == before
        assert set(before[-keep:]) <= set(there)
        assert {one for one in backs.values() if one} <= set(there)

    @invariant()
    def champions_are_there(self) -> None:
        there = self.registry.versions()
        for champion in self.registry.champions().values():
            assert champion.version in there

    @invariant()
    def the_history_is_gapless(self) -> None:
        serials = [change.serial for change in self.registry.history()]
        assert serials == list(range(1, len(serials) + 1))
        assert self.registry.state().serial == len(serials)


_MODEL = small_model("a", "b", "c")
TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
