"""The shipped model as a candidate for champion: it serves until it is beaten, whatever a store holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agents.records import DeviceId, Family, Record
from fleet.config.settings import FleetConfig, load_fleet
from fleet.models.registry import Registry
from fleet.models.shipped_model import SHIPPED_KEY, ShippedDevice, ShippedHeads, write_shipped
from fleet.models.training import train_version
from fleet.refresh.run import run_refresh
from fleet.store.store import Store
from tests.cli_fixtures import said
from tests.dataset_fixtures import cpu_device
from tests.refresh_fixtures import (
    DEVICES,
    append,
    make_store,
    records_for,
    request_in,
    small_model,
    some_workloads,
)
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP

pytestmark = pytest.mark.usefixtures("few_trees")

LEARNT, HELD = (lambda made: (made[:10], made[10:]))(some_workloads(10, 9))
A = DeviceId("box.a")


@pytest.fixture(scope="module")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> FleetTLP:
    """A model of the workloads that are learnt from, with heads of other people's devices."""
    folder = tmp_path_factory.mktemp("maker")
    make_store(folder / "store", [*LEARNT, *HELD])
    version = str(run_refresh(request_in(folder, epochs=12))["version"])
    model, _ = checkpoint.load_fleet_tlp(folder / "models" / version)
    for device in DEVICES:
        model.rename_head(device, f"open.{device}")
    return model.eval()


@pytest.fixture
def release(good_model: FleetTLP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the shipped model for CPUs."""
    folder = tmp_path / "release"
    folder.mkdir()
    told = {SHIPPED_KEY: "test-1", "trained_workloads": [one.workload_id for one in LEARNT]}
    devices = {}
    for name in good_model.device_ids:
        spec, descriptor = cpu_device(name)
        devices[DeviceId(name)] = ShippedDevice(spec=spec, descriptor=descriptor, fingerprint={})
    write_shipped(folder / "cpu", good_model, told, devices)
    monkeypatch.setattr("fleet.models.shipped_model.shipped_folder", lambda family: folder / family.value)
    return folder / "cpu"


def settings_of(folder: Path) -> FleetConfig:
    return load_fleet(None, {"store.path": str(folder / "store"), "training.epochs": 1}).config


def changed(folder: Path, change: Callable[[Record], Record]) -> None:
    """A store of the same workloads with other records."""
    with Store.open(folder / "store") as store:
        for device in DEVICES:
            store.put_device(*cpu_device(device))
        store.put_workloads([*LEARNT, *HELD])
        store.append([change(one) for one in records_for([*LEARNT, *HELD], 12)])


def damaged(release: Path) -> None:
    whole = (release / "model.safetensors").read_bytes()
    (release / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def older(release: Path) -> None:
    path = release / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "spec_hash": "of another release"}))


def test_a_model_of_three_workloads_is_a_challenger_and_says_what_it_lacks(
    release: Path, tmp_path: Path
) -> None:
    # Enough candidates for the trees of the shipped model to go on with.
    make_store(tmp_path / "store", LEARNT[:3], candidates=24)
    found = train_version(settings_of(tmp_path), tmp_path / "models", ())
    assert found["serves"] == {}
    why = "needs 54 more measured workloads to be judged: 0 held-out ones can judge it, 8 must"
    assert found["kept_champions"]["box.a"].startswith(why)
    registry = Registry(tmp_path / "models")
    champion = registry.champions()[A]
    assert registry.manifest(champion.version)[SHIPPED_KEY] == "test-1"
    # One went on from the shipped model, one learnt from these records alone; the last one says so.
    assert (found["way"], [other["way"] for other in found["others"]]) == ("boosted", ["fleet_tlp"])
    assert champion.retained.startswith(f"{found['others'][0]['version']}: {why}")
    shown = said("status", "--store", str(tmp_path / "store"), "--models", str(registry.folder))
    assert f"box.a is served by {champion.version} (fleet_tlp, of the shipped model test-1)" in shown
    assert f"box.a, challenger {found['others'][0]['version']}: needs 54 more measured workloads" in shown
    # A second training makes no second version of the shipped head.
    train_version(settings_of(tmp_path), tmp_path / "models", (), publish=False)
    assert registry.champions()[A] == champion


def test_where_no_model_is_shipped_for_the_family_a_first_head_serves_with_what_it_lacks(
    release: Path, tmp_path: Path
) -> None:
    make_store(tmp_path / "store", LEARNT[:3])
    train_version(settings_of(tmp_path), tmp_path / "models", ())
    registry = Registry(tmp_path / "models")
    before = registry.champions()
    with Store.open(tmp_path / "gpus") as store:
        spec, descriptor = cpu_device("gpu.a")
        store.put_device(msgspec.structs.replace(spec, family=Family.GPU), descriptor)
        store.put_workloads(LEARNT[:3])
        store.append(records_for(LEARNT[:3], 12, devices=["gpu.a"]))
    settings = load_fleet(None, {"store.path": str(tmp_path / "gpus"), "training.epochs": 1}).config
    found = train_version(settings, tmp_path / "models", ())
    assert found["serves"]["gpu.a"].startswith("first head, unjudged: it needs 54 more measured workloads")
    after = registry.champions()
    assert {name: after[name] for name in before} == before, "devices of another family keep theirs"


def test_suspect_records_judge_nobody(release: Path, tmp_path: Path) -> None:
    changed(tmp_path, lambda one: msgspec.structs.replace(one, quality=json.dumps({"suspect": True})))
    found = train_version(settings_of(tmp_path), tmp_path / "models", ())
    assert found["serves"] == {}
    assert (
        "108 of its 108 measurements of them are suspect, and judge nobody"
        in found["kept_champions"]["box.a"]
    )
    registry = Registry(tmp_path / "models")
    assert registry.manifest(registry.champions()[A].version)[SHIPPED_KEY] == "test-1"


@pytest.mark.parametrize("harm", [damaged, older])
def test_a_shipped_model_that_cannot_be_read_lets_the_present_head_serve_on(
    harm: Callable[[Path], None], release: Path, tmp_path: Path
) -> None:
    make_store(tmp_path / "store", [*LEARNT, *HELD])
    registry = Registry(tmp_path / "models")
    present = registry.add(small_model("box.a"), {"trained_workloads": []})
    registry.publish(present, {A: {}})
    harm(release)
    found = train_version(settings_of(tmp_path), tmp_path / "models", ())
    assert found["serves"] == {}
    for why in found["kept_champions"].values():
        assert "the model that comes with the program cannot be used" in why
        assert "--set onboarding.shipped=false" in why
    # Nothing serves box B: without the shipped head nobody can tell whether the new one is good enough.
    assert {name: one.version for name, one in registry.champions().items()} == {A: present}
    assert registry.champions()[A].retained.endswith(f"{present} stays")


def test_a_champion_that_is_clearly_worse_gives_its_place_to_the_shipped_head(
    release: Path, tmp_path: Path
) -> None:
    make_store(tmp_path / "store", [*LEARNT, *HELD])
    registry = Registry(tmp_path / "models")
    worse = registry.add(small_model(*DEVICES), {"trained_workloads": []})
    registry.publish(worse, {one: {} for one in DEVICES})
    registry.use("box.b", worse, reason="for the release", pins=True)
    # What the challenger learns is upside down, so it is no better.
    append(tmp_path / "store", records_for(LEARNT, 40, seed=3, measured_at=200.0, upside_down=True))
    found = run_refresh(replace(request_in(tmp_path, epochs=4), shipped=True))
    assert found["published"] == []
    assert list(found["given_back"]) == ["box.a"]
    champions = registry.champions()
    assert registry.manifest(champions[A].version)[SHIPPED_KEY] == "test-1"
    assert champions[A].reason.startswith("the shipped head is better: ")
    assert champions[A].before == (worse,)
    assert champions[DeviceId("box.b")].version == worse, "a person pinned it"


def test_a_model_that_is_better_than_the_shipped_head_takes_its_place(
    release: Path, good_model: FleetTLP, tmp_path: Path
) -> None:
    bad = small_model(*good_model.device_ids)
    for path in release.iterdir():
        path.unlink()
    release.rmdir()
    devices = {}
    for name in bad.device_ids:
        spec, descriptor = cpu_device(name)
        devices[DeviceId(name)] = ShippedDevice(spec=spec, descriptor=descriptor, fingerprint={})
    write_shipped(release, bad, {SHIPPED_KEY: "test-0", "trained_workloads": []}, devices)
    make_store(tmp_path / "store", [*LEARNT, *HELD])
    found = run_refresh(replace(request_in(tmp_path, epochs=12), shipped=True))
    assert found["published"] == list(DEVICES)
    champion = Registry(tmp_path / "models").champions()[A]
    assert champion.reason.startswith("better: ")
    assert champion.before == ("v000001",), "the shipped head served before"


def test_the_shipped_head_is_one_command_away(release: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "store", LEARNT[:1])
    registry = Registry(tmp_path / "models")
    own = registry.add(small_model(*DEVICES), {})
    registry.publish(own, {one: {} for one in DEVICES})
    where = ["--models", str(registry.folder), "--store", str(tmp_path / "store")]
    assert "box.a is served by v000002 from now on" in said("models", "use", "box.a", "shipped", *where)
    champion = registry.champions()[A]
    assert registry.manifest(champion.version)[SHIPPED_KEY] == "test-1"
    assert champion.rolled_back_from == own, "it does not come back by itself"
    assert registry.champions()[DeviceId("box.b")].version == own
    said("models", "use", "box.a", own, *where)
    assert registry.champions()[A].version == own
    said("models", "use", "box.a", "shipped", "--pin", *where)
    assert registry.champions()[A].version == "v000002", "it is made once"
    assert registry.champions()[A].pinned_at is not None


def test_a_damaged_champion_is_followed_by_the_shipped_head(release: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "store", LEARNT[:3])
    registry = Registry(tmp_path / "models")
    shipped = ShippedHeads(registry, Store.read(tmp_path / "store"))
    first = shipped.serve_first(A)
    assert first == "v000001"
    assert shipped.serve_first(A) == "", "something serves it already"
    (registry.path(first) / "model.safetensors").write_bytes(b"torn")
    found = train_version(settings_of(tmp_path), tmp_path / "models", ("box.a",))
    champion = registry.champions()[A]
    assert champion.version not in (first, found["version"])
    assert "v000001 cannot serve any more" in champion.reason
    assert found["given_back"]["box.a"].startswith("v000001 cannot serve any more")
