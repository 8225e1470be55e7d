"""Traces that are lists in JSON: parsed with bounds, for logs are data from strangers."""

from __future__ import annotations

import json
from typing import Any

from transfer.errors import TraceError

#: Longest text that is read; the longest trace of the logs at hand takes 10 KB.
MAX_TEXT = 1 << 20


def parse_list(text: str, *, what: str, items: str, most: int) -> list[Any]:
    """Parse a list.

    Args:
        text: JSON.
        what: What it is, and ...
        items: ... what it lists, for the message.
        most: Items at most.

    Raises:
        TraceError: It is not a JSON list of at most `most` items.
    """
    if len(text) > MAX_TEXT:
        raise TraceError(f"{what} has {len(text)} characters, at most {MAX_TEXT} are read")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{what} is not JSON ({error}); it begins {text[:60]!r}") from error
    if not isinstance(value, list):
        raise TraceError(f"{what} must be a list of {items}, begins {text[:60]!r}")
    if len(value) > most:
        raise TraceError(f"{what} has {len(value)} {items}, at most {most} are read")
    return value
