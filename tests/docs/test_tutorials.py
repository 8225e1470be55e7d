"""Each tutorial as a user follows it: command after command in an empty folder, and what is printed."""

from __future__ import annotations

import os
import re
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

PAGES = ROOT / "docs/tutorials"

pytestmark = [
    pytest.mark.ray,
    pytest.mark.tvm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "x86-64-v3" not in [level.name for level in isa.runnable_levels(probe().arch, probe().isa_flags)],
        reason="the tutorials are for hosts that can be x86-64-v3",
    ),
]

#: Time of a step at most, in seconds, on a host with other work.
STEP_SECS = 600
#: What is done already: the installation.
DONE = ("make install", ". .venv/bin/activate")
#: Commands that run until Ctrl-C, and what they print once they work.
ENDLESS = {"fleet up": "fleet is up", "fleet status --watch": "x86-64-v3"}
#: Smaller sizes in place of those of the pages.
SIZES = {
    "--trials 200": "--trials 8",
    "--trials 32": "--trials 8",
    "--samples 64": "--samples 24",
    "v000001 16": "v000001 8",
}
#: Small programs, shorter timing and training, by the settings that the documents name.
QUICK = {
    "FLEET_PROTOCOL__REPEAT": "2",
    "FLEET_PROTOCOL__EXTRA_REPEATS": "0",
    "FLEET_PROTOCOL__MIN_REPEAT_MS": "1",
    "FLEET_PROTOCOL__VISITS": "1",
    "FLEET_PROTOCOL__REJECT_INTERVAL": "0",
    "FLEET_WORKLOADS__NETWORKS": "[bert-tiny]",
    # The daemon's own measurements end soon.
    "FLEET_WORKLOADS__SAMPLES": "4",
    "FLEET_WORKLOADS__NOISE_SAMPLES": "2",
    "FLEET_TRAINING__EPOCHS": "1",
    "FLEET_TRAINING__FOLDS": "2",
    "FLEET_DAEMON__API_PORT": "0",
    "FLEET_DAEMON__STOP_SECS": "1",
    "FLEET_DAEMON__ARRIVAL_SAMPLES": "8",
}


def commands(text: str) -> list[str]:
    """The commands of a page, without comments; a file that a command writes belongs to it."""
    lines = "\n".join(shell_blocks(text))
    found = re.findall(r"(?m)^.*<<'END'\n(?s:.*?)^END$|^.+$", lines)
    return [re.sub(r"\s+#.*", "", one).strip() for one in found]


class Reader:
    """A person with a terminal in a folder with the examples, who types one command after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, **QUICK, "PATH": scripts, "PYTHONPATH": path, "BROWSER": "true"}
        self.daemon: subprocess.Popen[str] | None = None
        self.printed = ""

    def types(self, command: str) -> None:
        """Run a command of a page to its end, which must be a good one."""
        if command in DONE:
            return
        for size, small in SIZES.items():
            command = command.replace(size, small)
        if command.startswith("fleet show "):
            command = self._about_a_workload_of_here()
        mark = next((mark for start, mark in ENDLESS.items() if command.startswith(start)), None)
        log = self.folder / "printed.log"
        with log.open("w") as stream:
            shell = subprocess.Popen(
                f"exec {command}" if mark else command,
                shell=True,
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        if mark is not None:
            if command.startswith("fleet up"):
                self.daemon = shell
            path = log.rename(self.folder / f"{shell.pid}.log")
            until(lambda: mark in path.read_text() or shell.poll() is not None, 120)
            assert mark in path.read_text(), f"{command}\n{path.read_text()[-3000:]}"
            self.printed += path.read_text()
            if shell is not self.daemon:
                self.presses_ctrl_c(shell)
            return
        try:
            shell.wait(STEP_SECS)
        except subprocess.TimeoutExpired:
            # The shell's command is asked to end too, and ends what it has started.
            os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(60)
        self.printed += log.read_text()
        assert shell.returncode == 0, f"{command}: {shell.returncode}\n{log.read_text()[-3000:]}"

    def presses_ctrl_c(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) in (0, 130)

    def _about_a_workload_of_here(self) -> str:
        names = sorted(
            workload.name for workload in Store.read(self.folder / "runs/store").workloads().values()
        )
        return f"fleet show {names[0]}"


def shapes(text: str) -> list[str]:
    """What each line of the samples of output begins with, up to its first number, mark or omission."""
    samples = "\n".join(re.findall(r"(?ms)^```text\n(.*?)^```", text))
    starts = [" ".join(re.split(r"[\d:;,]|\.\.\.", line)[0].split()) for line in samples.splitlines()]
    return [start for start in starts if len(start) > 3]


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_a_tutorial_runs_as_written(page: str, tmp_path: Path) -> None:
    text = (PAGES / page).read_text()
    reader = Reader(tmp_path)
    try:
        for command in commands(text):
            if reader.daemon is not None and command.startswith("fleet train"):  # "Press Ctrl-C"
                reader.presses_ctrl_c(reader.daemon)
                assert reader.daemon.returncode == 0
            reader.types(command)
    finally:
        if reader.daemon is not None and reader.daemon.poll() is None:
            reader.daemon.kill()
    printed = " ".join(reader.printed.split())
    assert [start for start in shapes(text) if start not in printed] == []
    match page:
        case "tune-your-first-network.md":
            assert (tmp_path / "runs/tuned/x86-64-v3/report.html").stat().st_size > 10_000
        case "use-a-head-inside-tvm.md":
            assert list((tmp_path / "runs/tvm_search").glob("database*.json"))
        case _:
            assert "x86-64-v3" in RegistryReader(tmp_path / "runs/models").champions()


def test_the_tutorials_are_four() -> None:
    assert len(list(PAGES.glob("*.md"))) == 4
