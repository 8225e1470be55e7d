"""Says when something has changed, as server-sent events: a page then asks for what it shows.

An event holds no data of the fleet, so that every page, large or small, costs the same to keep up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

from fleet.api.requests import MOST_FOLLOWERS, Followers
from fleet.dashboard.dashboard import Dashboard

LIVE_PATH = "/v1/dashboard/live"
#: How often changes are looked for, and the longest silence towards a page.
_LOOK_SECS, _SILENCE_SECS = 0.1, 10.0


def add_live(
    app: FastAPI, dashboard: Dashboard, followers: Followers, is_closing: Callable[[], bool]
) -> None:
    """Add the path of this module to an application.

    Args:
        app: The application.
        dashboard: What changes.
        followers: The pages that follow it.
        is_closing: Whether the server ends.
    """

    @app.get(LIVE_PATH)
    async def live() -> StreamingResponse:
        """Server-sent events `change`, whenever a view of the dashboard may have changed."""
        if followers.count >= MOST_FOLLOWERS:
            raise HTTPException(503, f"{MOST_FOLLOWERS} pages are followed already; ask now and then instead")
        return StreamingResponse(
            _stream(dashboard, followers, is_closing),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )


async def _stream(
    dashboard: Dashboard, followers: Followers, is_closing: Callable[[], bool]
) -> AsyncIterator[str]:
    followers.count += 1
    try:
        ends_at = time.monotonic() + followers.most_secs
        seen: tuple[object, ...] = ()
        said_at = 0.0
        yield "retry: 2000\n\n"
        while time.monotonic() < ends_at and not is_closing():
            marks = dashboard.marks()
            if marks != seen:
                seen, said_at = marks, time.monotonic()
                yield f"event: change\ndata: {said_at:.3f}\n\n"
            elif time.monotonic() - said_at > _SILENCE_SECS:
                said_at = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(_LOOK_SECS)
    finally:
        followers.count -= 1
