"""JSON from people nobody knows, and why a line was rejected.

Called by the readers of the dialects. orjson parses in bounded depth (1,024) and writes in bounded depth
(254), so no nesting reaches Python's stack or C's. A value takes up to a hundred times the bytes of its text,
so the number of values is bounded, too.
"""

from __future__ import annotations

import hashlib
import math
import re
import reprlib
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import orjson

from agents.codec import bounded_json
from agents.records import Outcome, canonical_json
from agents.values import Value
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
#: Bytes at the beginning of a faulty line that are looked at to say what is wrong with it.
_LOOK_BYTES = 1 << 16
#: Values in one text at most: TVM's largest modules have some 20,000.
MAX_VALUES = 1_000_000
#: Longest key that is held as it is.
_SHORT_KEY = 64
#: Texts below this cannot have so many.
_SHORT_BYTES = MAX_VALUES

#: Stands for no value in a message, where None is one.
_NOTHING = object()


class Rejected(Exception):  # noqa: N818 - no failure of the program: the line is counted and left
    """A line is no measurement that can be kept.

    Args:
        reason: One of few texts; lines are counted by it.
        detail: What the example that is shown says beside it.
        got: The value that was refused. It is written only if it is shown, once a reason: that takes longer
            than to reject a line.
    """

    def __init__(self, reason: str, detail: str = "", *, got: object = _NOTHING) -> None:
        super().__init__(reason)
        self.reason = reason
        self._detail, self._got = detail, got

    @property
    def detail(self) -> str:
        """What the first example of the reason says."""
        return self._detail if self._got is _NOTHING else self._detail + _shortened(self._got)


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
        raise Rejected(f"{READER_FAULT}: {type(error).__name__}", got=str(error)) from error


def text_of(line: object) -> str:
    """The text of a line that is no JSON.

    Raises:
        Rejected: It is a comment, blank, not UTF-8, or could not be read whole (`Unreadable`).
    """
    if type(line) is not bytes:
        raise Rejected(str(line))
    if line[:1] == b"#":
        raise Rejected(COMMENT)
    if not line.strip():
        raise Rejected(BLANK)
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise Rejected("not UTF-8", f"byte {error.start}") from None


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
    text_of(line)
    text = line[:_LOOK_BYTES] + line[max(_LOOK_BYTES, len(line) - _LOOK_BYTES) :]
    text = text.strip()
    if text.startswith((b"[", b"{")):
        if (depth := _depth(text)) > _DEEP:
            raise Rejected("nested too deeply", f"{depth} levels")
        if match := _NO_NUMBER.search(text):
            raise Rejected("a number is not finite", match[0].decode())
        if not text.endswith((b"]", b"}")):
            raise Rejected("truncated", "ends in ", got=text[-20:])
    raise Rejected(NOT_JSON, "begins with ", got=text[:20])


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

    A digest where they are many, for keys are held as long as the import runs.

    Raises:
        Rejected: The value is nested too deeply.
    """
    try:
        raw = orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise Rejected("nested too deeply") from None
    # No JSON begins as a digest does.
    return raw if len(raw) <= _SHORT_KEY else b"#" + hashlib.sha256(raw).digest()


def _shortened(value: object) -> str:
    """A value for a message, cut short; a million items or a thousand levels cost nothing."""
    text = reprlib.repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# What a log says of one measurement: seconds or an error number become seconds or a typed outcome.
#
# Called by the readers of the dialects. Ansor and AutoTVM number their errors alike; a MetaSchedule
# database keeps only the mark of a failure. Marks (1e9, 1e10, 0.0) never become latencies.

#: From here on a cost is the mark of a failure: AutoTVM writes 1e9, Ansor and MetaSchedule 1e10 (seconds).
FAILURE_MARK_SECS = 1e9

#: No program runs for less; ratios of such seconds would leave the range of what is learnt from.
LEAST_SECS = 1e-9
#: Seconds of building and running together from which on they are none.
MAX_ALL_SECS = 1e12

#: Repeats kept at most; TenSet has up to 27.
MAX_REPEATS = 10_000

#: Bits of an attempt that tell measurements of one second apart.
ATTEMPT_HASH_BITS = 20
#: First second that does not fit: attempts stay below 2**53, which every reader of JSON keeps.
MAX_TIMESTAMP = 1 << 33

_ERRORS = {
    1: (Outcome.BUILD_FAILED, "the schedule could not be applied"),
    2: (Outcome.BUILD_FAILED, "compiling for the host failed"),
    3: (Outcome.BUILD_FAILED, "compiling for the device failed"),
    4: (Outcome.RUN_FAILED, "running failed"),
    5: (Outcome.WRONG_OUTPUT, "wrong answer"),
    6: (Outcome.BUILD_TIMEOUT, "building took too long"),
    7: (Outcome.RUN_TIMEOUT, "running took too long"),
    8: (Outcome.RUN_FAILED, "unknown error"),
}
#: Text of `Record.error` by error number: the logs keep no more. An exporter finds the number here again.
ERROR_TEXTS = {number: f"error_no {number}: {text}" for number, (_, text) in _ERRORS.items()}
#: What a MetaSchedule database says of a failure.
MARK_TEXT = "the database marks it as failed and does not say why"


class LoggedResult(Value, frozen=True):
    """One measurement, checked."""

    outcome: Outcome
    #: One value for each repeat; empty unless `ok`.
    run_secs: tuple[float, ...]
    error: str = ""
    #: Wall seconds of building and running together; 0 where the dialect does not say.
    all_secs: float = 0.0
    #: Unix seconds; 0 where the dialect does not say.
    measured_at: float = 0.0


def attempt_of(result: LoggedResult) -> int:
    """A number that two lines share only if they tell of the same measurement; it grows with time.

    Seconds since 1970, then 20 bits of a checksum of outcome, seconds and time. So it does not depend on the
    order of import, and a line that stands in several snapshots of a log is one record.
    """
    content = struct.pack(f"<d{len(result.run_secs)}d", result.measured_at, *result.run_secs)
    checksum = zlib.crc32(result.outcome.encode(), zlib.crc32(content))
    return int(result.measured_at) << ATTEMPT_HASH_BITS | checksum >> (32 - ATTEMPT_HASH_BITS)


def tuner_result(value: Any) -> LoggedResult:
    """Read `[costs, error_no, all_cost, timestamp]` of Ansor and AutoTVM.

    Raises:
        Rejected: A wrong type, a number that cannot be, or a line that was never measured.
    """
    if type(value) is not list or len(value) != 4:
        raise Rejected("result is not [costs, error_no, all_cost, timestamp]", got=value)
    costs, error_no, all_secs, at = value
    if type(error_no) is not int:
        raise Rejected("error_no is not a whole number", got=error_no)
    all_secs, at = seconds_of(all_secs, "all_cost"), seconds_of(at, "timestamp", MAX_TIMESTAMP)
    if error_no:
        if error_no not in _ERRORS:
            raise Rejected("error_no is not known", got=error_no)
        if type(costs) is not list:
            raise Rejected("costs are not a list", got=costs)
        return LoggedResult(_ERRORS[error_no][0], (), ERROR_TEXTS[error_no], all_secs, at)
    return LoggedResult(Outcome.OK, check_secs(costs), "", all_secs, at)


def database_result(run_secs: Any) -> LoggedResult:
    """Read the seconds of a MetaSchedule record: a list, null where it was not measured.

    Raises:
        Rejected: As in `tuner_result`.
    """
    if run_secs is None:
        raise Rejected("not measured", "no run_secs")
    costs = _costs(run_secs)
    if max(costs) >= FAILURE_MARK_SECS:
        return LoggedResult(Outcome.RUN_FAILED, (), MARK_TEXT)
    return LoggedResult(Outcome.OK, costs)


def check_secs(value: Any) -> tuple[float, ...]:
    """Read seconds of the repeats of one measurement.

    Raises:
        Rejected: A number that cannot be, or the mark of a failure.
    """
    costs = _costs(value)
    if max(costs) >= FAILURE_MARK_SECS:
        raise Rejected("the mark of a failure, but no error", got=max(costs))
    return costs


def _costs(value: Any) -> tuple[float, ...]:
    if type(value) is not list:
        raise Rejected("costs are not a list", got=value)
    if not value:
        raise Rejected("not measured", "no costs")
    if len(value) > MAX_REPEATS:
        raise Rejected("too many costs", str(len(value)))
    costs = []
    for cost in value:
        if type(cost) is not float:
            if type(cost) is not int:
                raise Rejected("a cost is not a number", got=cost)
            cost = float(cost)
        if not math.isfinite(cost):
            raise Rejected("a number is not finite", got=cost)
        if cost == 0.0:
            raise Rejected("not measured", "a cost of 0")
        if cost < 0.0:
            raise Rejected("a cost is negative", got=cost)
        if cost < LEAST_SECS:
            raise Rejected("a cost is below a nanosecond", got=cost)
        costs.append(cost)
    return tuple(costs)


def seconds_of(value: Any, name: str, most: float = MAX_ALL_SECS) -> float:
    """A number of seconds, or of another unit of time, below `most`.

    Raises:
        Rejected: It is none; `name` says what it should be.
    """
    if type(value) is not float and type(value) is not int:
        raise Rejected(f"{name} is not a number", got=value)
    if not 0.0 <= value < most:
        raise Rejected(f"{name} is out of range", got=value)
    return float(value)
