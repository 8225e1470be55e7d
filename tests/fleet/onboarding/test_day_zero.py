"""An empty store on a real device: the shipped model serves at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.records import Family
from fleet.cli.app import run
from fleet.models.registry import Registry
from fleet.models.shipped_model import read_shipped
from fleet.onboarding.text import lines_of
from tests.host_fixtures import write_generic_device
from tests.record_fixtures import make_descriptor
from tests.scenario_fixtures import check_facts

QUICK = ["--set", "protocol.repeat=2", "--set", "protocol.min_repeat_ms=1", "--set", "protocol.visits=1"]


@pytest.mark.tvm
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_empty_folder_has_a_head_without_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`test_tutorials.py` goes on with samples, of which the next head is made."""
    monkeypatch.chdir(tmp_path)
    write_generic_device(Path("hardware"))
    where = ["--store", "store", "--models", "models", "--set", "devices.folder=hardware", "--json", *QUICK]
    assert run(["onboard", "generic", "--samples", "0", *where]) == 0
    found = json.loads(capfd.readouterr().out)
    check_facts(found, "fingerprint.ran >= 4\nsamples = 0\nserved_by = v000001\nexpected.top1 > 0.5")
    registry = Registry(tmp_path / "models")
    assert set(registry.champions()) == {"generic"}
    assert registry.manifest("v000001")["notes"]["likeness"] == "fingerprint"
    assert "generic is served by v000001: of the shipped model" in "\n".join(lines_of(found))


def test_the_shipped_table_says_what_to_expect_without_samples() -> None:
    shipped = read_shipped(Family.CPU)
    assert shipped is not None
    figures = shipped.expected(make_descriptor())["0"]
    low, high = figures["top1_interval"]
    assert 0 < low < figures["top1"] < high < 1
    assert (figures["samples"], figures["regime"]) == (0, "both-new")
    assert read_shipped(Family.GPU) is None
