"""JSON from people nobody knows, and why a line was rejected.

Called by the readers of the dialects. orjson parses in bounded depth (1,024) and writes in bounded depth
(254), so no nesting reaches Python's stack or C's. A value takes up to a hundred times the bytes of its text,
so the number of values is bounded, too.
"""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Callable
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import orjson

from agents.codec import bounded_json
from agents.records import canonical_json
from fleet.errors import FleetError

#: Reason of a line that a reader should have refused itself; the type of the exception follows.
READER_FAULT: Final = "reader fault"
#: Reason of a line that is no JSON.
NOT_JSON: Final = "not JSON"
#: Reasons of lines that are no measurements and are not meant to be.
BLANK, COMMENT, WORKLOAD_LINE = "blank line", "comment line", "workload line"

T = TypeVar("T")
P = ParamSpec("P")

#: An exponent in what orjson wrote; the first pattern is looked for ten times faster and finds too much.
_MAYBE_EXPONENT = re.compile(rb"e-?[0-9]")
_EXPONENT = re.compile(rb"[0-9]e-?[0-9]")
_NO_NUMBER = re.compile(rb"\b(?:NaN|-?Infinity|-?nan|-?inf)\b")
_DEEP = 200
#: No JSON, and no number that is none, begins with these.
_NO_JSON = frozenset(bytes([byte]) for byte in b"abcdeghjklmopqrsuvwxyzABCDEFGHJKLMOPQRSTUVWXYZ#*/<=>@_~")
#: Bytes at the beginning of a faulty line that are looked at to say what is wrong with it.
_LOOK_BYTES = 1 << 16
#: Values in one text at most: TVM's largest modules have some 20,000.
MAX_VALUES = 1_000_000
#: Longest key that is held as it is.
_SHORT_KEY = 64
#: Texts below this cannot have so many.
_SHORT_BYTES = MAX_VALUES


class Rejected(Exception):  # noqa: N818 - no failure of the program: the line is counted and left
    """A line is no measurement that can be kept.

    Attributes:
        reason: One of few texts; lines are counted by it.
    """

    def __init__(self, reason: str, detail: object = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self._detail = detail

    @property
    def detail(self) -> str:
        """What was found, for the example that is shown: written when it is asked for, once a reason."""
        return str(self._detail)


def careful(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a reader. What it did not foresee costs the line, not the import.

    Raises:
        Rejected: By the reader, or for any exception of its own.
        MemoryError, OSError, FleetError: These are no fault of the line.
    """
    try:
        return read(*args, **kwargs)
    except (Rejected, MemoryError, OSError, FleetError):
        raise
    except Exception as error:
        raise Rejected(f"{READER_FAULT}: {type(error).__name__}", excerpt(str(error))) from error


def is_garbage(line: bytes) -> bool:
    """Whether a line is "not JSON" at first sight; where not, `parse_line` tells."""
    return line[:1] in _NO_JSON and line.isascii()


def parse_line(line: bytes) -> Any:
    """Parse one line.

    Raises:
        Rejected: It is not JSON, nested too deeply, not UTF-8, or of too many values.
    """
    if len(line) > _SHORT_BYTES and line.count(b",") + line.count(b"[") + line.count(b"{") > MAX_VALUES:
        raise Rejected("too many values", f"more than {MAX_VALUES:,}")
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        _say_why(line)


def _say_why(line: bytes) -> NoReturn:
    if not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise Rejected("not UTF-8", f"byte {error.start}") from None
    text = line.lstrip()
    if text[:1] in _NO_JSON:
        raise Rejected(NOT_JSON, excerpt(text[:20], "begins with "))
    line = line[:_LOOK_BYTES] + line[max(_LOOK_BYTES, len(line) - _LOOK_BYTES) :]
    if line.count(b"[") + line.count(b"{") > _DEEP and (depth := _depth(line)) > _DEEP:
        raise Rejected("nested too deeply", f"{depth} levels")
    if match := _NO_NUMBER.search(line):
        raise Rejected("a number is not finite", match[0].decode())
    text = line.strip()
    if text.startswith((b"[", b"{")) and not text.endswith((b"]", b"}")):
        raise Rejected("truncated", excerpt(text[-20:], "ends in "))
    raise Rejected(NOT_JSON, excerpt(text[:20], "begins with "))


def _depth(line: bytes) -> int:
    """Deepest level of brackets, those within texts included: only for telling why."""
    depth = deepest = 0
    for byte in re.findall(rb"[][{}]", line):
        depth += 1 if byte in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def object_in(text: str) -> dict[str, Any] | None:
    """The JSON object in a text of a stranger; None where there is none that can be written again.

    Bounded as a line is: in its values, in depth, and in what its numbers and texts may be.
    """
    try:
        value = bounded_json(text)
        canonical_json(value)  # refuses NaN and what is not finite
        canonical_text(value)  # refuses what is nested too deeply, and half characters
    except (ValueError, RecursionError, Rejected):
        return None
    return value if isinstance(value, dict) else None


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


def short_key(text: str | bytes) -> str | bytes:
    """What to look a text up by: a digest where it is long, for keys are held as long as the import runs."""
    if len(text) <= _SHORT_KEY:
        return text
    # No JSON begins like this.
    return b"#" + hashlib.sha256(text.encode() if isinstance(text, str) else text).digest()


class _Excerpt:
    """A found value, which becomes a text once it is shown: that takes longer than to reject a line."""

    __slots__ = ("_before", "_value")

    def __init__(self, value: object, before: str) -> None:
        self._value = value
        self._before = before

    def __str__(self) -> str:
        value = self._value.decode(errors="replace") if isinstance(self._value, bytes) else self._value
        text = reprlib.repr(value)
        return self._before + (text if len(text) <= 60 else f"{text[:57]}...")


def excerpt(value: object, before: str = "") -> object:
    """A found value for a message, cut short; a million items or a thousand levels cost nothing."""
    return _Excerpt(value, before)
