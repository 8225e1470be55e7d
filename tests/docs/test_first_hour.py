"""The first hour, command after command as the page has them, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agents.host import cpu_features as isa
from agents.host.probe import probe
from fleet.models.registry_reader import RegistryReader
from fleet.store.store import Store
from tests.conftest import until
from tests.docs.test_docs import ROOT, shell_blocks

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.slow, pytest.mark.timeout(1800)]

#: What the page leaves out: a full installation, and the demo's ten minutes.
SMALL_DEMO = "fleet demo --workloads 4 --samples 4 --support 8 --folds 2 --repeats 1 --epochs 1"
#: Time of a step at most, in seconds, on a host with other work.
STEP_SECS = 900
#: Commands that go on until Ctrl-C.
ENDLESS = ("fleet up", "fleet status --watch")
#: Shorter timing and training, by the settings that the documents name.
QUICK = {
    "FLEET_PROTOCOL__REPEAT": "2",
    "FLEET_PROTOCOL__EXTRA_REPEATS": "0",
    "FLEET_PROTOCOL__MIN_REPEAT_MS": "1",
    "FLEET_PROTOCOL__VISITS": "1",
    "FLEET_PROTOCOL__REJECT_INTERVAL": "0",
    "FLEET_WORKLOADS__NOISE_SAMPLES": "2",
    "FLEET_TRAINING__EPOCHS": "2",
    "FLEET_DAEMON__API_PORT": "0",
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
        if command == "make run":
            command = SMALL_DEMO
        elif command == ". .venv/bin/activate":
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
        record = next(one for one in store.records() if one.outcome == "ok")
        workload = store.workloads()[record.workload_id].name
        return command.replace("080adb", record.candidate_id[:12]).replace("GMM_1x128x128x128", workload)

    def _goes_on(self, command: str) -> None:
        log = self.folder / f"{command.replace(' ', '-')}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environment,
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
def test_the_first_hour_runs_to_its_end(tmp_path: Path) -> None:
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
