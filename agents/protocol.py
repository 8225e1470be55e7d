"""How candidates are timed: every field of the protocol once, with its default and its bounds.

Standard library only. `agents.records` offers it; `agents.codec` reads and writes it by these fields, and
`fleet.config.sections` makes its settings of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any


def _bounded(default: float, least: float, most: float, *, is_open: bool = False, key: str = "") -> Any:
    """A number.

    Args:
        default: Its default.
        least: Its lower bound, in records and settings.
        most: Its upper bound, in settings only: records of other origins may exceed it.
        is_open: Whether it must be above its lower bound.
        key: Its key in JSON, where that is not its name: published datasets hold it.
    """
    names = {"key": key} if key else {}
    return field(default=default, metadata={"gt" if is_open else "ge": least, "le": most, **names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How candidates are timed, and when one is given up. Zero switches an optional rule off."""

    #: Timed repeats that every program gets; each gives one number of seconds.
    repeat: int = _bounded(5, 1, 1000)
    #: Repeats added at most, while the interval of the latency is wider than `target_interval`.
    extra_repeats: int = _bounded(5, 0, 1000)
    #: Width of the latency's 90 % interval, over the latency, at which repeats end.
    target_interval: float = _bounded(0.02, 0, 10)
    #: A latency with a wider interval than this after all repeats is `rejected`.
    reject_interval: float = _bounded(0.5, 0, 10)
    #: A repeat runs the program often enough to last at least this long.
    min_repeat_ms: float = _bounded(10.0, 0, 60_000)
    #: Most runs in one repeat (bounds the time of a very short program).
    max_number: int = _bounded(20_000, 1, 10_000_000)
    #: The program runs at least this long before its repeats (GPUs raise their clock only under load).
    warmup_ms: float = _bounded(0.0, 0, 600_000)
    #: Pause before the repeats, for devices that heat up.
    cooldown_ms: float = _bounded(0.0, 0, 600_000)
    #: Moments at which a program on a CPU of this host is timed at most, seconds apart
    #: (`agents.sandbox.retimed_programs`); three times as many where it is among the fastest of its workload.
    visits: int = _bounded(8, 1, 1000)
    #: Empty the CPU's caches of the arguments, or a GPU's, before every run; a repeat is then one run.
    cache_flush: bool = False
    #: A program this many times slower than the best of its workload gets one short repeat only.
    early_stop_ratio: float = _bounded(2.5, 0, 1e6)
    #: Share of the candidates whose output is compared with that of the unscheduled program.
    check_share: float = _bounded(0.1, 0, 1)
    build_timeout_secs: float = _bounded(15.0, 0, 3600, is_open=True, key="build_timeout_sec")
    run_timeout_secs: float = _bounded(5.0, 0, 3600, is_open=True, key="run_timeout_sec")
    #: Memory of a worker process above which its candidate is ended. A process that has only imported TVM
    #: already holds some 0.4 GiB.
    memory_limit_gib: float = _bounded(4.0, 0, 65_536, is_open=True)

    def __post_init__(self) -> None:
        for name, least, is_open in _lower_bounds():
            value = getattr(self, name)
            if not (value > least if is_open else value >= least):
                words = "above" if is_open else "at least"
                raise ValueError(f"protocol: {name} must be {words} {least}, got {value}")
        if 0 < self.early_stop_ratio <= 1:
            raise ValueError(
                f"protocol: early_stop_ratio must be 0 (never) or above 1, got {self.early_stop_ratio}"
            )
        if self.check_share > 1:
            raise ValueError(f"protocol: check_share must be between 0 and 1, got {self.check_share}")


@cache
def _lower_bounds() -> tuple[tuple[str, float, bool], ...]:
    bounds = [(one.name, one.metadata) for one in fields(Protocol) if one.metadata]
    return tuple((name, known.get("ge", known.get("gt")), "gt" in known) for name, known in bounds)
