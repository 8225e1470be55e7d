"""The main job and the first hour as a user has them: a demo, stopped and run again, then each command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agents.host import cpu_features as isa
from agents.host.probe import probe
from agents.records import DeviceId
from fleet.errors import FleetError
from fleet.models.registry_reader import RegistryReader
from fleet.onboarding.fingerprint import known_fingerprints
from fleet.store.store import Store
from tests.conftest import until
from tests.docs.test_docs import ROOT, shell_blocks
from transfer.adapt.fingerprint import ORIGIN
from transfer.adapt.registry import NAMES

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.slow, pytest.mark.timeout(1800)]

WORKLOADS, SAMPLES, SUPPORT = 4, 5, 8
SMALL = [
    *("--workloads", str(WORKLOADS), "--samples", str(SAMPLES), "--support", str(SUPPORT)),
    *("--folds", "2", "--epochs", "1", "--repeats", "1"),
]


#: Two profiles that every host of CI can be, and little time for each program.
SETTINGS = """
schema: 1
devices: {ids: [x86-64, x86-64-v2]}
workloads: {networks: [bert-tiny], noise_samples: 2}
protocol: {repeat: 2, extra_repeats: 0, min_repeat_ms: 1.0, visits: 1, reject_interval: 0}
daemon: {stop_secs: 1}
"""


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    settings = folder.with_name("fleet.yaml")
    settings.write_text(SETTINGS)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "fleet.cli", "demo", "--folder", str(folder)),
            *("--config", str(settings), *SMALL, *more),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def count(store: Path) -> int:
    try:
        return sum(counts.records for counts in Store.read(store).counts().values())
    except FleetError:
        return 0


def own_lines(lines: list[str]) -> list[str]:
    """Without what Ray's processes print, and the traceback of what Python ignores at its end."""
    kept: list[str] = []
    before = ""
    for line in lines:
        if not line.startswith("(") and not before.startswith("Exception ignored"):
            kept.append(line)
        before = line
    return kept


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo that was asked to stop in mid-measurement: it closes everything and says so."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    demo = start(folder)
    until(lambda: demo.poll() is not None or count(folder / "store") >= 4, 300, look_secs=0.5)
    assert demo.poll() is None, demo.communicate()
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGTERM)
    _, errors = demo.communicate(timeout=180)
    assert demo.returncode == 128 + signal.SIGTERM
    lines = errors.splitlines()
    # Ray's processes print here as well, even while they end.
    last = [line for line in lines if line.startswith("fleet:")][-1]
    assert last == "fleet: interrupted; run the same command again to continue"
    assert not [line for line in own_lines(lines) if "Traceback" in line], errors
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    return folder


@pytest.fixture(scope="module")
def finished(stopped: Path) -> tuple[Path, str]:
    """The same command again: its folder, and what it printed."""
    kept = {record.record_id for record in Store.read(stopped / "store").records()}
    assert len(kept) >= 4
    again = start(stopped, "--json")
    printed, errors = again.communicate(timeout=500)
    assert again.returncode == 0, errors
    assert kept <= {record.record_id for record in Store.read(stopped / "store").records()}
    return stopped, printed


def test_the_same_command_goes_on_after_a_stop(finished: tuple[Path, str]) -> None:
    store = Store.read(finished[0] / "store")
    records = list(store.records())
    first = [record for record in records if record.attempt == 0]
    assert len({record.record_id for record in records}) == len(records)
    by_device: dict[str, set[str]] = {}
    reference = {record.candidate_id for record in first if record.origin == ORIGIN}
    assert len(reference) == 18
    for record in first:
        if record.candidate_id not in reference:
            by_device.setdefault(record.device_id, set()).add(record.candidate_id)
    assert len(by_device) >= 2
    candidates = next(iter(by_device.values()))
    assert all(measured == candidates for measured in by_device.values())
    assert len(candidates) == WORKLOADS * SAMPLES
    likened = known_fingerprints(store, list(map(DeviceId, by_device)), reference)
    assert [fingerprint.tried for fingerprint in likened] == [18] * len(by_device)


def test_the_report_keeps_its_contract(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    report = json.loads((folder / "report.json").read_text())
    assert json.loads(printed).keys() == report.keys()
    assert report["version"] == 1
    store = Store.read(folder / "store")
    for device_id, device in report["devices"].items():
        assert device["records"] == device["ok"] + device["failed"]
        assert device["ok"] <= sum(record.attempt == 0 for record in store.records(device_id=device_id))
        assert device["records_per_s"] > 0
        assert 0 <= device["remeasure_median_change"] < 1
    model = report["model"]
    assert set(model["heads"]) == set(report["devices"]) == set(model["top1"]) == set(model["top5"])
    assert all(0 < value <= 1 for value in [*model["top1"].values(), *model["top5"].values()])
    new = report["onboarding"]
    assert new["device"] in report["devices"]
    assert new["samples"] == SUPPORT
    assert new["strategy"] in NAMES
    assert new["seconds"] > 0
    assert 0 < new["full_samples"] < report["devices"][new["device"]]["ok"]
    for key in ("top1", "top5", "scratch_top1", "scratch_top5", "full_top1"):
        assert 0 < new[key] <= 1
    assert new["top1"] <= new["top5"]
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert new["device"] in page


def test_the_kept_model_scores_every_head(finished: tuple[Path, str]) -> None:
    from fleet.models.versions import load_snapshot
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model import checkpoint

    folder, printed = finished
    # The shipped model's head may have come after it, to serve the device.
    version = json.loads(printed)["model"]["version"]
    model, manifest = checkpoint.load(folder / "models" / version, DEFAULT_SPEC)
    snapshot = load_snapshot(Store.read(folder / "store"))
    assert set(model.device_ids) == set(snapshot.dataset.device_ids)
    assert manifest["samples"] == SUPPORT
    for device_id in model.device_ids:
        scores = model.score(snapshot.dataset.features, device_id)
        assert scores.shape == (len(snapshot.dataset),)
        assert len(set(scores.tolist())) > WORKLOADS * SAMPLES / 2


# ---- the commands of the page ----

#: Time of a step at most, in seconds, on a host with other work.
STEP_SECS = 900
#: What is done already: the installation, and the demo of this file in place of one that takes ten minutes.
DONE = ("make run", ". .venv/bin/activate")
#: Commands that go on until Ctrl-C.
ENDLESS = ("fleet up", "fleet status --watch")
#: Small programs, shorter timing and training, by the settings that the documents name.
QUICK = {
    "FLEET_PROTOCOL__REPEAT": "2",
    "FLEET_PROTOCOL__EXTRA_REPEATS": "0",
    "FLEET_PROTOCOL__MIN_REPEAT_MS": "1",
    "FLEET_PROTOCOL__VISITS": "1",
    "FLEET_PROTOCOL__REJECT_INTERVAL": "0",
    "FLEET_WORKLOADS__NETWORKS": "[bert-tiny]",
    "FLEET_WORKLOADS__NOISE_SAMPLES": "2",
    "FLEET_TRAINING__EPOCHS": "1",
    "FLEET_TRAINING__FOLDS": "2",
    "FLEET_DAEMON__API_PORT": "0",
    "FLEET_DAEMON__STOP_SECS": "1",
}


def commands() -> list[str]:
    """The commands of the page, without comments."""
    blocks = shell_blocks((ROOT / "docs/first-hour.md").read_text())
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


class Reader:
    """A person with a terminal in an empty folder, who types one command after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, **QUICK, "PATH": scripts, "BROWSER": "true"}
        self.daemon: subprocess.Popen[str] | None = None

    def types(self, command: str) -> None:
        """Run a command of the page to its end, which must be a good one."""
        if command in DONE:
            return
        command = self._with_names_of_here(command)
        if command in ENDLESS:
            self._goes_on(command)
            return
        shell = subprocess.Popen(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = shell.communicate(timeout=STEP_SECS)
        except subprocess.TimeoutExpired:
            # The shell's command is asked to end too, and ends what it has started.
            os.killpg(shell.pid, signal.SIGTERM)
            output, _ = shell.communicate(timeout=60)
        assert shell.returncode == 0, f"{command}: {shell.returncode}\n{output[-3000:]}"

    def _with_names_of_here(self, command: str) -> str:
        """The command about a candidate and a workload that the small demo has measured."""
        if "show " not in command:
            return command
        store = Store.read(self.folder / "runs/demo/store")
        record = next(record for record in store.records() if record.outcome == "ok")
        workload = store.workloads()[record.workload_id].name
        return command.replace("080adb", record.candidate_id[:12]).replace("GMM_1x128x128x128", workload)

    def _goes_on(self, command: str) -> None:
        log = self.folder / f"{command.replace(' ', '-')}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                # Each device is a process with TVM.
                env={**self.environment, "FLEET_DEVICES__IDS": "x86-64-v2,x86-64-v3"},
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
            )
        if command == "fleet up":
            self.daemon = process
            until(lambda: "fleet is up" in log.read_text() or process.poll() is not None, 120)
            assert "fleet is up" in log.read_text(), log.read_text()
        else:
            until(lambda: "x86-64-v3" in log.read_text() or process.poll() is not None, 60)
            self.stops(process, log.read_text())

    def stops(self, process: subprocess.Popen[str], text: str = "") -> None:
        """Press Ctrl-C."""
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) in (0, 130), text


@pytest.mark.skipif(
    "x86-64-v3" not in [one.name for one in isa.runnable_levels(probe().arch, probe().isa_flags)],
    reason="the page is for hosts that can be x86-64-v3",
)
def test_the_first_hour_runs_to_its_end(finished: tuple[Path, str], tmp_path: Path) -> None:
    """Command after command as the page has them, in a folder with nothing but the demo."""
    shutil.copytree(finished[0], tmp_path / "runs/demo")
    reader = Reader(tmp_path)
    try:
        for command in commands():
            reader.types(command)
        assert reader.daemon is not None
        reader.stops(reader.daemon)
        assert reader.daemon.returncode == 0
    finally:
        if reader.daemon is not None and reader.daemon.poll() is None:
            reader.daemon.kill()
    compile((tmp_path / "reproduce.py").read_text(), "reproduce.py", "exec")
    champions = RegistryReader(tmp_path / "runs/models").champions()
    assert set(champions) >= {"x86-64-v2", "sandybridge", "x86-64-v3"}
