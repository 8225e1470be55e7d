"""Ask a running daemon of this host: what it shows, and what it should do. Imports no server.

Verbs call it before they do anything by themselves: `fleet status` before it reads the store, `fleet train`
before it trains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from agents.host.process_control import ProcessName, is_alive
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.private_files import read_private

if TYPE_CHECKING:
    import httpx

#: Files of the daemon's folder: where the API listens, its owner's token, and the one that only reads.
ADDRESS, TOKEN, READ_TOKEN = "api.json", "api.token", "api.read-token"
#: An order is answered once it is durable: the daemon itself says when that takes too long.
_TIMEOUT_SECS, _ORDER_SECS = 5.0, 30.0
#: Under a flood of connections the daemon closes the oldest that have not asked yet, which may be ours.
_TRIES = 5
#: Pause before a follower connects again.
_AGAIN_SECS = 0.2
_REQUESTS = "/v1/requests"


class DaemonRefused(FleetError):  # noqa: N818 - what came of an order, named so
    """The daemon will not do what it was asked; the message is its own."""


@dataclass(frozen=True, slots=True)
class DaemonClient:
    """A daemon that runs on this host.

    Methods raise `DaemonRefused` where it will not do what it was asked, or has no such request, and
    `FleetError` where it does not answer.
    """

    url: str
    token: str
    pid: int

    def get(self, path: str) -> Any:
        """Get the JSON of a path of the API, such as `/v1/status`; None where the daemon ends just now."""
        return self._exchange("GET", path, _TIMEOUT_SECS)

    def submit(self, request: JsonDict) -> JsonDict:
        """Submit a request; it is durable when this returns. Sent again with the same id, it exists once."""
        return self._ordered("POST", _REQUESTS, request)

    def login_url(self) -> str:
        """A link to the dashboard that logs a browser in, once."""
        code = self._ordered("POST", "/v1/session/code")["code"]
        return f"{self.url}/#login={code}"

    def cancel(self, request_id: str) -> JsonDict:
        """Cancel a request; the answer says what it is then."""
        return self._ordered("DELETE", request_path(request_id))

    def follow(self, request_id: str) -> Iterator[JsonDict]:
        """Yield a request each time that it has changed, until it has ended.

        A daemon that is gone goes on with it when it is started again.
        """
        import httpx

        last_change, is_over, gone = 0, False, f"the daemon at {self.url} is gone"
        while not is_over:
            try:
                for request in self._events(request_id):
                    # The first event of a new connection may be an old one.
                    if request["changes"] != last_change:
                        last_change, is_over = request["changes"], request["ended_at"] is not None
                        yield request
            except httpx.ConnectError as error:
                raise FleetError(
                    f"{gone}; it continues with request {request_id} when it is started again"
                ) from error
            except httpx.TransportError:
                pass  # the connection had to give way to others; another one may have more luck
            if not is_over:
                time.sleep(_AGAIN_SECS)

    def post(self, path: str, value: Any, timeout_secs: float) -> Any:
        """Send JSON to a path that may be asked twice, and get JSON; None where the daemon ends just now."""
        return self._exchange("POST", path, timeout_secs, value)

    def _events(self, request_id: str) -> Iterator[JsonDict]:
        with (
            self._client(_ORDER_SECS) as client,
            client.stream("GET", self.url + f"{request_path(request_id)}/events") as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                raise DaemonRefused(_detail(answer))
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def _ordered(self, method: str, path: str, value: Any = None) -> JsonDict:
        answer = self._exchange(method, path, _ORDER_SECS, value)
        if answer is None:
            raise FleetError(f"the daemon at {self.url} ends just now; start it again, then ask again")
        return dict(answer)

    def _exchange(self, method: str, path: str, timeout_secs: float, value: Any = None) -> Any:
        import httpx

        try:
            with self._client(timeout_secs) as client:
                for tries_after in reversed(range(_TRIES)):
                    try:
                        answer = client.request(method, self.url + path, json=value)
                        break
                    except (httpx.RemoteProtocolError, httpx.ReadError):
                        if not tries_after:
                            raise
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                raise DaemonRefused(
                    f"the daemon at {self.url} refuses the token of this command; it has that of the file "
                    f"{TOKEN} beside its {ADDRESS}: mend that file, or start the daemon again"
                )
            if answer.is_error and method == "GET":
                why = f"{answer.status_code} {answer.reason_phrase}"
                raise FleetError(f"the daemon at {self.url} gives no answer to {path}: {why}")
            if answer.is_error:
                raise DaemonRefused(_detail(answer))
            return answer.json()
        except httpx.ConnectError:
            # The daemon is ending.
            return None
        except (httpx.HTTPError, ValueError) as error:
            raise FleetError(f"the daemon at {self.url} gives no answer to {path}: {error}") from error

    def _client(self, timeout_secs: float) -> httpx.Client:
        import httpx

        # No proxy of the environment: it would see the token.
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(timeout=timeout_secs, trust_env=False, headers=headers)


class _Address(Struct):
    """What a daemon writes about itself."""

    url: str
    pid: int
    started: int


def find_daemon(root: Path) -> DaemonClient | None:
    """The daemon that runs on a folder, if one of this host does.

    Raises:
        FleetError: It cannot be told, or its token cannot be read.
    """
    try:
        address = msgspec.json.decode((root / ADDRESS).read_bytes(), type=_Address)
        token = read_private(root / TOKEN).strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise FleetError(f"{root / ADDRESS}: cannot be read ({error}); start `fleet up` again") from error
    # A killed daemon leaves its address behind. Whoever listens there now must not get the token.
    daemon = ProcessName(pid=address.pid, started=address.started)
    return DaemonClient(address.url, token, daemon.pid) if _is_here(daemon, root) else None


def ask(root: Path, path: str) -> Any:
    """Get the JSON of a path of the API, or None where no daemon of this host runs on this folder.

    Raises:
        FleetError: A daemon is there but does not answer, or refuses.
    """
    daemon = find_daemon(root)
    return daemon.get(path) if daemon is not None else None


def request_path(request_id: str) -> str:
    """The path of one request."""
    from urllib.parse import quote

    return f"{_REQUESTS}/{quote(request_id, safe='')}"


def _detail(answer: httpx.Response) -> str:
    """What the daemon says of a refusal."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return (
            f"the daemon answers {answer.status_code} to {answer.request.url.path}; is it of another version?"
        )


def _is_here(daemon: ProcessName, root: Path) -> bool:
    """Whether a daemon runs on this host."""
    try:
        return ProcessName.of(daemon.pid) == daemon and is_alive(daemon)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError as error:
        raise FleetError(
            f"{root / ADDRESS}: process {daemon.pid} cannot be looked at ({error.strerror}), so it does not "
            "get the token; run this as the user of the daemon"
        ) from error
