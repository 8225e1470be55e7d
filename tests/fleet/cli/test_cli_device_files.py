"""`fleet devices list`, `add` and `retire`, and what a broken file is to the other verbs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.records import DeviceId, DeviceSpec
from fleet.config.settings import FleetConfig, load_fleet, select_devices
from fleet.daemon.device_choice import DeviceChoice
from fleet.errors import FleetError
from tests.cli_fixtures import json_of, refusal, run
from tests.host_fixtures import x86_host

FOLDER = Path("configs/hardware")


def device(name: str, **changes: Any) -> dict[str, Any]:
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}
    return {"schema": 1, "device_id": name, "kind": "local", "family": "cpu", "target": target, **changes}


@pytest.fixture(autouse=True)
def _box(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86 box of level 4 with one device file."""
    monkeypatch.setattr("agents.host.probe.probe", x86_host)
    monkeypatch.setattr("fleet.daemon.device_choice.probe", x86_host)
    FOLDER.mkdir(parents=True)
    (FOLDER / "box.yaml").write_text(yaml.safe_dump(device("box")))


def test_the_daemon_says_which_devices_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    view = {"devices": {"box": {"state": "leased"}}}
    monkeypatch.setattr("fleet.cli.devices.ask", lambda root, path: view)
    (FOLDER / "other.yaml").write_text(yaml.safe_dump(device("other")))
    listed = json_of("devices", "list")
    assert {one["device"]: one["daemon"] for one in listed} == {"box": "leased", "other": None}
    assert "the daemon follows within five seconds" in run("devices", "retire", "other").output


def test_a_daemon_that_refuses_leaves_the_files_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: Path, path: str) -> None:
        raise FleetError("the daemon refuses the token")

    monkeypatch.setattr("fleet.cli.devices.ask", refuse)
    Path("new.yaml").write_text(yaml.safe_dump(device("new")))
    for arguments in (("retire", "box"), ("add", "new.yaml")):
        assert refusal("devices", *arguments) == "the daemon refuses the token"
        assert [path.name for path in FOLDER.iterdir()] == ["box.yaml"]


def measured(settings: FleetConfig) -> dict[DeviceId, DeviceSpec]:
    """What a start looks after; it says what it leaves out."""
    choice = DeviceChoice(settings)
    choice.warn()
    return dict(choice.files.specs)


def test_a_broken_file_disturbs_no_other_device(caplog: pytest.LogCaptureFixture) -> None:
    (FOLDER / "broken.yaml").write_text("schema: 1\nschema: 2\n")
    settings = load_fleet(environ={}).config
    for read in (select_devices, measured):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert set(read(settings)) == {"box"}
        [line] = caplog.messages
        assert line.startswith("left out: configs/hardware/broken.yaml: line 2: bad YAML: key 'schema'")
    assert run("probe", "--device", "box").exit_code == 0
    assert run("doctor", "--json").stdout.startswith("{")
    asked = load_fleet(overrides={"devices.ids": ["box"]}, environ={}).config
    caplog.clear()
    assert set(measured(asked)) == set(select_devices(asked)) == {"box"}
    assert not caplog.messages, "nobody asked for it"
    wrong = load_fleet(overrides={"devices.ids": ["broken"]}, environ={}).config
    for read in (select_devices, measured):
        with pytest.raises(FleetError, match=r"broken\.yaml: line 2: "):
            read(wrong)


def test_a_daemon_starts_again_without_a_named_device_that_was_retired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (FOLDER / "other.yaml").write_text(yaml.safe_dump(device("other")))
    assert run("devices", "retire", "other").exit_code == 0
    named = load_fleet(overrides={"devices.ids": ["box", "other"]}, environ={}).config
    daemon = DeviceChoice(named, follows=True)
    assert set(daemon.files.specs) == {"box"}
    assert "other is retired" in caplog.text
    caplog.clear()
    doctor = run("doctor", "--json", "--set", "devices.ids=box,other")
    assert doctor.stdout.startswith("{"), doctor.exception
    assert "other is retired" in caplog.text
    assert run("devices", "add", str(FOLDER / "retired" / "other.yaml")).exit_code == 0
    assert daemon.look() is None
    found = daemon.look()
    assert set(found.specs) == {"box", "other"}, "it was asked for, and is back"
    assert run("devices", "retire", "box").exit_code == 0
    # A command names what it is to work on now; and a start of nothing is none.
    with pytest.raises(FleetError, match="no device 'box'"):
        DeviceChoice(named)
    alone = load_fleet(overrides={"devices.ids": ["box"]}, environ={}).config
    with pytest.raises(FleetError, match="no device 'box'"):
        DeviceChoice(alone, follows=True)


def test_nothing_but_broken_files_is_an_error() -> None:
    (FOLDER / "box.yaml").write_text("schema: [")
    (FOLDER / "two.yaml").write_text("- 1")
    with pytest.raises(FleetError, match=r"(?s)box\.yaml.*\n.*two\.yaml"):
        DeviceChoice(load_fleet(environ={}).config)
