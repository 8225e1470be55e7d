"""An empty store on a real device: the shipped model serves at once, and samples of its own move its head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.records import Family
from fleet.cli.app import run
from fleet.models.registry import Registry
from fleet.models.shipped_model import has_shipped, read_shipped
from fleet.onboarding.text import lines_of
from fleet.store.noise import SAYS_NOTHING
from tests.host_fixtures import write_generic_device
from tests.record_fixtures import make_descriptor

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


def test_the_shipped_table_says_what_to_expect_without_samples() -> None:
    shipped = read_shipped(Family.CPU)
    assert shipped is not None
    figures = shipped.expected(make_descriptor())["0"]
    low, high = figures["top1_interval"]
    assert 0 < low < figures["top1"] < high < 1
    assert (figures["samples"], figures["regime"]) == (0, "both-new")
    assert read_shipped(Family.GPU) is None
