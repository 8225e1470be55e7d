"""What a log says of one measurement: seconds or an error number become seconds or a typed outcome.

Called by the readers of the dialects. Ansor and AutoTVM number their errors alike; a MetaSchedule database
keeps only the mark of a failure. Marks (1e9, 1e10, 0.0) never become latencies.
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any, NamedTuple

from agents.records import Outcome
from fleet.interchange.logs.json_values import Rejected, excerpt

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


class LoggedResult(NamedTuple):
    """One measurement, checked."""

    outcome: Outcome
    #: One value for each repeat; empty unless `ok`.
    run_secs: tuple[float, ...]
    error: str
    #: Wall seconds of building and running together; 0 where the dialect does not say.
    all_secs: float
    #: Unix seconds; 0 where the dialect does not say.
    measured_at: float


def attempt_of(result: LoggedResult) -> int:
    """A number that two lines share only if they tell of the same measurement; it grows with time.

    Seconds since 1970, then 20 bits of a checksum of outcome, seconds and time. So it does not depend on the
    order of import, and a line that stands in several snapshots of a log is one record.
    """
    outcome, run_secs, _, _, measured_at = result
    content = struct.pack(f"<d{len(run_secs)}d", measured_at, *run_secs)
    checksum = zlib.crc32(outcome.encode(), zlib.crc32(content))
    return int(measured_at) << ATTEMPT_HASH_BITS | checksum >> (32 - ATTEMPT_HASH_BITS)


def tuner_result(value: Any) -> LoggedResult:
    """Read `[costs, error_no, all_cost, timestamp]` of Ansor and AutoTVM.

    Raises:
        Rejected: A wrong type, a number that cannot be, or a line that was never measured.
    """
    if type(value) is not list or len(value) != 4:
        raise Rejected("result is not [costs, error_no, all_cost, timestamp]", excerpt(value))
    costs, error_no, all_secs, at = value
    if type(error_no) is not int:
        raise Rejected("error_no is not a whole number", excerpt(error_no))
    all_secs = _seconds(all_secs, "all_cost")
    if all_secs >= MAX_ALL_SECS:
        raise Rejected("all_cost is out of range", excerpt(all_secs))
    at = _seconds(at, "timestamp")
    if at >= MAX_TIMESTAMP:
        raise Rejected("timestamp is out of range", excerpt(at))
    if error_no:
        if error_no not in _ERRORS:
            raise Rejected("error_no is not known", excerpt(error_no))
        if type(costs) is not list:
            raise Rejected("costs are not a list", excerpt(costs))
        return LoggedResult(_ERRORS[error_no][0], (), ERROR_TEXTS[error_no], all_secs, at)
    run_secs = _costs(costs)
    if max(run_secs) >= FAILURE_MARK_SECS:
        raise Rejected("the mark of a failure, but no error_no", excerpt(max(run_secs)))
    return LoggedResult(Outcome.OK, run_secs, "", all_secs, at)


def database_result(run_secs: Any) -> LoggedResult:
    """Read the seconds of a MetaSchedule record: a list, null where it was not measured.

    Raises:
        Rejected: As in `tuner_result`.
    """
    if run_secs is None:
        raise Rejected("not measured", "no run_secs")
    costs = _costs(run_secs)
    if max(costs) >= FAILURE_MARK_SECS:
        return LoggedResult(Outcome.RUN_FAILED, (), MARK_TEXT, 0.0, 0.0)
    return LoggedResult(Outcome.OK, costs, "", 0.0, 0.0)


def check_secs(value: list[float]) -> tuple[float, ...]:
    """Read seconds of the repeats of one measurement.

    Raises:
        Rejected: A number that cannot be, or the mark of a failure.
    """
    # The usual case at once: a sum is finite only where all its numbers are.
    usual = 0 < len(value) <= MAX_REPEATS and math.isfinite(sum(value))
    if usual and min(value) >= LEAST_SECS and max(value) < FAILURE_MARK_SECS:
        return tuple(value)
    costs = _costs(value)
    if max(costs) >= FAILURE_MARK_SECS:
        raise Rejected("the mark of a failure, but no error", excerpt(max(costs)))
    return costs


def _costs(value: Any) -> tuple[float, ...]:
    if type(value) is not list:
        raise Rejected("costs are not a list", excerpt(value))
    if not value:
        raise Rejected("not measured", "no costs")
    if len(value) > MAX_REPEATS:
        raise Rejected("too many costs", str(len(value)))
    costs = []
    for cost in value:
        if type(cost) is not float:
            if type(cost) is not int:
                raise Rejected("a cost is not a number", excerpt(cost))
            cost = float(cost)
        if not math.isfinite(cost):
            raise Rejected("a number is not finite", excerpt(cost))
        if cost == 0.0:
            raise Rejected("not measured", "a cost of 0")
        if cost < 0.0:
            raise Rejected("a cost is negative", excerpt(cost))
        if cost < LEAST_SECS:
            raise Rejected("a cost is below a nanosecond", excerpt(cost))
        costs.append(cost)
    return tuple(costs)


def _seconds(value: Any, name: str) -> float:
    if type(value) is not float and type(value) is not int:
        raise Rejected(f"{name} is not a number", excerpt(value))
    if not 0.0 <= value < math.inf:
        raise Rejected(f"{name} is out of range", excerpt(value))
    return float(value)
