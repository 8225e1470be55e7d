"""Strangers who connect to the API and send nothing, or little, or too much: the others are answered."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.api.app import ApiSources
from fleet.api.client import TOKEN
from fleet.api.connections import ConnectionLimits
from fleet.api.server import ApiServer
from fleet.models.registry_reader import RegistryReader
from tests.conftest import until
from tests.fleet.api.test_api import a_view, client_of

MOST = 32


class Started:
    """A server with a view that may be held up."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)
        self.server = ApiServer(
            ApiSources(view=self._view, registry=RegistryReader(folder / "models")),
            folder,
            limits=ConnectionLimits(**limits),
        )
        self.port = int(self.server.url.rpartition(":")[2])
        self.token = (folder / TOKEN).read_text().strip()
        self.sockets = contextlib.ExitStack()

    def _view(self) -> dict[str, Any]:
        self.asked.release()
        assert self.gate.wait(60)
        return a_view()

    def connect(self, data: bytes = b"") -> socket.socket:
        made = self.sockets.enter_context(socket.create_connection(("127.0.0.1", self.port), 30))
        if data:
            made.sendall(data)
        return made

    def head(self, path: str = "/v1/status", *lines: str) -> bytes:
        wanted = (f"GET {path} HTTP/1.1", "Host: h", f"Authorization: Bearer {self.token}", *lines)
        return "".join(f"{line}\r\n" for line in (*wanted, "")).encode()

    def get(self, path: str = "/v1/status") -> httpx.Response:
        with client_of(self.server, self.token) as client:
            return client.get(path)

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with contextlib.ExitStack() as stack:

        def begin(**limits: Any) -> Started:
            made = Started(tmp_path, **limits)
            stack.callback(made.server.close)
            stack.enter_context(made.sockets)
            stack.callback(made.gate.set)
            return made

        yield begin


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other end closes; a reset is an end too."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            got += part
    return got


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_idle_connections_give_way_to_newer_ones_and_to_whoever_has_the_token(
    start: Callable[..., Started],
) -> None:
    fleet = start(most=MOST, head_secs=60.0)
    idle = [fleet.connect() for _ in range(4 * MOST)]
    assert fleet.get().status_code == 200
    until(lambda: sum(map(is_open, idle)) <= MOST)
    assert not any(map(is_open, idle[:MOST])), "the oldest go first"
    assert fleet.metric("fleet_api_connections") <= MOST
    assert fleet.metric("fleet_api_connections_limit") == MOST
    assert fleet.metric('fleet_api_connections_refused_total{why="crowd"}') >= 3 * MOST


def test_who_is_being_answered_is_not_pushed_out_and_where_all_are_a_new_one_is_closed(
    start: Callable[..., Started],
) -> None:
    fleet = start(most=4, head_secs=60.0)
    fleet.gate.clear()
    asking = [fleet.connect(fleet.head("/v1/status", "Connection: close")) for _ in range(4)]
    for _ in asking:
        assert fleet.asked.acquire(timeout=30)
    for _ in range(8):
        assert answer(fleet.connect()) == b""
    fleet.gate.set()
    for one in asking:
        assert answer(one).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"GET /v1/status HTTP/1.1\r\nX: "], ids=["nothing", "half a head"])
def test_a_head_that_does_not_come_is_waited_for_so_long(start: Callable[..., Started], sent: bytes) -> None:
    fleet = start(head_secs=0.2)
    slow = fleet.connect(sent)
    slow.settimeout(0.02)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # a byte now and then gives no more time
        try:
            if sent:
                slow.sendall(b"x")
            if not slow.recv(1):
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    else:
        pytest.fail("it is still open")
    assert fleet.metric('fleet_api_connections_refused_total{why="time"}') >= 1


def test_a_kept_connection_must_ask_again_in_time(start: Callable[..., Started]) -> None:
    fleet = start(head_secs=2.0)
    kept = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=30)
    fleet.sockets.callback(kept.close)
    for path in ("/v1/status", "/v1/devices"):
        kept.request("GET", path, headers={"Authorization": f"Bearer {fleet.token}"})
        found = kept.getresponse()
        assert (found.status, bool(found.read())) == (200, True)
    kept.sock.sendall(b"GET /v1/dev")
    assert answer(kept.sock) == b""
    assert fleet.metric('fleet_api_connections_refused_total{why="time"}') == 1


def test_an_answer_that_takes_too_long_ends(start: Callable[..., Started]) -> None:
    fleet = start(head_secs=60.0, request_secs=0.2)
    fleet.gate.clear()
    assert answer(fleet.connect(fleet.head())) == b""


@pytest.mark.parametrize(
    "body", ["Content-Length: 1000000000", "Transfer-Encoding: chunked", "Content-Length: 1"]
)
def test_a_body_is_refused_before_it_comes(start: Callable[..., Started], body: str) -> None:
    fleet = start(head_secs=60.0)
    assert answer(fleet.connect(fleet.head("/v1/status", body))).startswith(b"HTTP/1.1 413")
    stranger = f"POST /v1/status HTTP/1.1\r\nHost: h\r\n{body}\r\n\r\n".encode()
    assert answer(fleet.connect(stranger)).startswith(b"HTTP/1.1 401")
    assert not fleet.asked.acquire(blocking=False)


def test_without_the_token_there_is_one_answer_a_connection(start: Callable[..., Started]) -> None:
    fleet = start(head_secs=60.0)
    two = b"GET %s HTTP/1.1\r\nHost: h\r\n\r\n" * 2
    for path, status in ((b"/healthz", b"200"), (b"/v1/status", b"401")):
        got = answer(fleet.connect(two % (path, path)))
        assert got.startswith(b"HTTP/1.1 " + status)
        assert got.count(b"HTTP/1.1") == 1


def test_a_head_without_end_is_refused(start: Callable[..., Started]) -> None:
    fleet = start(head_secs=60.0)
    long = fleet.connect(b"GET / HTTP/1.1\r\nX: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            long.sendall(b"x" * 1024)
    assert answer(long)[:12] in (b"", b"HTTP/1.1 400")
    assert fleet.get().status_code == 200
