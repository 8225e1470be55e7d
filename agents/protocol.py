"""How candidates are timed: every field of the protocol once, with its default and its bounds.

`agents.records` offers it; `agents.codec` reads and writes it, and `fleet.config.sections` makes its
settings of it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, NamedTuple, get_type_hints

from msgspec import field

from agents.values import Value


class Bounds(NamedTuple):
    """Bounds of a number."""

    #: In records and settings.
    least: float
    #: In settings only: records of other origins may exceed it.
    most: float
    #: Whether it must be above `least`.
    is_open: bool = False


_TimeLimit = Annotated[float, Bounds(0, 3600, is_open=True)]


class Protocol(Value, frozen=True, kw_only=True):
    """How candidates are timed, and when one is given up. Zero switches an optional rule off."""

    #: Timed repeats that every program gets; each gives one number of seconds.
    repeat: Annotated[int, Bounds(1, 1000)] = 5
    #: Repeats added at most, while the interval of the latency is wider than `target_interval`.
    extra_repeats: Annotated[int, Bounds(0, 1000)] = 5
    #: Width of the latency's 90 % interval, over the latency, at which repeats end.
    target_interval: Annotated[float, Bounds(0, 10)] = 0.02
    #: A latency with a wider interval than this after all repeats is `rejected`.
    reject_interval: Annotated[float, Bounds(0, 10)] = 0.5
    #: A repeat runs the program often enough to last at least this long.
    min_repeat_ms: Annotated[float, Bounds(0, 60_000)] = 10.0
    #: Most runs in one repeat (bounds the time of a very short program).
    max_number: Annotated[int, Bounds(1, 10_000_000)] = 20_000
    #: The program runs at least this long before its repeats (GPUs raise their clock only under load).
    warmup_ms: Annotated[float, Bounds(0, 600_000)] = 0.0
    #: Pause before the repeats, for devices that heat up.
    cooldown_ms: Annotated[float, Bounds(0, 600_000)] = 0.0
    #: Moments at which a program on a CPU of this host is timed at most, seconds apart
    #: (`agents.sandbox.retimed_programs`); three times as many where it is among the fastest of its workload.
    visits: Annotated[int, Bounds(1, 1000)] = 8
    #: Empty the CPU's caches of the arguments, or a GPU's, before every run; a repeat is then one run.
    cache_flush: bool = False
    #: A program this many times slower than the best of its workload gets one short repeat only.
    early_stop_ratio: Annotated[float, Bounds(0, 1e6)] = 2.5
    #: Share of the candidates whose output is compared with that of the unscheduled program.
    check_share: Annotated[float, Bounds(0, 1)] = 0.1
    #: Time-outs; published datasets hold these keys, and their digests are cited.
    build_timeout_secs: _TimeLimit = field(name="build_timeout_sec", default=15.0)
    run_timeout_secs: _TimeLimit = field(name="run_timeout_sec", default=5.0)
    #: Memory of a worker process above which its candidate is ended. A process that has only imported TVM
    #: already holds some 0.4 GiB.
    memory_limit_gib: Annotated[float, Bounds(0, 65_536, is_open=True)] = 4.0

    def __post_init__(self) -> None:
        for name, (least, _, is_open) in protocol_bounds().items():
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
def protocol_bounds() -> dict[str, Bounds]:
    """The bounds of each number of a protocol, by its name."""
    hints = get_type_hints(Protocol, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
