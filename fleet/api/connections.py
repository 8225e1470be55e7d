"""Who may hold a connection of the API and for how long: strangers must not use up what the fleet needs.

`fleet.api.server` gives this to uvicorn, whose own limits are for requests: a connection that sends none, or
a byte now and then, it would keep for ever. What a connection is allowed depends on the token, which `Gate`
looks at before anything else of a request.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from fleet.api.access import Access, needed
from fleet.api.sessions import Keyring
from fleet.json_types import JsonDict

#: As ASGI calls them.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: Connections that there may be, and at least: a request with the token must be read before so many newer
#: ones have come, or a flood of them would push it out.
_MOST, _LEAST = 128, 32
_REFUSED = (
    "this API needs the token of the daemon's folder (api.token), "
    "sent as `Authorization: Bearer TOKEN`; a browser logs in with `fleet dashboard`"
)
_READER_ONLY = (
    "this path needs the owner's token (api.token); the token that was sent is the read-only "
    "one (api.read-token)"
)
#: What an answer says before which the body was not read to its end.
CLOSE = {"Connection": "close"}
_AUTHENTICATE = {**CLOSE, "WWW-Authenticate": "Bearer"}
_NO_BODY = "this path takes requests without a body only"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What connections may take."""

    #: Connections at a time.
    most: int = _MOST
    #: From its beginning, or its last answer, to the end of a request's head with the token in it.
    head_secs: float = 10.0
    #: From there to the end of the answer: a model may go over a slow line.
    request_secs: float = 600.0


def fitting_limits() -> ConnectionLimits:
    """Limits that leave seven eighths of this process's file descriptors to the rest of it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = _MOST if soft == resource.RLIM_INFINITY else soft // 8
    return ConnectionLimits(most=max(_LEAST, min(_MOST, share)))


class Connections:
    """The open connections of a server. Only the thread of its event loop changes it.

    Where there are as many as may be, a new one takes the place of the oldest that waits for a request with
    the token; where all have such a request, the new one is closed.

    Args:
        limits: What they may take.

    Attributes:
        refused: Connections that were closed: `crowd` because there were too many, `time` because a request
            or its answer took too long.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.refused: Counter[str] = Counter(crowd=0, time=0)
        #: By the client's address and port; the oldest first.
        self._open: dict[tuple[str, int] | None, GuardedConnection] = {}

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    def add(self, connection: GuardedConnection) -> bool:
        """Take a connection in; false if it must be closed at once."""
        if connection.client in self._open:
            return False
        if len(self._open) >= self.limits.most:
            self.refused["crowd"] += 1
            oldest = next((other for other in self._open.values() if not other.is_trusted), None)
            if oldest is None:
                return False
            self.discard(oldest)
            oldest.transport.abort()
        self._open[connection.client] = connection
        return True

    def discard(self, connection: GuardedConnection) -> None:
        """Forget a connection; twice does no harm."""
        if self._open.get(connection.client) is connection:
            del self._open[connection.client]

    def trust(self, client: tuple[str, int] | None, is_trusted: bool) -> None:
        """Note that the connection of a client begins a request with the token, or has its answer."""
        connection = self._open.get(client)
        if connection is not None:
            connection.is_trusted = is_trusted
            connection.limit(self.limits.request_secs if is_trusted else self.limits.head_secs)


class GuardedConnection(H11Protocol):
    """A connection as uvicorn serves it, counted and ended when its time is over.

    Args:
        guard: Where it is counted.
        options: As of uvicorn's protocol.

    Attributes:
        is_trusted: Whether a request with the token is being answered.
    """

    def __init__(self, guard: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._guard = guard
        self._timer: asyncio.TimerHandle | None = None
        self.is_trusted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        self.transport, self.client = transport, get_remote_addr(transport)
        if not self._guard.add(self):
            transport.abort()
            return
        super().connection_made(transport)
        self.limit(self._guard.limits.head_secs)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._guard.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def limit(self, secs: float) -> None:
        """End it after so many seconds, whatever comes in or goes out until then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(secs, self._expire)

    def _expire(self) -> None:
        self._guard.refused["time"] += 1
        self.transport.abort()


class Gate:
    """Lets requests through to an application that may use their path, before anything of a body is read.

    Without a token there is one answer a connection, and no more time for it. Nobody may send a body but
    with a token, to a path that takes one; what does not say its length is counted by who reads it.

    Args:
        app: The application; its routes declare what they need (`fleet.api.access`).
        keyring: Knows who sends a token, a session's cookie or a login code.
        connections: Told whom to trust.
        bodies: Paths that take a body with POST, and how many bytes of it.
    """

    def __init__(
        self, app: FastAPI, keyring: Keyring, connections: Connections, bodies: Mapping[str, int]
    ) -> None:
        self._app, self._keyring, self._connections = app, keyring, connections
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        headers = dict(scope["headers"])
        access, least = self._keyring.access(scope, headers), needed(self._app.routes, scope)
        is_trusted = access > Access.OPEN
        refusal = None
        if least > access:
            refusal = _refusal(403, _READER_ONLY) if is_trusted else _refusal(401, _REFUSED, _AUTHENTICATE)
        elif why := self._body_refusal(scope, headers, is_trusted):
            refusal = _refusal(413, why)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif not is_trusted:
            await self._app(scope, receive, _closing(send))
        else:
            self._connections.trust(scope["client"], True)
            try:
                await self._app(scope, receive, send)
            finally:
                self._connections.trust(scope["client"], False)

    def _body_refusal(self, scope: Scope, headers: Mapping[bytes, bytes], is_trusted: bool) -> str:
        """Why a body may not come; empty where it may, or where there is none."""
        length = headers.get(b"content-length", b"0")
        if length == b"0" and b"transfer-encoding" not in headers:
            return ""
        most = self._bodies.get(scope["path"]) if is_trusted and scope["method"] == "POST" else None
        if most is None:
            return _NO_BODY
        # The parser of requests lets digits through only.
        if int(length) > most:
            return too_large(most, int(length))
        return ""


def _refusal(status: int, why: str, headers: Mapping[str, str] = CLOSE) -> JSONResponse:
    return JSONResponse({"detail": why}, status, headers=headers)


def _closing(send: Send) -> Send:
    """The same, but the connection ends with the answer."""

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return send_last


def too_large(most: int, got: int) -> str:
    """What whoever sends too long a body is told."""
    return f"the body is too large: got {got} bytes at least, at most {most}; send less at a time"


def body_of(schema: JsonDict) -> JsonDict:
    """What `/openapi.json` says of a path whose body is read as bytes, for it is parsed elsewhere."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_body(request: Request, most: int, secs: float) -> bytes:
    """The body of a request.

    Raises:
        HTTPException: It is longer than `most` bytes, or not there after so many seconds.
        ClientDisconnect: Whoever sends it is gone.
    """
    parts, size = [], 0
    try:
        async with asyncio.timeout(secs):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise HTTPException(413, too_large(most, size), headers=CLOSE)
                parts.append(part)
    except TimeoutError:
        detail = f"the body was not there after {secs:.0f} s: got {size} bytes; send it at once"
        raise HTTPException(408, detail, headers=CLOSE) from None
    return b"".join(parts)
