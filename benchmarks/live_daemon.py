"""A real `fleet up` in a folder, and commands beside it, as a user has them: for benchmarks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet.api.client import DaemonClient, find_daemon

START_SECS = 120.0
HEAD_SECS, _STEP_SECS, _STOP_SECS = 1800.0, 3600.0, 90.0
_POLL_SECS = 0.25


def onboarded(
    daemon: DaemonClient, device_id: str, number: int, most_secs: float = HEAD_SECS
) -> dict[str, Any]:
    """Wait for the result of a device's onboarding, counted from 0."""

    def ended() -> Any:
        listed = [
            one
            for one in daemon.get("/v1/requests")
            if one["kind"] == "onboarding" and one["arguments"]["device"] == device_id
        ]
        return listed[number] if len(listed) > number and listed[number]["ended_at"] is not None else None

    request = until(ended, most_secs, f"onboarding {number} of {device_id}")
    if request["state"] != "succeeded":
        raise SystemExit(f"the onboarding of {device_id} {request['state']}: {request['reason']}")
    result: dict[str, Any] = request["result"]
    return result


def until(look: Any, secs: float, what: str) -> Any:
    """Wait until a question has a true answer, and return it; ends the program where it takes too long."""
    ends_at = time.monotonic() + secs
    while time.monotonic() < ends_at:
        if found := look():
            return found
        time.sleep(_POLL_SECS)
    raise SystemExit(f"not within {secs:.0f} s: {what}")


@contextmanager
def running(folder: Path) -> Iterator[DaemonClient]:
    """A `fleet up` in a process of its own, until the block ends."""
    with (folder / "up.log").open("ab") as log:
        process = subprocess.Popen(command("up"), cwd=folder, stdout=log, stderr=log)
    try:
        yield until(lambda: find_daemon(folder / "runs" / "fleet"), START_SECS, "the daemon is up")
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def fleet(folder: Path, *arguments: str) -> None:
    """Run a command in a folder; ends the program where it fails."""
    done = subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, timeout=_STEP_SECS, check=False
    )
    if done.returncode:
        raise SystemExit(f"fleet {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")


def command(*arguments: str) -> list[str]:
    """A command line of the project."""
    return [sys.executable, "-m", "fleet.cli", *arguments]
