"""Who may ask the API: programs by the token, a browser by a cookie that it gets for a login code.

`fleet.api.connections.Gate` asks `Keyring` about each request before anything of its body is read.

A browser must not keep the token, so it trades a code or the token for a signed cookie. The cookie is valid
for `SESSION_SECS`, is out of reach for scripts (`HttpOnly`), and comes from pages of this host only
(`SameSite=Strict`). Its signature is made with the token: a new token ends all sessions. A host's cookies go
to all of its ports. So the browser's headers about the origin of a request (`Sec-Fetch-Site`, `Origin`) must
name this server too.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request, Response

#: How long a login code can be redeemed, and a cookie is valid.
LOGIN_SECS, SESSION_SECS = 900.0, 7 * 86_400.0
#: Login codes that wait at a time; an older one is dropped for a new one.
MOST_CODES = 64
SESSION_PATH, CODE_PATH = "/v1/session", "/v1/session/code"
_READS = frozenset({"GET", "HEAD"})

Headers = Mapping[bytes, bytes]


class Keyring:
    """Knows the token, the login codes and the cookies of one server. Threads may share it.

    Args:
        token: The API's token.
        wall: Gives Unix seconds.
    """

    def __init__(self, token: str, wall: Callable[[], float] = time.time) -> None:
        self._token, self._wall = token.encode(), wall
        #: When each code ends, by the code's hash; the oldest first.
        self._codes: dict[str, float] = {}
        self._lock = threading.Lock()

    def new_code(self) -> str:
        """A code that opens one session within `LOGIN_SECS`."""
        code, now = secrets.token_urlsafe(32), self._wall()
        with self._lock:
            self._codes = {one: end for one, end in self._codes.items() if end > now}
            while len(self._codes) >= MOST_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_digest(code)] = now + LOGIN_SECS
        return code

    def cookie(self, port: int) -> str:
        """The `Set-Cookie` header of a new session."""
        # Two fleets of one host differ in their ports only, and share their cookies.
        end = f"{self._wall() + SESSION_SECS:.0f}.{secrets.token_urlsafe(12)}"
        value = f"{end}.{self._signature(end)}"
        return _set_cookie(port, value, int(SESSION_SECS))

    def is_trusted(self, scope: Mapping[str, object], headers: Headers) -> bool:
        """Whether a request has the token, the cookie of a session, or a login code for the path of sessions.

        A login code is redeemed by this.
        """
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip()
        match scheme.lower():
            case b"bearer":
                return secrets.compare_digest(given, self._token)
            case b"login":
                is_session = scope["path"] == SESSION_PATH and scope["method"] == "POST"
                return is_session and self._redeem(given.decode("latin-1"))
            case b"":
                return self._has_session(scope, headers)
        return False

    def _redeem(self, code: str) -> bool:
        with self._lock:
            end = self._codes.pop(_digest(code), 0.0)
        return end > self._wall()

    def _has_session(self, scope: Mapping[str, object], headers: Headers) -> bool:
        if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
            return False
        if scope["method"] not in _READS:
            _, _, origin = headers.get(b"origin", b"").partition(b"://")
            if not origin or origin != headers.get(b"host"):
                return False
        value = _cookie_value(headers, _port_of(scope))
        end, _, signature = value.rpartition(".")
        if not hmac.compare_digest(signature.encode("latin-1", "replace"), self._signature(end).encode()):
            return False
        return float(end.partition(".")[0]) > self._wall()

    def _signature(self, text: str) -> str:
        return hmac.new(self._token, f"session {text}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def add_sessions(app: FastAPI, keyring: Keyring) -> None:
    """Add the paths that open and end a session; who gets there is trusted already."""

    @app.post(SESSION_PATH)
    def open_session(request: Request) -> Response:
        """Open a session of a browser: for the token, or `Authorization: Login CODE`."""
        return Response(status_code=204, headers={"Set-Cookie": keyring.cookie(_port_of(request.scope))})

    @app.delete(SESSION_PATH)
    def end_session(request: Request) -> Response:
        """End the session of this browser."""
        return Response(status_code=204, headers={"Set-Cookie": _set_cookie(_port_of(request.scope), "", 0)})

    @app.post(CODE_PATH)
    def make_code() -> dict[str, object]:
        """A code that opens one session; for who has the token and wants to use a browser."""
        return {"code": keyring.new_code(), "valid_secs": LOGIN_SECS}


def _set_cookie(port: int, value: str, secs: int) -> str:
    return f"{_cookie_name(port)}={value}; Path=/; Max-Age={secs}; HttpOnly; SameSite=Strict"


def _cookie_name(port: int) -> str:
    return f"fleet_session_{port}"


def _cookie_value(headers: Headers, port: int) -> str:
    # Not by `http.cookies`: it gives up at the first cookie that it cannot read, and those of all other
    # servers of this host come along.
    for cookie in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = cookie.strip().partition("=")
        if name == _cookie_name(port):
            return value
    return ""


def _port_of(scope: Mapping[str, object]) -> int:
    server = scope.get("server")
    return int(server[1] or 0) if isinstance(server, tuple | list) else 0


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()
