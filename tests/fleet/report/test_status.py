from __future__ import annotations

import json
from pathlib import Path

import pytest

from agents.records import Outcome
from fleet.cli.app import run
from fleet.models.registry import Registry
from fleet.report.status import read_status
from fleet.store.store import Store
from tests.cli_fixtures import json_of, said
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from tests.refresh_fixtures import small_model
from tests.scenario_fixtures import check_facts

DAY = 86_400.0


def noise_pair(number: int, ratio: float, *, at: float, attempt: int = 1) -> list:
    return [
        make_record(
            number,
            origin="noise",
            outcome=Outcome.OK,
            run_secs=(secs,),
            attempt=attempt + later,
            measured_at=at + later,
        )
        for later, secs in enumerate((1e-3, ratio * 1e-3))
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    records = [
        make_record(1),
        make_record(2, quality='{"suspect":true}'),
        make_record(3, outcome=Outcome.REJECTED, run_secs=(1e-3,)),
        make_record(4, outcome=Outcome.RUN_FAILED, quality='{"quarantined":true,"strikes":3}'),
        *noise_pair(1, 1.5, at=1_700_000_000.0),
        *noise_pair(1, 1.02, at=1_700_000_000.0 + DAY, attempt=3),
        make_record(1, device="dev-b"),
    ]
    with Store.open(folder) as writer:
        for device in ("dev-a", "dev-b", "dev-c"):
            writer.put_device(make_spec(device), make_descriptor())
        writer.put_workloads([make_workload(1)])
        writer.append(records)
    return folder


def test_status_tells_how_far_each_device_can_be_trusted(store: Path, tmp_path: Path) -> None:
    found = read_status(store, tmp_path / "models")
    # An A/A run of another day is not mixed in.
    facts = """
        dev-a.records = 8
        dev-a.candidates = 4
        dev-a.rejected = 1
        dev-a.suspect = 1
        dev-a.suspect_share = 0.125
        dev-a.quarantined = 1
        dev-a.noise.pairs = 1
        dev-a.noise.median_change about 0.02
        dev-b.noise = null
        dev-c.records = 0
        dev-c.suspect_share = null
    """
    check_facts(found["devices"], facts)
    assert sum(found["devices"]["dev-a"][name] for name in ("ok", "failed")) == 8
    assert json.loads(json.dumps(found)) == found


def test_the_status_of_the_command_line(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["status", "--store", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    shown = next(line.split() for line in lines if line.startswith("dev-a"))
    assert shown[1:7] == ["8", "2", "1", "12.5%", "1", "2.00%"]
    assert next(line.split() for line in lines if line.startswith("dev-c"))[4] == "-"
    found = json_of("status", "--store", str(store))
    assert found == read_status(store, Path("runs/models")) | {"daemon": None}


def test_the_status_tells_pins_and_why_champions_stay(store: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    registry.publish(registry.add(small_model("dev-a", "dev-b"), {}), {"dev-a": {}, "dev-b": {}})
    registry.use("dev-a", "v000001", reason="", pins=True)
    registry.retain({"dev-b": "v000002: worse"})
    shown = said("status", "--store", str(store), "--models", str(registry.folder))
    assert "dev-a is served by v000001 (fleet_tlp, pinned)" in shown
    assert "dev-b is served by v000001 (fleet_tlp)" in shown
    assert "dev-b, challenger v000002: worse" in shown
    (registry.folder / "registry.sqlite").write_text("{")
    assert read_status(store, registry.folder)["champions"] == {}
