"""Every verb beside a running `fleet up`, as a user types it: a real daemon, real agents, one store.

The devices answer from recorded schedules, so that nothing but their timing is left out.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from agents.records import DeviceId
from fleet.api.client import ask
from fleet.store.store import Store
from tests.conftest import until
from tests.coordinator_fixtures import write_replay_device
from tests.daemon_fixtures import Up, fleet_command
from tests.log_fixtures import autotvm, write_log
from tests.onboarding_fixtures import NEW, SOURCES, WORKLOADS, fill

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

LINES = 20
NETWORK = "bert-tiny"
_WITH_MODELS = {"collect", "train", "eval", "onboard", "tune", "models"}


class Fleet:
    """A daemon on three devices, and commands beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.store = folder / "runs" / "store"
        self.recorded = fill(folder / "recorded", *SOURCES, NEW)
        with Store.open(self.recorded) as store:
            store.put_workloads(replace(one, networks=((NETWORK, 1),)) for one in WORKLOADS)
        hardware = folder / "hardware"
        hardware.mkdir()
        names = {"one": SOURCES[0], "two": SOURCES[1], "board": NEW}
        for name, device in names.items():
            write_replay_device(hardware, name, self.recorded, device=device)
        value = {
            "schema": 1,
            "devices": {"folder": str(hardware), "ids": list(names)},
            "workloads": {"networks": [NETWORK], "noise_samples": 0},
            "store": {"path": str(self.store)},
            "training": {"epochs": 2},
            # The background has measured all there is soon; what trains, and onboards, is asked for here.
            "daemon": {
                "api_port": 0,
                "folders": [str(folder)],
                "training_records": 1_000_000,
                "reason_records": 1_000_000,
                # Has fingerprints measured; every device here gets its head by hand.
                "arrival_samples": 8,
                "return_samples": 0,
            },
        }
        self.settings = folder / "fleet.yaml"
        self.settings.write_text(yaml.safe_dump(value))
        self.up = Up(self.settings, "--models", str(self.models))

    def fails(self, *arguments: str) -> str:
        """Run a command that must fail in one line, and return this."""
        _, told = self._run(1, *arguments)
        assert "Traceback" not in told
        return told.strip().splitlines()[-1]

    def does(self, *arguments: str) -> Any:
        """Run a command, and return what it printed."""
        out, _ = self._run(0, *arguments)
        return json.loads(out) if "--json" in arguments else out

    def _run(self, code: int, *arguments: str) -> tuple[str, str]:
        models = ("--models", str(self.models)) if arguments[0] in _WITH_MODELS else ()
        command = fleet_command(self.settings, *arguments, *models)
        out, told = command.communicate(timeout=300)
        assert command.returncode == code, (arguments, out, told)
        return out, told

    def requests(self) -> list[tuple[str, str]]:
        """Kind and state of every request, the oldest first."""
        return [(one["kind"], one["state"]) for one in self.does("requests", "list", "--json")]

    def ended(self, name: str) -> dict[str, Any]:
        """The first request whose id begins so, once it has ended."""
        deadline = time.monotonic() + 60
        while True:
            listed = self.does("requests", "list", "--json")
            found: list[dict[str, Any]] = [one for one in listed if one["id"].startswith(name)]
            if found and found[0]["ended_at"] is not None:
                return found[0]
            assert time.monotonic() < deadline, listed

    def view(self, device_id: str) -> dict[str, Any]:
        """How the API shows a device; empty without it."""
        found: dict[str, Any] = ask(self.store.parent / "fleet", "/v1/status")["devices"].get(device_id, {})
        return found

    def state_of(self, device_id: str) -> str:
        return str(self.view(device_id).get("state", ""))

    def wait_for(self, device_id: str, *states: str) -> None:
        until(lambda: self.state_of(device_id) in states, 60)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("beside"))
    try:
        made.up.wait_for_line("fleet is up")
        yield made
        assert made.up.end(signal.SIGTERM) == 0
    finally:
        if made.up.process.poll() is None:
            made.up.process.kill()
        made.up.process.communicate()


def test_collect_measures_on_all_devices_of_the_daemon(fleet: Fleet) -> None:
    told = fleet.does("collect", "--workloads", "4", "--samples", "6")
    assert {"one", "two", "board"} <= {line.split()[0] for line in told.splitlines() if line}
    counts = Store.read(fleet.store).counts()
    assert min(counts[DeviceId(one)].records for one in ("one", "two")) >= 24
    assert ("collection", "succeeded") in fleet.requests()


def test_train_publishes_and_eval_scores_what_is_served(fleet: Fleet) -> None:
    [trained] = fleet.does("train", "--json")
    assert trained["state"] == "succeeded"
    assert {"one", "two"} <= set(trained["result"]["serves"])
    found = fleet.ended("fingerprints-")
    assert found["state"] == "succeeded"
    # What they answer from has no reference program.
    assert dict.fromkeys(found["arguments"]["devices"], 0) == found["result"]["ran"]
    assert {"one", "two"} <= found["result"]["ran"].keys()
    asked = ("--device", "one", "--device", "two", "--seeds", "1", "--epochs", "1", "--folds", "2")
    scored = fleet.does("eval", *asked, "--json")
    assert scored["devices"].keys() == {"one", "two"}
    ended = fleet.ended("evaluation-")
    assert (ended["state"], ended["result"]) == ("succeeded", scored), "the daemon has done it"
    assert "nobody" in fleet.fails("eval", "--device", "nobody")


def test_a_device_is_onboarded_and_tuned(fleet: Fleet) -> None:
    assert "nobody" in fleet.fails("onboard", "nobody", "--samples", "8")
    made = fleet.does("onboard", "board", "--samples", "16", "--strategy", "nearest", "--json")
    assert (made["device"], made["samples"]) == ("board", 16)
    tuned = fleet.does("tune", "board", "--trials", "4", "--out", str(fleet.folder / "tuned"), "--json")
    # The background has measured every recorded candidate of so few.
    assert (tuned["trials"], tuned["why_no_model"]) == (
        0,
        "its designs are all measured: none was left to rank",
    )
    assert tuned["networks"][NETWORK]["best_secs"] > 0
    assert (fleet.folder / "tuned" / "database_workload.json").exists()
    assert {("onboarding", "succeeded"), ("tuning", "succeeded")} <= set(fleet.requests())


def test_a_device_is_retired_and_added_again(fleet: Fleet) -> None:
    moved = fleet.does("devices", "retire", "board")
    fleet.wait_for("board", "", "retired")
    assert DeviceId("board") in Store.read(fleet.store).devices()
    assert "board" in moved
    path = write_replay_device(fleet.folder, "board", fleet.recorded, device=NEW)
    assert "the daemon follows within five seconds" in fleet.does("devices", "add", str(path))
    until(lambda: fleet.state_of("board") not in ("", "retired"), 5.0)
    fleet.wait_for("board", "idle", "leased")


def test_import_is_read_by_the_daemon_and_export_reads_beside_it(fleet: Fleet) -> None:
    log = write_log(fleet.folder / "log.json", [autotvm(number) for number in range(LINES)] + ["no record"])
    report = fleet.does("import", str(log), "--device", "their-board", "--json")
    assert (report["imported"], report["unaccounted_lines"]) == (LINES, 0)
    assert report["rejected_by_reason"]
    exported = fleet.does("export", str(fleet.folder / "out.parquet"), "--device", "their-board", "--json")
    assert exported["records"] == LINES


def test_a_head_is_pinned_left_by_the_next_training_and_taken_back(fleet: Fleet) -> None:
    assert "one" in fleet.does("status", "--json")["daemon"]["devices"]
    before = fleet.view("one")["champion"]
    fleet.does("models", "use", "one", before, "--pin")
    until(lambda: fleet.view("one")["pinned"])
    [trained] = fleet.does("train", "--json")
    assert "one" in trained["result"]["kept_champions"]
    assert fleet.view("one")["champion"] == before
    fleet.does("models", "unpin", "one")
    manifests = {
        path.parent.name: json.loads(path.read_text()) for path in fleet.models.glob("v*/manifest.json")
    }
    other = min(name for name, one in manifests.items() if "one" in one["heads"] and name != before)
    assert other in fleet.does("models", "use", "one", other, "--reason", "slower")
    until(lambda: fleet.view("one")["champion"] == other)
