"""Bodies of requests: read up to a length and a time. Called by the paths of the API that take one."""

from __future__ import annotations

import asyncio
import json

from fastapi import HTTPException, Request

#: What an answer says before which the body was not read to its end.
CLOSE = {"Connection": "close"}


def too_large(most: int, got: int) -> bytes:
    """What whoever sends too long a body is told."""
    detail = f"the body is too large: got {got} bytes at least, at most {most}; send less at a time"
    return json.dumps({"detail": detail}).encode()


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
                    detail = json.loads(too_large(most, size))["detail"]
                    raise HTTPException(413, detail, headers=CLOSE)
                parts.append(part)
    except TimeoutError:
        detail = f"the body was not there after {secs:.0f} s: got {size} bytes; send it at once"
        raise HTTPException(408, detail, headers=CLOSE) from None
    return b"".join(parts)
