"""`fleet up` and other verbs as processes, as a user has them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class Up:
    """One `fleet up` in a process of its own.

    Args:
        settings: The fleet file.
        options: Of the verb.
        program: What Python runs: the command of this checkout, or a script.
        process: Options of the process.
    """

    def __init__(
        self, settings: Path, *options: str, program: tuple[str, ...] = ("-m", "fleet.cli"), **process: Any
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, "up", "--config", str(settings), *options],
            **{"cwd": ROOT, **process},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for_line(self, words: str) -> str:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if words in line:
                return line
        raise AssertionError(f"it ended without a word of {words!r}: {seen}")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        if number == signal.SIGKILL:
            # Processes of Ray look for a killed head for a minute, with this pipe open.
            self.process.stdout.close()
            self.process.stdout = None
        else:
            self.process.stdout.read()
        return self.process.wait(60)


def fleet_command(settings: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    config = () if arguments[0] == "models" else ("--config", str(settings))
    return subprocess.Popen(
        [sys.executable, "-m", "fleet.cli", *arguments, *config],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        **options,
    )
