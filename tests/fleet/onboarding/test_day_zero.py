"""An empty store on a real device: the shipped model serves at once, and samples of its own move its head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agents.records import DeviceId, DeviceKind, Family, Outcome
from fleet.cli.app import run
from fleet.models.registry import Registry
from fleet.models.shipped_heads import is_servable
from fleet.models.shipped_model import has_shipped, read_shipped
from fleet.onboarding.adaptation import strategy_for
from fleet.onboarding.day_zero import is_alone
from fleet.onboarding.head_version import sample_outcomes
from fleet.onboarding.text import lines_of
from fleet.store.noise_columns import SAYS_NOTHING
from fleet.store.store import Store
from tests.host_fixtures import write_generic_device
from tests.onboarding_fixtures import NEW, SOURCES, fill
from tests.record_fixtures import make_descriptor, make_record, make_spec
from transfer.adapt.base import Regime
from transfer.features.extractor import DEFAULT_SPEC
from transfer.model.fleet_tlp import FleetTLP, model_config

QUICK = ["--set", "protocol.repeat=2", "--set", "protocol.min_repeat_ms=1", "--set", "protocol.visits=1"]


@pytest.mark.tvm
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_empty_folder_has_a_head_and_samples_make_a_challenger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert has_shipped(Family.CPU)
    monkeypatch.chdir(tmp_path)
    write_generic_device(Path("hardware"))
    where = ["--store", "store", "--models", "models", "--set", "devices.folder=hardware", "--json", *QUICK]
    assert run(["onboard", "generic", "--samples", "24", "--epochs", "2", *where]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["fingerprint"]["ran"] >= 4
    assert sum(found["outcomes"].values()) == 24
    # Lost and rejected measurements teach nothing. On a busy host one of them may be too unsteady.
    assert found["samples"] == 24 - sum(found["outcomes"].get(name, 0) for name in SAYS_NOTHING)
    # Samples of three workloads judge nobody, so the shipped head serves on, and it is said.
    assert (found["first_head"], found["version"], found["served_by"]) == ("v000001", "v000002", "v000001")
    assert "needs samples of" in found["why_not_served"]
    assert found["expected"] is not None
    registry = Registry(tmp_path / "models")
    assert set(registry.champions()) == {"generic"}
    assert registry.manifest("v000001")["notes"]["likeness"] == "fingerprint"
    assert registry.manifest("v000002")["heads"] == ["generic"], "heads of others are sources only"
    text = "\n".join(lines_of(found))
    assert f"the model that comes with the program, {found['shipped']}" in text
    assert "generic is served by v000001: of the shipped model" in text
    assert "v000002 is a challenger: needs samples of" in text


@pytest.mark.parametrize("turn", [1, -1])
def test_a_rejected_second_look_leaves_a_sample_as_it_was(tmp_path: Path, turn: int) -> None:
    good = make_record(1, outcome=Outcome.OK, error="")
    again = replace(good, attempt=1, outcome=Outcome.REJECTED)
    never = make_record(2, outcome=Outcome.REJECTED)
    with Store.open(tmp_path / "store") as store:
        store.put_device(make_spec(good.device_id), make_descriptor())
        for one in [good, again, never][::turn]:
            store.append([one])
    reader = Store.read(tmp_path / "store")
    samples = {good.candidate_id, never.candidate_id}
    found = sample_outcomes(reader, good.device_id, good.environment_id, samples)
    assert found == {"ok": 1, "rejected": 1}


def test_a_store_with_heads_of_other_devices_has_sources(tmp_path: Path) -> None:
    store = Store.read(fill(tmp_path / "store", *SOURCES, NEW))
    spec, registry = store.devices()[DeviceId(NEW)].spec, Registry(tmp_path / "models")
    assert is_alone(registry, store, spec)
    model = FleetTLP(model_config(DEFAULT_SPEC), SOURCES[:1])
    registry.publish(registry.add(model, {"trained_heads": []}), {SOURCES[0]: {}})
    assert is_alone(registry, store, spec), "its records taught that head nothing"
    version = registry.add(model, {"trained_heads": list(SOURCES[:1])})
    assert is_alone(registry, store, spec), "a challenger that serves nobody is no start"
    registry.publish(version, {SOURCES[0]: {}})
    assert not is_alone(registry, store, spec)


def test_who_may_be_served_by_it_and_what_auto_chooses_from_then() -> None:
    live, recorded = make_spec(kind=DeviceKind.LOCAL), make_spec(kind=DeviceKind.REPLAY)
    assert is_servable(live)
    assert not is_servable(recorded), "recorded devices speak other dialects"
    assert not is_servable(replace(live, family=Family.GPU)), "no model is shipped for it"
    auto = strategy_for("auto", Regime.BOTH_NEW, is_alone=True)
    assert [one.name for one in auto.strategies] == ["boosted", "nearest", "scratch"]  # type: ignore[attr-defined]
    assert strategy_for("momentum", Regime.BOTH_NEW, is_alone=True).name == "momentum"


def test_the_shipped_table_says_what_to_expect_without_samples() -> None:
    shipped = read_shipped(Family.CPU)
    assert shipped is not None
    figures = shipped.expected(make_descriptor())["0"]
    low, high = figures["top1_interval"]
    assert 0 < low < figures["top1"] < high < 1
    assert (figures["samples"], figures["regime"]) == (0, "both-new")
    assert read_shipped(Family.GPU) is None


def test_the_report_says_what_an_expectation_is_made_of() -> None:
    figures = {"top1": 0.77, "top1_interval": [0.76, 0.78], "top5": 0.95, "top5_interval": [0.94, 0.96]}
    result = {
        **{
            "device": "mine",
            "samples": 0,
            "samples_asked": 0,
            "outcomes": {},
            "strategy": "auto",
            "taken": "day_zero",
        },
        **{"source_devices": [], "shipped": "open-cpu-2", "seconds": {}},
        "expected": {**figures, "samples": 0, "devices": 6, "regime": "both-new"},
    }
    assert "from the results of 6 known devices)" in "\n".join(lines_of(result))
    result["expected"] |= {"unseen": "processor"}
    assert "known devices, each without records of its processor)" in "\n".join(lines_of(result))
