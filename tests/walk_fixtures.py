"""Which file of the product calls which: for walks through the code of which the documents tell."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]


@contextmanager
def calls_between_files() -> Iterator[set[tuple[str, str]]]:
    """Pairs of a file and the file that it calls, in all threads."""
    calls: set[tuple[str, str]] = set()

    def follow(frame: FrameType | None, event: str, _: object) -> None:
        if event != "call" or frame is None or not (called := own_file(frame)):
            return
        while (frame := frame.f_back) is not None:
            if (caller := own_file(frame)) not in ("", called):
                calls.add((caller, called))
                return

    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def own_file(frame: FrameType) -> str:
    """The file of the product that a frame is of; empty for others."""
    name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return name if name.startswith(("agents/", "fleet/", "transfer/")) else ""


def strays(walk: list[str], calls: set[tuple[str, str]]) -> list[str]:
    """Files of a walk that none of the earlier ones calls, nor answers in another thread."""
    linked = calls | {(called, caller) for caller, called in calls}
    return [
        place
        for number, place in enumerate(walk[1:], 1)
        if not any((earlier, place) in linked for earlier in walk[:number])
    ]
