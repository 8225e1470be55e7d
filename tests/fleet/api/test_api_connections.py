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

import pytest

from fleet.api.connections import ConnectionLimits
from fleet.api.server import ApiServer
from tests.conftest import until
from tests.fleet.api.test_api import a_view, connect, get, metrics, request_head, sources_of

MOST = 32


class Started:
    """A server with a view that may be held up."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder = folder
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)
        self.server = ApiServer(
            sources_of(folder / "models", view=self._view), folder, limits=ConnectionLimits(**limits)
        )
        self.sockets = contextlib.ExitStack()

    def _view(self) -> dict[str, Any]:
        self.asked.release()
        assert self.gate.wait(60)
        return a_view()

    def connect(self, data: bytes = b"") -> socket.socket:
        made = self.sockets.enter_context(connect(self.server))
        if data:
            made.sendall(data)
        return made

    def ask(self, *lines: str) -> socket.socket:
        """Ask for the view, with the token and these lines of the head."""
        return self.connect(request_head(self.folder, "/v1/status", *lines))

    def status(self) -> int:
        return get(self.server, "/v1/status", self.folder).status_code

    def metric(self, name: str) -> float:
        return metrics(self.server, self.folder)[name]


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
    assert fleet.status() == 200
    until(lambda: sum(map(is_open, idle)) <= MOST)
    assert not any(map(is_open, idle[:MOST])), "the oldest go first"
    assert fleet.metric("fleet_api_connections") <= MOST
    assert fleet.metric("fleet_api_connections_limit") == MOST
    assert fleet.metric("fleet_api_connections_refused_total crowd") >= 3 * MOST


def test_who_is_being_answered_is_not_pushed_out_and_where_all_are_a_new_one_is_closed(
    start: Callable[..., Started],
) -> None:
    fleet = start(most=4, head_secs=60.0)
    fleet.gate.clear()
    asking = [fleet.ask("Connection: close") for _ in range(4)]
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
    assert fleet.metric("fleet_api_connections_refused_total time") >= 1


def test_a_kept_connection_must_ask_again_in_time(start: Callable[..., Started]) -> None:
    fleet = start(head_secs=2.0)
    kept = fleet.connect()
    for path in ("/v1/status", "/v1/devices"):
        kept.sendall(request_head(fleet.folder, path))
        found = http.client.HTTPResponse(kept)
        found.begin()
        assert (found.status, bool(found.read())) == (200, True)
    kept.sendall(b"GET /v1/dev")
    assert answer(kept) == b""
    assert fleet.metric("fleet_api_connections_refused_total time") == 1


def test_an_answer_that_takes_too_long_ends(start: Callable[..., Started]) -> None:
    fleet = start(head_secs=60.0, request_secs=0.2)
    fleet.gate.clear()
    assert answer(fleet.ask()) == b""


@pytest.mark.parametrize(
    "body", ["Content-Length: 1000000000", "Transfer-Encoding: chunked", "Content-Length: 1"]
)
def test_a_body_is_refused_before_it_comes(start: Callable[..., Started], body: str) -> None:
    fleet = start(head_secs=60.0)
    assert answer(fleet.ask(body)).startswith(b"HTTP/1.1 413")
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
    assert fleet.status() == 200
