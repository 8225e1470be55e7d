"""The shipped model as a candidate for champion: it serves until it is beaten, whatever a store holds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.records import CandidateId, DeviceId, Family
from benchmarks.pretrained_ship import write_shipped
from fleet.models.registry import Registry
from fleet.models.shipped_model import (
    DEVICES_NAME,
    SHIPPED_KEY,
    ShippedDevice,
    ShippedHeads,
    ShippedModel,
    ShippedModelError,
    has_shipped,
    read_shipped,
    shipped_folder,
)
from fleet.refresh.run import run_refresh
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device
from tests.model_scenarios import ModelScenario
from tests.onboarding_fixtures import SOURCES
from tests.refresh_fixtures import (
    DEVICES,
    make_store,
    request_in,
    small_model,
    some_workloads,
)
from tests.scenario_fixtures import read_scenarios
from transfer.adapt.nearest import Fingerprint
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP

pytestmark = pytest.mark.usefixtures("few_trees")

LEARNT, HELD = (lambda made: (made[:10], made[10:]))(some_workloads(10, 9))
A = DeviceId("box.a")
TARGET = DeviceId("board-7")
SPEC, DESCRIPTOR = cpu_device(TARGET)
PROGRAMS = [CandidateId(f"program-{place}") for place in range(6)]


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


def secs_of(place: int) -> dict[CandidateId, float]:
    """Each device is slow at other programs."""
    return {one: 1e-3 * (1 + (number * (place + 1)) % 5) for number, one in enumerate(PROGRAMS)}


def released(folder: Path, model: FleetTLP, told: dict[str, Any]) -> Path:
    """A model as it is shipped, each of its devices with a fingerprint of its own."""
    devices = {}
    for place, name in enumerate(model.device_ids):
        spec, descriptor = cpu_device(name)
        devices[name] = ShippedDevice(spec=spec, descriptor=descriptor, fingerprint=secs_of(place))
    write_shipped(folder, model, told, devices)
    return folder


@pytest.fixture
def release(good_model: FleetTLP, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the shipped model for CPUs."""
    folder = tmp_path / "release"
    folder.mkdir()
    told = {SHIPPED_KEY: "test-1", "trained_workloads": [one.workload_id for one in LEARNT]}
    monkeypatch.setattr("fleet.models.shipped_model.shipped_folder", lambda family: folder / family.value)
    return released(folder / "cpu", good_model, told)


SCENARIOS = read_scenarios(Path(__file__).with_name("shipped_scenarios.txt"))


@pytest.mark.usefixtures("release")
@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, tmp_path: Path) -> None:
    ModelScenario(tmp_path, [*LEARNT, *HELD]).play(SCENARIOS[title])


def test_a_model_that_is_better_than_the_shipped_head_takes_its_place(
    release: Path, good_model: FleetTLP, tmp_path: Path
) -> None:
    shutil.rmtree(release)
    bad = small_model(*good_model.device_ids)
    released(release, bad, {SHIPPED_KEY: "test-0", "trained_workloads": []})
    make_store(tmp_path / "store", [*LEARNT, *HELD])
    found = run_refresh(replace(request_in(tmp_path, epochs=12), shipped=True))
    assert found["published"] == list(DEVICES)
    champion = Registry(tmp_path / "models").champions()[A]
    assert champion.reason.startswith("better: ")
    assert champion.before == ("v000001",), "the shipped head served before"


# ---- the model itself: read back, refused where damaged, and a head for who has none ----


@pytest.fixture(scope="module")
def folder(source_model: FleetTLP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    told = {SHIPPED_KEY: "test-1", "trained_workloads": ["w1"], "expected": {"0": {"top1": 0.7}}}
    return released(tmp_path_factory.mktemp("release") / "cpu", source_model, told)


@pytest.fixture(scope="module")
def shipped(folder: Path) -> ShippedModel:
    return read_shipped(Family.CPU, folder)


@pytest.fixture
def heads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShippedHeads:
    """Heads for a device that has measured nothing."""
    monkeypatch.setattr("fleet.models.shipped_model.shipped_folder", lambda family: folder)
    with Store.open(tmp_path / "store") as store:
        store.put_device(SPEC, DESCRIPTOR)
    return ShippedHeads(Registry(tmp_path / "models"), Store.read(tmp_path / "store"))


def test_a_device_without_any_model_is_served_at_once_and_only_once(heads: ShippedHeads) -> None:
    version, registry = heads.serve_first(TARGET), heads.registry
    # The heads of the shipped devices are sources: no device of this fleet has their names.
    assert set(registry.champions()) == {TARGET}
    manifest = registry.manifest(version)
    assert manifest["table_version"] == 0, "it learnt from another store, and from none of this one"
    assert (manifest["samples"], manifest["shipped"], manifest["trained_workloads"]) == (0, "test-1", ["w1"])
    assert heads.serve_first(TARGET) == ""
    assert registry.versions() == [version]
    assert "test-1, without a measurement" in registry.champions()[TARGET].reason


def test_the_fingerprint_says_whose_head_it_is(shipped: ShippedModel) -> None:
    for place, like in enumerate(SOURCES):
        secs = {one: 2 * secs for one, secs in secs_of(place).items()}
        mine = Fingerprint(device_id=TARGET, latency_secs=secs, tried=6)
        notes = shipped.head(SPEC, DESCRIPTOR, mine).notes
        assert (notes["sources"], notes["likeness"]) == ([like], "fingerprint")
    few = Fingerprint(device_id=TARGET, latency_secs=dict(list(secs_of(0).items())[:2]), tried=6)
    assert shipped.head(SPEC, DESCRIPTOR, few).notes["likeness"] == "hardware"


def test_a_damaged_one_is_refused_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    for name in (DEVICES_NAME, "model.safetensors", "manifest.json"):
        broken = tmp_path / name / "cpu"
        broken.mkdir(parents=True)
        for file in folder.iterdir():
            raw = file.read_bytes()
            (broken / file.name).write_bytes(raw[: len(raw) // 2] if file.name == name else raw)
        with pytest.raises(ShippedModelError, match=r"install the program again.*onboarding\.shipped=false"):
            read_shipped(Family.CPU, broken)
    # Where none is shipped, nothing is read.
    assert not has_shipped(Family.GPU)
    assert read_shipped(Family.GPU) is None
    assert shipped_folder(Family.GPU).name == "gpu"
