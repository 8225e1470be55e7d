"""The model that comes with the program: read back, refused where damaged, and a head for who has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.records import CandidateId, DeviceId, Family
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
    write_shipped,
)
from fleet.models.versions import DatasetSnapshot
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device
from tests.onboarding_fixtures import SOURCES
from transfer.adapt.nearest import Fingerprint
from transfer.model.fleet_tlp import FleetTLP

TARGET = DeviceId("board-7")
SPEC, DESCRIPTOR = cpu_device(TARGET)
PROGRAMS = [CandidateId(f"program-{place}") for place in range(6)]


def secs_of(place: int) -> dict[CandidateId, float]:
    """Each device is slow at other programs."""
    return {one: 1e-3 * (1 + (number * (place + 1)) % 5) for number, one in enumerate(PROGRAMS)}


@pytest.fixture(scope="module")
def folder(
    recorded_sources: DatasetSnapshot, source_model: FleetTLP, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    devices = {}
    for place, one in enumerate(map(DeviceId, SOURCES)):
        spec, descriptor = recorded_sources.devices[one]
        devices[one] = ShippedDevice(spec=spec, descriptor=descriptor, fingerprint=secs_of(place))
    found = tmp_path_factory.mktemp("release") / "cpu"
    told = {SHIPPED_KEY: "test-1", "trained_workloads": ["w1"], "expected": {"0": {"top1": 0.7}}}
    write_shipped(found, source_model, told, devices)
    return found


@pytest.fixture(scope="module")
def shipped(folder: Path) -> ShippedModel:
    found = read_shipped(Family.CPU, folder)
    assert found is not None
    return found


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
