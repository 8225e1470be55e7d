"""Who may ask the API for what: programs by one of two tokens, a browser by a cookie for a login code.

`fleet.api.connections.Gate` asks `Keyring` about each request before anything of its body is read.

A browser must not keep the token, so it trades a code or the owner's token for the cookie of a session. The
cookie is valid for `SESSION_SECS` or until it is logged out, is out of reach for scripts (`HttpOnly`), and
comes from pages of this host only (`SameSite=Strict`). The server keeps a sum of each session's cookie, made
with the owner's token: a new token ends all sessions. A host's cookies go to all of its ports. So the
browser's headers about the origin of a request (`Sec-Fetch-Site`, `Origin`) must name this server too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response

from fleet.api.access import Access, needs
from fleet.private_files import NotPrivateError, read_private, write_private

#: How long a login code can be redeemed, and a cookie is valid.
LOGIN_SECS, SESSION_SECS = 900.0, 7 * 86_400.0
#: Login codes that wait at a time, and sessions; an older one is dropped for a new one.
MOST_CODES, MOST_SESSIONS = 64, 64
SESSION_PATH, CODE_PATH = "/v1/session", "/v1/session/code"
#: File of the daemon's folder with the sums of the cookies that are valid.
SESSIONS: Final = "api.sessions"
_READS = frozenset({"GET", "HEAD"})

Headers = Mapping[bytes, bytes]


class Keyring:
    """Knows the tokens, the login codes and the sessions of one server. Threads may share it.

    Args:
        owner_token: Lets its bearer do everything.
        reader_token: Lets its bearer read what `Access.READER` covers; no such bearer where empty.
        sessions: File that keeps the sessions over a restart; nothing does where None.
        wall: Gives Unix seconds.
    """

    def __init__(
        self,
        owner_token: str,
        reader_token: str = "",
        sessions: Path | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._owner_token, self._reader_token = owner_token.encode(), reader_token.encode()
        self._path, self._wall = sessions, wall
        #: When each code and each session ends, by its sum; the oldest first.
        self._codes: dict[str, float] = {}
        self._sessions = _read_sessions(sessions)
        self._lock = threading.Lock()

    def new_code(self) -> str:
        """A code that opens one session within `LOGIN_SECS`."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._codes = self._added(self._codes, _digest(code), LOGIN_SECS, MOST_CODES)
        return code

    def cookie(self, port: int) -> str:
        """The `Set-Cookie` header of a new session."""
        # Two fleets of one host differ in their ports only, and share their cookies.
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions = self._added(self._sessions, self._sum(value), SESSION_SECS, MOST_SESSIONS)
            # A full disk must not keep its owner from looking; then the session ends with the daemon.
            with suppress(OSError):
                self._write_sessions()
        return _set_cookie(port, value, int(SESSION_SECS))

    def end_session(self, headers: Headers, port: int) -> None:
        """End the session of a cookie, for good: a copy of the cookie opens nothing either.

        Raises:
            OSError: The disk failed; the session would be valid again after a restart.
        """
        with self._lock:
            if self._sessions.pop(self._sum(_cookie_value(headers, port)), None) is None:
                return
            try:
                self._write_sessions()
            except OSError:
                # Without room all sessions end with the daemon, which is better than that this one goes on.
                assert self._path is not None
                self._path.unlink(missing_ok=True)

    def access(self, scope: Mapping[str, object], headers: Headers) -> Access:
        """What a request may ask for: by its token, its session, or a login code for the path of sessions.

        A login code is redeemed by this.
        """
        scheme, _, credential = headers.get(b"authorization", b"").partition(b" ")
        credential = credential.strip()
        is_owner = False
        match scheme.lower():
            case b"bearer":
                if self._reader_token and secrets.compare_digest(credential, self._reader_token):
                    return Access.READER
                is_owner = secrets.compare_digest(credential, self._owner_token)
            case b"login":
                is_session = scope["path"] == SESSION_PATH and scope["method"] == "POST"
                is_owner = is_session and self._redeem(credential.decode("latin-1"))
            case b"":
                is_owner = self._has_session(scope, headers)
        return Access.OWNER if is_owner else Access.OPEN

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
        return self._sessions.get(self._sum(value), 0.0) > self._wall()

    def _added(self, ends: Mapping[str, float], key: str, secs: float, most: int) -> dict[str, float]:
        now = self._wall()
        valid = [(other, end) for other, end in ends.items() if end > now]
        return dict([*valid[-(most - 1) :], (key, now + secs)])

    def _write_sessions(self) -> None:
        if self._path is not None:
            write_private(self._path, json.dumps(self._sessions))

    def _sum(self, cookie: str) -> str:
        text = f"session {cookie}".encode("utf-8", "replace")
        return hmac.new(self._owner_token, text, hashlib.sha256).hexdigest()


def _read_sessions(path: Path | None) -> dict[str, float]:
    """The sessions of a file; none where it is damaged, not there, or not private."""
    if path is None:
        return {}
    try:
        return msgspec.json.decode(read_private(path), type=dict[str, float])
    except (OSError, NotPrivateError, ValueError, RecursionError):
        return {}


def add_sessions(app: FastAPI, keyring: Keyring) -> None:
    """Add the paths that open and end a session."""

    @app.post(SESSION_PATH)
    @needs(Access.OWNER)
    def open_session(request: Request) -> Response:
        """Open a session of a browser: for the owner's token, or `Authorization: Login CODE`."""
        return Response(status_code=204, headers={"Set-Cookie": keyring.cookie(_port_of(request.scope))})

    @app.delete(SESSION_PATH)
    @needs(Access.OWNER)
    def end_session(request: Request) -> Response:
        """End the session of this browser."""
        port = _port_of(request.scope)
        try:
            keyring.end_session(dict(request.scope["headers"]), port)
        except OSError as error:
            why = f"the session has ended, but its end cannot be written ({error.strerror}): mend the disk"
            raise HTTPException(503, why) from None
        return Response(status_code=204, headers={"Set-Cookie": _set_cookie(port, "", 0)})

    @app.post(CODE_PATH)
    @needs(Access.OWNER)
    def make_code() -> dict[str, object]:
        """A code that opens one session; for who has the owner's token and wants to use a browser."""
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
