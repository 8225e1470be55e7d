"""`fleet up` while strangers hold connections to its API: the part `connections` of `benchmarks.scale`.

The daemon is a process of its own with a Ray of its own and replay devices. It measures for some seconds with
nobody connected, which is the baseline, then for as many with strangers: some send nothing, some half a head,
some a byte now and then. Last, whoever is closed connects again at once. Between these parts nobody is
connected again, for the table grows meanwhile. Everything is on the loopback interface.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.scale_fleet import recorded_file
from fleet.api.client import TOKEN, ask
from fleet.errors import FleetError
from fleet.private_files import read_private

ROOT = Path(__file__).resolve().parents[1]
_DEVICES = 64
_START_SECS, _STOP_SECS = 300.0, 120.0
#: Of each workload: more than the devices can measure while they are watched.
_CANDIDATES = 1024
#: Pause between two rounds over all connections, and of one that could not be made.
_ROUND_SECS = 0.1
#: What is sent at first, and whether a byte follows with every round.
_KINDS = (
    (b"", False),
    (b"GET /v1/status HTTP/1.1\r\nHost: h\r\n", False),
    (b"GET /v1/status HTTP/1.1\r\nX: ", True),
)


class Strangers:
    """Makes a number of connections without a token, and holds them until it is closed.

    Args:
        port: Port on 127.0.0.1.
        count: Connections at a time.
        is_flood: Whether one that was closed is made again.
    """

    def __init__(self, port: int, count: int, *, is_flood: bool) -> None:
        self._port, self._is_flood = port, is_flood
        self._slots: list[socket.socket | None] = [None] * count
        #: Connections that were made, those in place of closed ones included.
        self.made = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strangers")
        self._thread.start()

    def close(self) -> None:
        """End all of them."""
        self._is_over.set()
        self._thread.join()
        for one in self._slots:
            if one is not None:
                one.close()

    def wait_until_there(self, secs: float) -> None:
        """Wait until each connection has been made once."""
        deadline = time.monotonic() + secs
        while self.made < len(self._slots) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._is_over.wait(_ROUND_SECS):
            for place, one in enumerate(self._slots):
                if self._is_over.is_set():
                    return
                first, is_slow = _KINDS[place % len(_KINDS)]
                if one is not None and (_is_open(one, b"x" if is_slow else b"") or not self._is_flood):
                    continue
                if one is not None:
                    one.close()
                self._slots[place] = None
                with contextlib.suppress(OSError):
                    made = socket.create_connection(("127.0.0.1", self._port), 5)
                    self._slots[place] = made
                    made.sendall(first)
                    self.made += 1


def _is_open(connection: socket.socket, more: bytes) -> bool:
    try:
        connection.setblocking(False)
        if more:
            connection.send(more)
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def measure_connections(folder: Path, *, connections: int, secs: float) -> dict[str, Any]:
    """Run the daemon with and without strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < connections + 256:
        resource.setrlimit(resource.RLIMIT_NOFILE, (connections + 256, hard))
    root = folder / "fleet"
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "up.log").open("wb"))
        up = subprocess.Popen(
            [sys.executable, "-m", "fleet.cli", "up", "--config", str(_settings(folder))],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(up.wait)
        stack.callback(up.kill)
        _wait_for_records(root, up)
        alone = [_watch(root, up, secs)]
        idle = _beside(root, up, connections, secs, is_flood=False)
        alone.append(_watch(root, up, secs))
        flood = _beside(root, up, connections, secs, is_flood=True)
        alone.append(_watch(root, up, secs))
        up.send_signal(signal.SIGTERM)
        up.wait(_STOP_SECS)
    said = (folder / "up.log").read_text(errors="replace")
    # The table grows, so a part is compared with those before and after it.
    rates = [one["records_per_s"] for one in alone]
    return {
        "connections": connections,
        "exit_code": up.returncode,
        "last_words": said[-500:] if up.returncode else "",
        "ray_restarts": said.count("Ray is started again"),
        "records_per_s": idle["records_per_s"],
        "answer_ms_max": max(idle["answer_ms_max"], flood["answer_ms_max"]),
        "unanswered": idle["unanswered"] + flood["unanswered"],
        "idle": idle,
        "flood": flood,
        "baseline": "the same daemon before and after, with nobody connected",
        "alone": alone,
        "ratio_to_baseline": 2 * idle["records_per_s"] / (rates[0] + rates[1]),
        "flood_ratio_to_baseline": 2 * flood["records_per_s"] / (rates[1] + rates[2]),
    }


def _beside(
    root: Path, up: subprocess.Popen[bytes], connections: int, secs: float, *, is_flood: bool
) -> dict[str, Any]:
    """Watch the daemon beside strangers."""
    strangers = Strangers(int(httpx.URL(_address(root)).port or 0), connections, is_flood=is_flood)
    try:
        strangers.wait_until_there(secs)
        found = _watch(root, up, secs)
        return {**found, "made": strangers.made, **_metrics(root)}
    finally:
        strangers.close()


def _settings(folder: Path) -> Path:
    recorded = recorded_file(folder, _CANDIDATES)
    hardware = folder / "hardware"
    hardware.mkdir()
    names = [f"dev-{number:03d}" for number in range(_DEVICES)]
    for number, name in enumerate(names):
        device = {"schema": 1, "device_id": name, "kind": "replay", "family": "cpu", "seed": number}
        device |= {"records": str(recorded), "device": "recorded"}
        (hardware / f"{name}.yaml").write_text(yaml.safe_dump(device))
    value = {
        "schema": 1,
        "devices": {"folder": str(hardware), "ids": names},
        "workloads": {"networks": ["resnet-50"], "noise_samples": 0},
        "store": {"path": str(folder / "store")},
        "daemon": {"root": str(folder / "fleet"), "refresh": False, "api_port": 0},
    }
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


def _address(root: Path) -> str:
    return str(yaml.safe_load((root / "api.json").read_text())["url"])


def _records(root: Path) -> int:
    view = ask(root, "/v1/status")
    return int(view["store"]["records"]) if view is not None else 0


def _wait_for_records(root: Path, up: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECS
    while up.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(FleetError):
            if _records(root):
                return
        time.sleep(0.2)
    raise FleetError(f"`fleet up` has no record after {_START_SECS:g} s; see {root.parent / 'up.log'}")


def _watch(root: Path, up: subprocess.Popen[bytes], secs: float) -> dict[str, Any]:
    """Ask now and then for some seconds, as `fleet status` does."""
    began, first = time.monotonic(), _records(root)
    last, took, files, unanswered = first, [0.0], 0, 0
    while time.monotonic() - began < secs and up.poll() is None:
        asked = time.monotonic()
        try:
            last = _records(root)
            took.append(time.monotonic() - asked)
        except FleetError:
            unanswered += 1
        files = max(files, len(os.listdir(f"/proc/{up.pid}/fd")))  # noqa: PTH208  # only their number
        time.sleep(0.25)
    ordered = sorted(took[1:]) or [0.0]
    return {
        "records_per_s": (last - first) / (time.monotonic() - began),
        "answer_ms_median": 1e3 * ordered[len(ordered) // 2],
        "answer_ms_max": 1e3 * ordered[-1],
        "unanswered": unanswered,
        "open_files_max": files,
    }


def _metrics(root: Path) -> dict[str, Any]:
    token = read_private(root / TOKEN).strip()
    with httpx.Client(trust_env=False, timeout=10) as client:
        text = client.get(_address(root) + "/metrics", headers={"Authorization": f"Bearer {token}"}).text
    values = {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    }
    closed = {
        name: count
        for name, count in values.items()
        if name.startswith("fleet_api_connections_refused_total")
    }
    return {
        "open": int(values["fleet_api_connections"]),
        "closed": {name.partition('"')[2].partition('"')[0]: int(count) for name, count in closed.items()},
    }
