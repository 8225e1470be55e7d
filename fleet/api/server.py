"""Serve the API in a thread of the daemon, and say where: tokens and an address in the daemon's folder.

Called by `fleet up`. The tokens are made once and stay, so that clients and Prometheus keep them.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import uvicorn

from agents.host.process_control import ProcessName
from fleet.api.app import SCORE_PATH, ApiSources, make_app
from fleet.api.client import ADDRESS, READ_TOKEN, TOKEN
from fleet.api.connections import (
    ConnectionLimits,
    Connections,
    Gate,
    GuardedConnection,
    fitting_limits,
)
from fleet.api.dashboard import add_dashboard, add_pages
from fleet.api.requests import ANSWER_SECS, add_requests
from fleet.api.requests import PATH as REQUESTS_PATH
from fleet.api.score_service import ScoreService
from fleet.api.sessions import SESSIONS, Keyring, add_sessions
from fleet.errors import FleetError, disk_errors
from fleet.private_files import read_private, write_private
from fleet.requests.kinds import MOST_BYTES

_START_SECS, _STOP_SECS = 10.0, 5.0
#: How long one thread of the daemon runs before another one that waits gets its turn.
_SWITCH_SECS = 0.0005
#: Part of the time that an answer may take after which whoever follows a request is sent away in order.
_FOLLOWED_SHARE = 0.5
#: Longest head of a request.
_HEAD_BYTES = 16 << 10
#: Connections that are accepted before those that are there are looked at: each takes a file descriptor.
_ACCEPTED_AT_ONCE = 4
#: Connections that the kernel lets wait meanwhile; the next ones are told to try again.
_WAITING = 1024


class ApiServer:
    """The API behind a socket; it listens when this is made.

    Args:
        sources: What it shows.
        root: The daemon's folder, which gets `api.token`, `api.read-token`, `api.sessions` and `api.json`.
        host: Address to listen on; a loopback one unless the user chose another.
        port: Port; 0 takes a free one.
        limits: What connections may take; fitted to this process where None.
        answer_secs: How long the coordinator may take to answer a request.

    Attributes:
        app: The application behind the gate.
        url: Where it listens.

    Raises:
        FleetError: Nobody can listen there, or the folder cannot be written.
    """

    def __init__(
        self,
        sources: ApiSources,
        root: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ConnectionLimits | None = None,
        answer_secs: float = ANSWER_SECS,
    ) -> None:
        self._root, self._dashboard, self._webhook = root, sources.dashboard, sources.webhook
        self._scores = ScoreService(sources.scoring, root)
        with disk_errors("writing the API's tokens", root):
            owner, reader = (read_or_make_token(root / name) for name in (TOKEN, READ_TOKEN))
        self._keyring = Keyring(owner, reader, root / SESSIONS)
        # Threads that answer must not wait 5 ms for the coordinator's each time that they touch Python.
        sys.setswitchinterval(_SWITCH_SECS)
        gate, connections = self._gate(sources, limits or fitting_limits(), answer_secs)
        listening = _listen(host, port)
        bound_host, bound_port = listening.getsockname()[:2]
        self.url = f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
        self._server = uvicorn.Server(_uvicorn_config(gate, connections))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="api", daemon=True
        )
        self._thread.start()
        ends_at = time.monotonic() + _START_SECS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > ends_at:
                raise FleetError(f"the API does not start on {self.url}; choose another daemon.api_port")
            time.sleep(0.01)
        # Uvicorn has set the kernel's limit of waiting connections to the number that it accepts at once.
        listening.listen(_WAITING)
        with disk_errors("writing the API's address", root):
            # The start distinguishes this process from a later one with its number.
            address = {"url": self.url, **asdict(ProcessName.of(os.getpid()))}
            write_private(root / ADDRESS, json.dumps(address))
        if self._webhook is not None:
            self._webhook.start()

    @property
    def login_url(self) -> str:
        """A link to the dashboard that logs a browser in, once."""
        # Behind the number sign: a browser sends that part to nobody.
        return f"{self.url}/#login={self._keyring.new_code()}"

    def _gate(
        self, sources: ApiSources, limits: ConnectionLimits, answer_secs: float
    ) -> tuple[Gate, Connections]:
        """The application behind its gate, and the connections that both know."""
        connections = Connections(limits)
        app = self.app = make_app(sources, connections, self._scores)
        bodies = {SCORE_PATH: sources.scoring.body_bytes, REQUESTS_PATH: MOST_BYTES}
        most_secs = _FOLLOWED_SHARE * limits.request_secs
        add_requests(app, sources.desk, answer_secs, most_secs, lambda: self._server.should_exit)
        add_sessions(app, self._keyring)
        add_pages(app)
        add_dashboard(app, sources.dashboard, self._scores, sources.webhook)
        return Gate(app, self._keyring, connections, bodies), connections

    def close(self) -> None:
        """Stop listening; requests that run are answered."""
        # A disk that fails has a line of its own, which must not get lost. A file that stays is of a process
        # that is gone.
        with suppress(OSError):
            (self._root / ADDRESS).unlink()
        self._server.should_exit = True
        self._thread.join(_STOP_SECS)
        if self._webhook is not None:
            self._webhook.close()
        self._dashboard.close()
        self._scores.close()


def read_or_make_token(path: Path) -> str:
    """The token of a file that only its owner may read; made where there is none.

    Raises:
        FleetError: Others can read or replace the file, or it holds no token.
    """
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32))
    token = read_private(path).strip()
    if len(token) < 16:
        raise FleetError(f"{path}: holds no token of 16 characters at least; delete it, a new one is made")
    return token


def _uvicorn_config(gate: Gate, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        gate,
        # Names of modules that may be installed or not decide nothing here.
        http=partial(GuardedConnection, connections),  # type: ignore[arg-type]
        loop="asyncio",
        ws="none",
        h11_max_incomplete_event_size=_HEAD_BYTES,
        # An address that a client claims must not stand for its own.
        proxy_headers=False,
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=int(_STOP_SECS),
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError as error:
        raise FleetError(
            f"daemon.api_host: expected an IP address such as 127.0.0.1, got {host!r}"
        ) from error
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise FleetError(
            f"the API cannot listen on {host}, port {port}: {error.strerror}; set daemon.api_port to a free "
            "port, or to 0 for any"
        ) from error
