"""JSON from people nobody knows, and why a line was rejected.

Called by the readers of the dialects. orjson parses in bounded depth (1,024) and writes in bounded depth
(254), so no nesting reaches Python's stack or C's.
"""

from __future__ import annotations

import re
import reprlib
from typing import Any, NoReturn

import orjson

from agents.records import canonical_json

#: An exponent in what orjson wrote; the first pattern is looked for ten times faster and finds too much.
_MAYBE_EXPONENT = re.compile(rb"e-?[0-9]")
_EXPONENT = re.compile(rb"[0-9]e-?[0-9]")
_NO_NUMBER = re.compile(rb"\b(?:NaN|-?Infinity|-?nan|-?inf)\b")
_DEEP = 200


class Rejected(Exception):  # noqa: N818 - no failure of the program: the line is counted and left
    """A line is no measurement that can be kept.

    Attributes:
        reason: One of few texts; lines are counted by it.
        detail: What was found, for the example that is shown.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def parse_line(line: bytes) -> Any:
    """Parse one line.

    Raises:
        Rejected: It is not JSON, nested too deeply, or not UTF-8.
    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        _say_why(line)


def _say_why(line: bytes) -> NoReturn:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise Rejected("not UTF-8", f"byte {error.start}") from None
    if line.count(b"[") + line.count(b"{") > _DEEP and _depth(line) > _DEEP:
        raise Rejected("nested too deeply", f"{_depth(line)} levels")
    if found := _NO_NUMBER.search(line):
        raise Rejected("a number is not finite", found[0].decode())
    text = line.strip()
    if text.startswith((b"[", b"{")) and not text.endswith((b"]", b"}")):
        raise Rejected("truncated", f"ends in {shown(text[-20:].decode(errors='replace'))}")
    raise Rejected("not JSON", f"begins with {shown(text[:20].decode(errors='replace'))}")


def _depth(line: bytes) -> int:
    """Deepest level of brackets, those within texts included: only for telling why."""
    depth = deepest = 0
    for byte in re.findall(rb"[][{}]", line):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def canonical_text(value: Any) -> str:
    """`agents.records.canonical_json` of a value that `parse_line` gave, ten times faster.

    Raises:
        Rejected: The value is nested too deeply.
    """
    try:
        raw = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise Rejected("nested too deeply") from None
    # `json` writes numbers with an exponent, or about to get one, in another way, and escapes more.
    if not raw.isascii() or b"\x7f" in raw or b"0.0000" in raw:
        return canonical_json(value)
    if _MAYBE_EXPONENT.search(raw) and _EXPONENT.search(raw):
        return canonical_json(value)
    return raw.decode()


def cache_key(value: Any) -> bytes:
    """Bytes that differ for values that differ: to look a value up.

    Raises:
        Rejected: The value is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise Rejected("nested too deeply") from None


def shown(value: object) -> str:
    """A found value for a message, cut short; a million items or a thousand levels cost nothing."""
    text = reprlib.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["Rejected", "cache_key", "canonical_text", "parse_line", "shown"]
