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
import socket
import threading
import time
from pathlib import Path

import httpx

from benchmarks.fleet_up import (
    START_SECS,
    Program,
    patience,
    replay_device,
    running,
    verb,
    wait_until,
    write_fleet,
)
from benchmarks.scale_fleet import recorded_file
from fleet.api.client import ask, find_daemon
from fleet.errors import FleetError
from fleet.json_types import JsonDict

_DEVICES, _CONNECTIONS = 64, 2000
_STOP_SECS, _WATCH_SECS = 120.0, 20.0
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

    def wait_until_there(self) -> None:
        """Wait until each connection has been made once."""
        deadline = time.monotonic() + _WATCH_SECS
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


def measure_connections(folder: Path) -> JsonDict:
    """Run the daemon with and without strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _CONNECTIONS + 256:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_CONNECTIONS + 256, hard))
    root = folder / "fleet"
    with running(Program(verb("up", "--config", str(_settings(folder))), folder / "up.log")) as up:
        wait_until(lambda: _records(root), "a record of `fleet up`", patience(START_SECS))
        alone = [_watch(root, up)]
        idle = _beside(root, up, is_flood=False)
        alone.append(_watch(root, up))
        flood = _beside(root, up, is_flood=True)
        alone.append(_watch(root, up))
        code = up.stop(_STOP_SECS)
    # The table grows, so a part is compared with those before and after it.
    rates = [one["records_per_s"] for one in alone]
    return {
        "connections": _CONNECTIONS,
        "exit_code": code,
        "ray_restarts": up.told().count("Ray is started again"),
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


def _beside(root: Path, up: Program, *, is_flood: bool) -> JsonDict:
    """Watch the daemon beside strangers."""
    daemon = find_daemon(root)
    assert daemon is not None
    strangers = Strangers(httpx.URL(daemon.url).port or 0, _CONNECTIONS, is_flood=is_flood)
    try:
        strangers.wait_until_there()
        return {**_watch(root, up), "made": strangers.made}
    finally:
        strangers.close()


def _settings(folder: Path) -> Path:
    recorded = recorded_file(folder, _CANDIDATES)
    devices = {f"dev-{number:03d}": replay_device(recorded, "recorded", number) for number in range(_DEVICES)}
    workloads = {"networks": ["resnet-50"], "noise_samples": 0}
    return write_fleet(folder, devices, folder, workloads=workloads)


def _records(root: Path) -> int:
    """How many the daemon has; 0 where it does not say."""
    with contextlib.suppress(FleetError):
        if (view := ask(root, "/v1/status")) is not None:
            return int(view["store"]["records"])
    return 0


def _watch(root: Path, up: Program) -> JsonDict:
    """Ask now and then for some seconds, as `fleet status` does."""
    began, first = time.monotonic(), _records(root)
    last, took, files, unanswered = first, [0.0], 0, 0
    while time.monotonic() - began < _WATCH_SECS and up.code is None:
        asked = time.monotonic()
        if records := _records(root):
            last = records
            took.append(time.monotonic() - asked)
        else:
            unanswered += 1
        files = max(files, len(os.listdir(f"/proc/{up.pid}/fd")))  # noqa: PTH208  # only their number
        time.sleep(0.25)
    return {
        "records_per_s": (last - first) / (time.monotonic() - began),
        "answer_ms_max": 1e3 * max(took),
        "unanswered": unanswered,
        "open_files_max": files,
    }
