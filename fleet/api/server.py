"""Serve the API in a thread of the daemon, and say where: a token and an address in the daemon's folder.

Called by `fleet up`. The token is made once and stays, so that clients and Prometheus keep it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from agents.host.process_control import ProcessName
from fleet.api.app import SCORE_PATH, View, make_app
from fleet.api.client import ADDRESS, TOKEN
from fleet.api.connections import (
    ConnectionLimits,
    Connections,
    Gate,
    GuardedConnection,
    fitting_limits,
)
from fleet.api.requests import ANSWER_SECS, Followers, add_requests
from fleet.api.requests import PATH as REQUESTS_PATH
from fleet.api.score_service import ScoreService, ScoreSettings
from fleet.durable import disk_errors
from fleet.errors import FleetError
from fleet.models.registry_reader import RegistryReader
from fleet.private_files import read_private, write_private
from fleet.requests.checks import MOST_BYTES
from fleet.requests.desk import RequestDesk

_START_SECS, _STOP_SECS = 10.0, 5.0
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
        view: The coordinator's view.
        registry: Where the models are.
        root: The daemon's folder, which gets `api.token` and `api.json`.
        host: Address to listen on; a loopback one unless the user chose another.
        port: Port; 0 takes a free one.
        desk: Where requests go; without one there are no paths for them.
        answer_secs: How long the coordinator may take to answer one.
        limits: What connections may take; fitted to this process where None.
        scoring: What scores come from; nobody is given any where None.

    Raises:
        FleetError: Nobody can listen there, or the folder cannot be written.
    """

    def __init__(
        self,
        view: View,
        registry: RegistryReader,
        root: Path,
        host: str,
        port: int,
        limits: ConnectionLimits | None = None,
        *,
        scoring: ScoreSettings | None = None,
        desk: RequestDesk | None = None,
        answer_secs: float = ANSWER_SECS,
    ) -> None:
        self._root = root
        self._scores = None if scoring is None else ScoreService(scoring, root)
        bodies = {} if scoring is None else {SCORE_PATH: scoring.body_bytes}
        with disk_errors("writing the API's token", root):
            token = read_or_make_token(root / TOKEN)
        connections = Connections(limits or fitting_limits())
        app = make_app(view, registry, connections, self._scores)
        if desk is not None:
            bodies[REQUESTS_PATH] = MOST_BYTES
            followers = Followers(_FOLLOWED_SHARE * connections.limits.request_secs, answer_secs)
            add_requests(app, desk, followers, lambda: self._server.should_exit)
        listening = _listen(host, port)
        shown, bound = listening.getsockname()[:2]
        self.url = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound}"
        #: Whether only this host can reach it.
        self.is_loopback = ipaddress.ip_address(shown).is_loopback
        self._server = uvicorn.Server(
            uvicorn.Config(
                Gate(app, token, connections, bodies),
                # Names of modules that may be installed or not decide nothing here.
                http=_guarded(connections),
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
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="api", daemon=True
        )
        self._thread.start()
        ends_at = time.monotonic() + _START_SECS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > ends_at:
                raise FleetError(f"the API does not start on {self.url}; choose another daemon.api_port")
            time.sleep(0.01)
        # Uvicorn has told the kernel that no more may wait than it accepts at once.
        listening.listen(_WAITING)
        with disk_errors("writing the API's address", root):
            # The start tells clients this process from a later one with its number.
            told = {"url": self.url, **asdict(ProcessName.of(os.getpid()))}
            write_private(root / ADDRESS, json.dumps(told))

    def close(self) -> None:
        """Stop listening; requests that run are answered."""
        (self._root / ADDRESS).unlink(missing_ok=True)
        self._server.should_exit = True
        self._thread.join(_STOP_SECS)
        if self._scores is not None:
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


def _guarded(connections: Connections) -> type[asyncio.Protocol]:
    """What uvicorn makes for each connection."""

    class Guarded(GuardedConnection):
        def __init__(self, **options: Any) -> None:
            super().__init__(H11Protocol(**options), connections)

    return Guarded
