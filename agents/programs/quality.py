"""How far a number can be trusted: enough repeats, too noisy, surely slower, device drifting. Pure.

`timing.py` asks about the repeats of one program in a worker process, `worker.py` about the device between
batches. Nothing here knows a clock, a disk or TVM: numbers come in, a verdict goes out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agents.errors import AgentError
from agents.programs.gate import Disturbance, Repeats
from agents.records import Protocol

#: Share of the repeats, the fastest ones, that the interval is made of. Of 5 repeats the 2 slowest may then
#: be any outliers. All 5 would give an interval 28 % narrower that one outlier blows up; the 2 fastest alone
#: one twice as wide.
_KEPT_SHARE = 0.6
#: Clean repeats after which the latency of a program is known; fewer if the protocol asks for fewer repeats.
CLEAN_REPEATS = 3
#: Probability p that the latency is not below the interval.
_CONFIDENCE = 0.9

#: A call from Python lasts longer than the program. Above the evaluator's number lay, for 144 programs on one
#: x86 core, a warm call by 1-7 us and the very first call by 60-180 us; both with room for slower hosts.
_CALL_SECS = 2e-5
_FIRST_CALL_SECS = 1e-3
#: How much slower than its repeats a program may run alone because of caches, page faults and neighbours:
#: in the same trial 1.4 times at most when warm or 10 ms long, once the call is taken off.
_ALONE_RATIO = 1.25
_FIRST_RATIO = 2.0

# The drift rules, in spreads of the canary. A lasting shift d is met by the CUSUM after about
# limit / (d - slack) observations; its mean time to a false alarm on Gaussian noise is about
# (exp(2 slack b) - 2 slack b - 1) / (2 slack^2) on each side with b = limit + 1.166 (Siegmund 1985). With
# slack 1.5 and limit 10, a slow-down of 3 % at 1 % noise (d = 3) is met after some 7 observations (40 s of
# canaries every 6 s), and a false alarm would come once in 1e14. Both are meant to be this far from what is
# asked (50 observations; two sides of 3 canaries in a week of 100,000, so 6e5): the spread is learnt from few
# readings. A quarter too small (slack and limit then count as 1.1 and 7.5), one side still alarms once in
# 1e8; half too large, the shift is still met after 20.
_SLACK = 1.5
_LIMIT = 10.0
#: The sum stops just above its limit, so that one good reading ends the suspicion.
_MOST_SUM = _LIMIT + _SLACK / 2
#: A single reading this far off is suspect by itself (Shewhart's rule beside a CUSUM: Lucas 1982). It adds at
#: most `_MOST_STEP` to the sum, so that a spike does not outlast itself.
_SPIKE = 6.0
_MOST_STEP = 4.0
#: Scatter of log seconds that a canary has at least (clock steps, timer), and at most to tell anything.
_LEAST_SPREAD = 0.005
_MOST_SPREAD = 0.05
#: Readings before anything is judged, and readings that the baseline is refined up to. The median deviation
#: of 64 readings is off by 15 %, of 128 by 10 %: simulated, that parts one false alarm in some days from none
#: in weeks.
_LEARN = 8
_REFINE = 128
#: Median absolute deviation to standard deviation, for Gaussian noise.
_MAD_TO_SIGMA = 1.4826
#: While learning, a reading this many times the median is suspect all the same.
_ABSURD_RATIO = 1.5
#: Observations that must lie at one new level, but for a few, before it is the baseline: many, because what
#: is measured at it in the meantime is marked, and what is measured afterwards is not.
_LEVEL = 30
#: Bounds of what a saved monitor may hold; the logs stand for 1e-21 to 1e21 seconds.
_MOST_CANARIES = 16
_MOST_NAME = 64
_MOST_LOG = 50.0

_LogSecs = Annotated[float, Meta(ge=-_MOST_LOG, le=_MOST_LOG)]
_Sum = Annotated[float, Meta(ge=0, le=_MOST_SUM)]
_Name = Annotated[str, Meta(min_length=1, max_length=_MOST_NAME)]


def relative_interval(run_secs: Sequence[float]) -> float:
    """Width of the one-sided interval of the latency below the fastest repeat, over the fastest repeat.

    What disturbs a program only ever slows it, so repeats are its latency plus exponential noise. With the r
    smallest of n repeats (the others only known to be slower: type-II censoring), the noise is
    sigma = (sum of (x_i - x_1) over i <= r, plus (n - r) (x_r - x_1)) / (r - 1). Then
    n (x_1 - latency) / sigma follows F(2, 2r - 2), with p-quantile (r - 1) ((1 - p)^(-1 / (r - 1)) - 1).
    Epstein & Sobel 1954, "Some theorems relevant to life testing from an exponential distribution";
    Lawless, "Statistical Models and Methods for Lifetime Data", two-parameter exponential.

    A real host disturbs for seconds on end, so a few repeats in a row see less than all of it: the interval
    is the scatter inside one measurement, and holds the latency less often than its confidence says
    (`docs/results/measuring.md` has what was found).

    Args:
        run_secs: Seconds of one run, one value a repeat, in any order.

    Returns:
        0 or more, without a unit; infinite where nothing can be said: fewer than two repeats, or one of them
        no positive finite number.
    """
    count = len(run_secs)
    if count < 2 or not all(math.isfinite(secs) and secs > 0 for secs in run_secs):
        return math.inf
    ordered = sorted(run_secs)
    fastest_count = max(2, math.ceil(_KEPT_SHARE * count))
    excess = [secs / ordered[0] - 1 for secs in ordered[:fastest_count]]
    freedom = fastest_count - 1
    sigma = (math.fsum(excess) + (count - fastest_count) * excess[-1]) / freedom
    return sigma * freedom * math.expm1(-math.log1p(-_CONFIDENCE) / freedom) / count


def interval_quality(run_secs: Sequence[float]) -> dict[str, float]:
    """What the quality of a record says of its interval; empty where nothing can be said."""
    interval = relative_interval(run_secs)
    return {"interval": round(interval, 6)} if math.isfinite(interval) else {}


def wants_repeats(run_secs: Sequence[float], protocol: Protocol) -> bool:
    """Whether a program needs one more repeat.

    A rule that stops when the interval looks narrow picks lucky moments: the interval of what it kept holds
    the latency less often still (simulated under the model, default protocol: 85 to 90 % instead of 90).
    """
    repeats = len(run_secs)
    if repeats < protocol.repeat:
        return True
    if protocol.target_interval == 0 or repeats >= protocol.repeat + protocol.extra_repeats:
        return False
    return relative_interval(run_secs) > protocol.target_interval


def clean_needed(protocol: Protocol) -> int:
    """Clean repeats after which the latency of a program is known."""
    return min(CLEAN_REPEATS, protocol.repeat)


def gate_quality(repeats: Repeats, protocol: Protocol) -> dict[str, Any]:
    """What the quality of a record says of its repeats: how many were clean, and what disturbed others.

    A record without enough clean ones is suspect by itself. Empty if no gate was around them.
    """
    if not repeats.disturbances:
        return {}
    disturbed = Counter(map(str, repeats.disturbances))
    clean = disturbed.pop(Disturbance.NONE, 0)
    quality: dict[str, Any] = {"clean": clean}
    if disturbed:
        quality["disturbed"] = dict(sorted(disturbed.items()))
    if clean < clean_needed(protocol):
        quality["suspect"] = True
    return quality


def judged_secs(repeats: Repeats) -> tuple[float, ...]:
    """The repeats that say how far the latency is known: the clean ones, if there are several."""
    if repeats.clean < 2:
        return repeats.run_secs
    pairs = zip(repeats.run_secs, repeats.disturbances, strict=True)
    return tuple(secs for secs, disturbance in pairs if disturbance is Disturbance.NONE)


def is_rejected(run_secs: Sequence[float], protocol: Protocol) -> bool:
    """Whether the repeats of a program, all of them made, are too noisy to give it a latency."""
    if protocol.reject_interval == 0 or len(run_secs) < 2:
        return False
    return relative_interval(run_secs) > protocol.reject_interval


def surely_slower(warmup_secs: Sequence[float], best_secs: float, protocol: Protocol) -> bool:
    """Whether a program is surely more than `early_stop_ratio` times slower than the best of its workload.

    Noise only slows, so the fastest of the runs counts, less what a call costs; a first run alone is given
    more for cold caches and page faults. A device that loads code at the first call (CUDA) may exceed any
    such allowance: there, ask again with the first repeat among the runs before believing it.

    Args:
        warmup_secs: Seconds of the single runs so far, the very first one first.
        best_secs: Best latency known for the workload on this device; 0 if none is.
        protocol: Holds the ratio; 0 never stops.
    """
    if not warmup_secs or protocol.early_stop_ratio == 0 or best_secs <= 0:
        return False
    if len(warmup_secs) == 1:
        at_least = (warmup_secs[0] - _FIRST_CALL_SECS) / _FIRST_RATIO
    else:
        at_least = (min(warmup_secs) - _CALL_SECS) / _ALONE_RATIO
    return at_least > protocol.early_stop_ratio * best_secs


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What one observation of the canaries says of the device."""

    #: Whether what was measured since the observation before should be doubted.
    suspect: bool
    #: Seconds of each canary over its baseline.
    ratios: dict[str, float]
    #: Canaries that are off, sorted.
    which: tuple[str, ...]
    #: Canaries whose new level is their baseline from now on, sorted; worth a line in the log.
    adopted: tuple[str, ...] = ()


class _Canary(msgspec.Struct):
    """Baseline and sums of one canary; all values are logs of seconds, all sums in spreads."""

    learnt: Annotated[list[_LogSecs], Meta(max_length=_REFINE)] = msgspec.field(default_factory=list)
    high: _Sum = 0.0
    low: _Sum = 0.0
    #: The latest readings and whether each was suspect, since the baseline was learnt.
    recent: Annotated[list[tuple[_LogSecs, bool]], Meta(max_length=_LEVEL)] = msgspec.field(
        default_factory=list
    )

    def observe(self, value: float) -> tuple[bool, float, bool]:
        """Take one reading; returns whether it is suspect, its ratio, and whether its level was adopted."""
        if len(self.learnt) < _LEARN:
            self.learnt.append(value)
            off = value - median(self.learnt)
            return off > math.log(_ABSURD_RATIO), off, False
        centre = median(self.learnt)
        off = (value - centre) / _spread(self.learnt)
        step = max(-_MOST_STEP, min(off, _MOST_STEP))
        self.high = min(max(0.0, self.high + step - _SLACK), _MOST_SUM)
        self.low = min(max(0.0, self.low - step - _SLACK), _MOST_SUM)
        is_off = abs(off) > _SPIKE or max(self.high, self.low) > _LIMIT
        self.recent = [*self.recent[1 - _LEVEL :], (value, is_off)]
        if is_off and self._is_new_level():
            self.learnt = [value for value, _ in self.recent]
            self.recent, self.high, self.low = [], 0.0, 0.0
            return False, value - median(self.learnt), True
        # Readings that are off teach as well: on a shared host they are part of how the device always is, and
        # median and spread stand up to less than half of them being anything else.
        if len(self.learnt) < _REFINE:
            self.learnt.append(value)
        return is_off, value - centre, False

    def _is_new_level(self) -> bool:
        """Whether the canary was mostly off of late, yet the older and the newer half of the time agree."""
        if len(self.recent) < _LEVEL or 2 * sum(is_off for _, is_off in self.recent) < _LEVEL:
            return False
        halves = [
            [value for value, _ in part] for part in (self.recent[: _LEVEL // 2], self.recent[_LEVEL // 2 :])
        ]
        older, newer = (median(half) for half in halves)
        inside = [abs(value - older) for value in halves[0]] + [abs(value - newer) for value in halves[1]]
        noise = max(_LEAST_SPREAD, _MAD_TO_SIGMA * median(inside))
        # Medians of two halves of one level differ by 0.46 of its spread (1.25 sqrt(2 / 15)); thrice that.
        return noise <= _MOST_SPREAD and abs(older - newer) <= 1.4 * noise


class _SavedMonitor(msgspec.Struct):
    """The state of a drift monitor, as a file has it."""

    canaries: Annotated[dict[_Name, _Canary], Meta(max_length=_MOST_CANARIES)]
    version: Literal[1]


class DriftMonitor:
    """Tells from canaries, fixed programs run again and again, when a device is not what it was.

    A two-sided CUSUM (Page 1954, "Continuous inspection schemes") on each canary's log seconds over its
    baseline, and a limit for single readings. The first observations teach the baseline (median) and its
    spread (median absolute deviation), and those of the first while refine both, good or not: on a shared
    host a device is never still, and that is no drift. A canary that is off stays so until its readings are
    back, or until its new level has lasted and becomes the baseline (a driver or clock changed for good).

    One thread at a time may use it. A saved monitor fits only the environment that it was learnt in.
    """

    def __init__(self) -> None:
        self._canaries: dict[str, _Canary] = {}

    def observe(self, readings: Mapping[str, float]) -> Drift:
        """Take one observation of the canaries and judge the time since the one before.

        Args:
            readings: Seconds of each canary by name. One that is missing or no positive finite number could
                not be timed: it is left out, and says nothing.
        """
        off: list[str] = []
        adopted: list[str] = []
        ratios: dict[str, float] = {}
        for name, secs in sorted(readings.items()):
            if not (math.isfinite(secs) and secs > 0) or abs(math.log(secs)) > _MOST_LOG:
                continue
            canary = self._canaries.setdefault(name, _Canary())
            is_off, log_ratio, is_adopted = canary.observe(math.log(secs))
            ratios[name] = round(math.exp(log_ratio), 4)
            if is_off:
                off.append(name)
            if is_adopted:
                adopted.append(name)
        return Drift(suspect=bool(off), ratios=ratios, which=tuple(off), adopted=tuple(adopted))

    def usual_secs(self) -> dict[str, float]:
        """Usual seconds of each canary by name: the median of the readings that taught its baseline."""
        return {
            name: math.exp(median(canary.learnt)) for name, canary in self._canaries.items() if canary.learnt
        }

    def to_json(self) -> dict[str, Any]:
        """Everything that it has learnt, JSON-ready; some kilobytes."""
        state: dict[str, Any] = msgspec.to_builtins(_SavedMonitor(self._canaries, 1))
        return state

    @classmethod
    def from_json(cls, value: object) -> DriftMonitor:
        """Rebuild a monitor from what `to_json` gave, after JSON.

        Raises:
            AgentError: The value is damaged or of another version.
        """
        monitor = cls()
        try:
            monitor._canaries = msgspec.convert(value, _SavedMonitor).canaries
        except msgspec.ValidationError as error:
            raise AgentError(
                f"the saved state of the drift monitor is damaged: {error}; delete it, and the baseline is "
                f"learnt again from the next {_LEARN} observations"
            ) from None
        return monitor


def _spread(values: Sequence[float]) -> float:
    """Robust standard deviation, larger while few values back it, inside its bounds."""
    centre = median(values)
    deviation = median([abs(value - centre) for value in values])
    caution = 1 + 4 / len(values)
    return max(_LEAST_SPREAD, min(_MAD_TO_SIGMA * deviation * caution, _MOST_SPREAD))
