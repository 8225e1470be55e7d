"""The paths of the API about requests: submit, list, show, cancel, follow.

Called by `fleet.api.server`. It leaves orders at the coordinator's desk and waits for the answer without
holding a thread. Who follows a request, or the dashboard, reads copies at a pace of its own.
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

#: Gives the event that tells what is new, empty where nothing is; and whether it is the last one.
Look = Callable[[], tuple[str, bool]]


class Followers:
    """Who follows something by server-sent events. Used by the thread of the event loop only.

    Args:
        most_secs: After so long a follower is sent away in order, to ask again: no answer takes longer.
        is_closing: Whether the server ends; then every answer does.
    """

    def __init__(self, most_secs: float, is_closing: Callable[[], bool]) -> None:
        self._most_secs, self._is_closing = most_secs, is_closing
        self._count = 0

    def answer(self, look: Look, pause_secs: float, refusal: str) -> StreamingResponse:
        """The events that `look` gives, with so many seconds between two looks.

        Raises:
            HTTPException: As many as may be follow already.
        """
        if self._count >= MOST_FOLLOWERS:
            raise HTTPException(503, refusal)
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(
            self._events(look, pause_secs), media_type="text/event-stream", headers=headers
        )

    async def _events(self, look: Look, pause_secs: float) -> AsyncIterator[str]:
        self._count += 1
        try:
            told_at = time.monotonic()
            ends_at = told_at + self._most_secs
            while time.monotonic() < ends_at and not self._is_closing():
                event, is_last = look()
                if event:
                    told_at = time.monotonic()
                    yield event
                elif not is_last and time.monotonic() - told_at > _SILENCE_SECS:
                    told_at = time.monotonic()
                    yield ": still here\n\n"  # shows whether the other end is
                if is_last:
                    return
                await asyncio.sleep(pause_secs)
        finally:
            self._count -= 1


def add_requests(app: FastAPI, desk: RequestDesk, followers: Followers, answer_secs: float) -> None:
    """Add the paths of requests to an application; the coordinator has so many seconds for an answer."""

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

    @app.get(PATH + "/{request_id}/events")
    @needs(Access.OWNER)
    async def events(request_id: str) -> StreamingResponse:
        """Follow a request as server-sent events, until it has ended."""
        _request_of(desk, request_id)
        refusal = f"{MOST_FOLLOWERS} clients follow requests already; ask {PATH}/ID instead"
        return followers.answer(_changes(desk, request_id), _LOOK_SECS, refusal)


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


def _changes(desk: RequestDesk, request_id: str) -> Look:
    """Each state of a request that the follower has time for, the last one always."""
    last_change = 0

    def look() -> tuple[str, bool]:
        nonlocal last_change
        request = desk.get(request_id)
        if request is None:
            return "", True  # it ended long ago
        if request["changes"] == last_change:
            return "", False
        last_change = request["changes"]
        event = f"id: {last_change}\nevent: {request['state']}\ndata: {json.dumps(dict(request))}\n\n"
        return event, RequestState(request["state"]).is_end

    return look
