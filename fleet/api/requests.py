"""The paths of the API about requests: submit, list, show, cancel, follow.

Called by `fleet.api.server`. It leaves orders at the coordinator's desk and waits for the answer without
holding a thread. Who follows a request reads copies at a pace of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

from fleet.api.access import Access, needs
from fleet.api.connections import body_of, read_body
from fleet.core.words import RequestState
from fleet.requests.kinds import KINDS, MOST_BYTES, DeskFull, RequestBody, RequestDesk, Shown, parse_request
from fleet.requests.request_kind import RequestConflict, RequestRefused, RequestUnknown

PATH = "/v1/requests"
#: How long an answer may take: a turn of the coordinator and its waits for the disk, even a slow one.
ANSWER_SECS = 15.0
#: How long a body may take to come.
_BODY_SECS = 30.0
#: Clients that may follow requests at a time; the others ask now and then.
MOST_FOLLOWERS = 16
#: How often a followed request is looked at, and the longest silence towards any follower.
_LOOK_SECS, _SILENCE_SECS = 0.25, 10.0


def add_requests(
    app: FastAPI, desk: RequestDesk, answer_secs: float, followed_secs: float, is_closing: Callable[[], bool]
) -> None:
    """Add the paths of requests to an application.

    Args:
        app: The application.
        desk: Where orders go.
        answer_secs: How long the coordinator may take for an answer.
        followed_secs: After so long a follower is sent away in order, to ask again: no answer takes longer.
        is_closing: Whether the server ends; then every answer does.
    """

    @app.exception_handler(RequestRefused)
    def refused(_: Request, error: RequestRefused) -> JSONResponse:
        kinds = {RequestConflict: 409, RequestUnknown: 404}
        return JSONResponse({"detail": str(error)}, kinds.get(type(error), 400))

    @app.exception_handler(DeskFull)
    def full(_: Request, error: DeskFull) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)

    @app.post(PATH, openapi_extra=_body_schema())
    @needs(Access.OWNER)
    async def submit(request: Request) -> Shown:
        """Submit a request; the answer comes once it is durable."""
        submitted = parse_request(await read_body(request, MOST_BYTES, _BODY_SECS))
        again = f"send it again with the id {submitted.request_id}: it will exist once"
        return await _answered(desk.submit(submitted), answer_secs, again)

    @app.get(PATH)
    @needs(Access.OWNER)
    async def listed() -> list[Shown]:
        """All requests that are kept, in the order of their coming."""
        return desk.listed()

    @app.get(PATH + "/{request_id}")
    @needs(Access.OWNER)
    async def show(request_id: str) -> Shown:
        """One request."""
        return _request_of(desk, request_id)

    @app.delete(PATH + "/{request_id}")
    @needs(Access.OWNER)
    async def cancel(request_id: str) -> Shown:
        """Cancel a request; the answer comes once that is durable."""
        return await _answered(desk.cancel(request_id), answer_secs, "ask for it again")

    _add_events(app, desk, followed_secs, is_closing)


def _add_events(
    app: FastAPI, desk: RequestDesk, followed_secs: float, is_closing: Callable[[], bool]
) -> None:
    followers = 0

    async def changes(request_id: str) -> AsyncIterator[str]:
        """Each state of a request that the follower has time for, the last one always."""
        nonlocal followers
        followers += 1
        last_change, said_at = 0, time.monotonic()
        ends_at = said_at + followed_secs
        try:
            while time.monotonic() < ends_at and not is_closing():
                request = desk.get(request_id)
                if request is None:
                    return  # it ended long ago
                if request["changes"] != last_change:
                    last_change, said_at = request["changes"], time.monotonic()
                    state, data = request["state"], json.dumps(dict(request))
                    yield f"id: {last_change}\nevent: {state}\ndata: {data}\n\n"
                    if RequestState(state).is_end:
                        return
                elif time.monotonic() - said_at > _SILENCE_SECS:
                    said_at = time.monotonic()
                    yield ": still here\n\n"  # shows whether the other end is
                await asyncio.sleep(_LOOK_SECS)
        finally:
            followers -= 1

    @app.get(PATH + "/{request_id}/events")
    @needs(Access.OWNER)
    async def events(request_id: str) -> StreamingResponse:
        """Follow a request as server-sent events, until it has ended."""
        _request_of(desk, request_id)
        if followers >= MOST_FOLLOWERS:
            raise HTTPException(
                503, f"{MOST_FOLLOWERS} clients follow requests already; ask {PATH}/ID instead"
            )
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(changes(request_id), media_type="text/event-stream", headers=headers)


def _body_schema() -> dict[str, Any]:
    """What `/openapi.json` says of the body of a request: one shape per kind."""
    (whole, *schemas), parts = msgspec.json.schema_components(
        (RequestBody, *KINDS.values()), ref_template="{name}"
    )
    body = parts[whole["$ref"]]
    shapes = [
        {
            **body,
            "title": kind.value,
            "properties": {
                **body["properties"],
                "kind": {"const": kind.value},
                "arguments": parts[schema["$ref"]],
            },
        }
        for kind, schema in zip(KINDS, schemas, strict=True)
    ]
    return body_of({"oneOf": shapes})


def _request_of(desk: RequestDesk, request_id: str) -> Shown:
    request = desk.get(request_id)
    if request is None:
        raise RequestUnknown(f"no request {request_id!r:.80}; `fleet requests list` shows the known ones")
    return request


async def _answered(order: Future[Shown], timeout_secs: float, what_next: str) -> Shown:
    """Wait for the coordinator's answer.

    Raises:
        HTTPException: It did not come in time; whether the order was carried out is not known then.
        RequestRefused: It is a refusal.
    """
    answer = asyncio.wrap_future(order)
    done, _ = await asyncio.wait({answer}, timeout=timeout_secs)
    if not done:
        raise HTTPException(
            503,
            f"the coordinator has not answered within {timeout_secs:g} s (its disk may be full or slow), so "
            f"it is not known whether it will do this; {what_next}",
        )
    return answer.result()
