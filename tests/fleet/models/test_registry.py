"""Versions and champions: whole or not at all, picked up without a restart, never pruned while they serve."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agents.records import DeviceId
from fleet.models.registry import PinnedError, Registry, ReplacedError
from fleet.models.registry_file import REGISTRY, Champion, RegistryError
from tests.refresh_fixtures import small_model
from transfer.errors import TransferError

HEADS = ("box.a", "box.b")


def added(registry: Registry, *heads: str, seed: int = 0, **manifest: Any) -> str:
    return registry.add(small_model(*(heads or HEADS), seed=seed), manifest)


def with_versions(folder: Path, count: int, *devices: str) -> Registry:
    """A registry whose versions served some devices one after the other, each with figures of its own."""
    registry = Registry(folder / "models", clock=lambda: 7.0)
    for number in range(count):
        told = {"judged": {"tau": [number / 10, 0.0, 1.0]}}
        registry.publish(added(registry, seed=number), dict.fromkeys(devices, told))
    return registry


def champion_of_a(registry: Registry) -> Champion:
    return registry.champions()[DeviceId("box.a")]


def served(registry: Registry) -> dict[str, str]:
    return {device: champion.version for device, champion in registry.champions().items()}


def test_a_rollback_goes_back_one_champion_at_a_time(tmp_path: Path) -> None:
    registry = with_versions(tmp_path, 3, *HEADS)
    assert (
        registry.use("box.a", registry.before("box.a"), reason="worse on fresh records").version == "v000002"
    )
    champion = champion_of_a(registry)
    assert champion.reason == "worse on fresh records"
    assert champion.judged == {"tau": [0.1, 0.0, 1.0]}
    assert served(registry) == {"box.a": "v000002", "box.b": "v000003"}
    assert registry.use("box.a", registry.before("box.a"), reason="again").version == "v000001"
    with pytest.raises(RegistryError, match=r"box\.a has no champion before v000001"):
        registry.use("box.a", registry.before("box.a"), reason="once more")
    assert registry.use("box.a", "v000003", reason="forward").before == ()
    last = registry.history()[-1]
    assert (last.kind, last.device_id, last.previous) == ("rolled_back", "box.a", "v000001")
    assert last.version == "v000003"
    assert [change.serial for change in registry.history()] == list(range(1, 10))
    assert [change.serial for change in registry.history(after=7)] == [8, 9]
    # Figures of a version that is gone are not those of the one before it.
    shutil.rmtree(registry.path("v000002"))
    champion = registry.use("box.b", registry.before("box.b"), reason="worse")
    assert (champion.version, champion.judged) == ("v000001", None)


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    registry.publish(added(registry, "box.a"), {"box.a": {}})
    before = (tmp_path / "models" / REGISTRY).read_bytes()
    with pytest.raises(RegistryError, match=r"v000001 has no head for box\.b; nothing was published"):
        registry.publish("v000001", {"box.a": {}, "box.b": {}})
    with pytest.raises(RegistryError, match="no model version 'v000009'"):
        registry.publish("v000009", {"box.a": {}})
    with pytest.raises(RegistryError, match="is served by v000001 already"):
        registry.use("box.a", "v000001", reason="")
    for name in ("../models/v000001", "/etc", "v1"):
        with pytest.raises(RegistryError, match="no model version"):
            registry.use("box.a", name, reason="")
    assert (tmp_path / "models" / REGISTRY).read_bytes() == before


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


def test_a_pinned_champion_is_changed_by_nobody_until_it_is_let_go(tmp_path: Path) -> None:
    registry = with_versions(tmp_path, 2, "box.a", "box.b")
    pinned = registry.use("box.a", "v000002", reason="for the release", pins=True)
    assert (pinned.version, pinned.pinned_at) == ("v000002", 7.0)
    assert registry.publish(added(registry, seed=2), {"box.a": {}, "box.b": {}}) == ["box.b"]
    why = r"pinned to v000002; .* fleet models unpin box.a"
    with pytest.raises(PinnedError, match=why):
        registry.use("box.a", registry.before("box.a"), reason="")
    with pytest.raises(PinnedError, match=why):
        registry.use("box.a", "v000001", reason="", pins=True)
    # Another process, after any restart.
    again = Registry(tmp_path / "models")
    champion = champion_of_a(again)
    assert (champion.version, champion.pinned_at) == ("v000002", 7.0)
    assert champion.retained == "v000003: box.a is pinned to v000002 (fleet models unpin lets it go)"
    assert again.use("box.a", "v000002", reason="twice", pins=True) == champion
    assert again.unpin("box.a", reason="released").pinned_at is None
    with pytest.raises(RegistryError, match=r"box.a is not pinned; v000002 serves it"):
        again.unpin("box.a", reason="")
    assert again.publish(added(again, seed=3), {"box.a": {}}) == ["box.a"]
    told = [(one.kind, one.version, one.reason) for one in again.history() if one.device_id == "box.a"]
    assert told[2:4] == [("pinned", "v000002", "for the release"), ("unpinned", "v000002", "released")]


def test_a_version_rolled_back_by_hand_does_not_come_back_by_itself(tmp_path: Path) -> None:
    registry = with_versions(tmp_path, 4, "box.a")
    registry.use("box.a", registry.before("box.a"), reason="slower", by_hand=True)
    registry.use("box.a", registry.before("box.a"), reason="fresh records")
    registry.use("box.a", registry.before("box.a"), reason="slower still", by_hand=True)
    champion = champion_of_a(registry)
    assert (champion.version, champion.rolled_back_from) == ("v000001", "v000004")
    for version in ("v000002", "v000003", "v000004"):
        assert registry.publish(version, {"box.a": {}}) == []
    why = "v000004: v000004 was rolled back by hand, and v000004 is no newer"
    assert champion_of_a(Registry(registry.folder)).retained == why
    assert registry.publish(added(registry, seed=5), {"box.a": {}}) == ["box.a"]
    champion = champion_of_a(registry)
    assert (champion.rolled_back_from, champion.retained) == ("", "")
    # Rolled back and deleted, the cure of a damaged manifest: the next one is newer all the same.
    registry.use("box.a", registry.before("box.a"), reason="damaged", by_hand=True)
    shutil.rmtree(registry.path("v000005"))
    assert registry.publish(added(registry, seed=6), {"box.a": {}}) == ["box.a"]


def test_a_champion_that_came_after_the_decision_stays(tmp_path: Path) -> None:
    registry = with_versions(tmp_path, 3, "box.a")
    late = added(registry, seed=5)
    told = {"box.a": {"instead_of": "v000002"}, "box.b": {"instead_of": ""}}
    assert registry.publish(late, told) == ["box.b"]
    champion = champion_of_a(registry)
    assert (champion.version, champion.retained) == ("v000003", f"{late}: v000003 took the place meanwhile")
    with pytest.raises(ReplacedError, match=r"box\.a is served by v000003, not by v000002"):
        registry.use("box.a", registry.before("box.a"), reason="fresh records", instead_of="v000002")
    assert (
        registry.use("box.a", registry.before("box.a"), reason="worse", instead_of="v000003").version
        == "v000002"
    )
    assert registry.publish(late, told) == ["box.a", "box.b"]


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
