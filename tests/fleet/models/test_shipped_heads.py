"""The shipped model as a candidate for champion: it serves until it is beaten, whatever a store holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agents.records import DeviceId, Family
from fleet.config.settings import FleetConfig, load_fleet
from fleet.models.registry import Registry
from fleet.models.shipped_model import SHIPPED_KEY, ShippedDevice, write_shipped
from fleet.models.training import train_version
from fleet.refresh.run import run_refresh
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device
from tests.model_scenarios import ModelScenario
from tests.refresh_fixtures import (
    DEVICES,
    make_store,
    records_for,
    request_in,
    small_model,
    some_workloads,
)
from tests.scenario_fixtures import read_scenarios
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


SCENARIOS = read_scenarios(Path(__file__).with_name("shipped_scenarios.txt"))


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, tmp_path: Path) -> None:
    ModelScenario(tmp_path, [*LEARNT, *HELD]).play(SCENARIOS[title])


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
