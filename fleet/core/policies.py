"""Whether a device may be used just now: its budget of device-seconds, its time windows, idle hosts. Pure.

Asked by `state.py` before every grant. Time comes in as Unix seconds of the wall clock with the offset of the
host's local time; nothing here looks at a clock or at a host.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct

from fleet.core.events import DevicePolicy, TimeWindow

HOUR_SECS = 3600
DAY_SECS = 86400
#: A lease may take this many times as long as was expected before the one that waits behind it could
#: overspend a budget too.
_RESERVE = 2.0


class Budget(Struct, forbid_unknown_fields=True):
    """Device-seconds of one device in the hour and the day (host's local time) that it is in."""

    hour: int = 0
    hour_secs: float = 0.0
    day: int = 0
    day_secs: float = 0.0

    def spent_of_hour(self, local_secs: float) -> float:
        """Device-seconds charged to the hour of `local_secs`; hours never go back, as they do in autumn."""
        return self.hour_secs if int(local_secs // HOUR_SECS) <= self.hour else 0.0

    def spent_of_day(self, local_secs: float) -> float:
        """Device-seconds charged to the day of `local_secs`."""
        return self.day_secs if int(local_secs // DAY_SECS) <= self.day else 0.0

    def set_back(self, local_secs: float) -> None:
        """The clock was ahead: what lies after the hour and day of `local_secs` was spent in them."""
        self.hour = min(self.hour, int(local_secs // HOUR_SECS))
        self.day = min(self.day, int(local_secs // DAY_SECS))

    def charge(self, local_secs: float, secs: float) -> None:
        """Add what a lease took; it is charged to the hour and day in which the lease ended."""
        self.hour_secs = self.spent_of_hour(local_secs) + secs
        self.day_secs = self.spent_of_day(local_secs) + secs
        self.hour = max(self.hour, int(local_secs // HOUR_SECS))
        self.day = max(self.day, int(local_secs // DAY_SECS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Why a device may not be used now."""

    reason: str
    #: Unix seconds at which to look again; infinite where only a heartbeat of the host can change it.
    until_secs: float


def closed_because(
    policy: DevicePolicy,
    budget: Budget,
    *,
    at_secs: float,
    utc_offset_secs: float,
    is_host_idle: bool | None,
    outstanding_secs: float | None,
) -> Closed | None:
    """Say why no lease may be granted now.

    A budget is overspent by one lease at most: the first lease is granted while anything is left. One that
    waits behind it is granted only if its forerunner surely leaves something, that is, if it has an
    estimate and twice as much would still fit.

    Args:
        policy: What the device's owner allows.
        budget: What was spent.
        at_secs: Now.
        utc_offset_secs: Local time of the host less UTC.
        is_host_idle: What the last heartbeat said; None (it said nothing) is taken as in use.
        outstanding_secs: What the running leases are expected to take; 0 for leases without an estimate,
            None where there is no lease.

    Returns:
        None where a lease may be granted.
    """
    local_secs = at_secs + utc_offset_secs
    shut: list[Closed] = []
    for name, length, limit, spent in (
        ("hour", HOUR_SECS, policy.secs_per_hour, budget.spent_of_hour(local_secs)),
        ("day", DAY_SECS, policy.secs_per_day, budget.spent_of_day(local_secs)),
    ):
        reason = _spent_because(name, limit, spent, outstanding_secs)
        if reason:
            until = (local_secs // length + 1) * length - utc_offset_secs
            shut.append(Closed(reason=reason, until_secs=until))
    of_day = local_secs % DAY_SECS
    if policy.windows and not any(contains(window, of_day) for window in policy.windows):
        midnight = local_secs - of_day - utc_offset_secs
        begins = [w.begin_secs + DAY_SECS * (w.begin_secs <= of_day) for w in policy.windows]
        shut.append(Closed(reason="outside of its time windows", until_secs=midnight + min(begins)))
    if policy.idle_only and not is_host_idle:
        shut.append(Closed(reason="its host is in use", until_secs=math.inf))
    # With several reasons the last to go decides when it is worth to look again.
    return max(shut, key=lambda closed: closed.until_secs, default=None)


def contains(window: TimeWindow, of_day_secs: float) -> bool:
    """Whether a time of day lies in a window; one that ends where it begins is the whole day."""
    begin, end = window.begin_secs, window.end_secs
    if begin < end:
        return begin <= of_day_secs < end
    return of_day_secs >= begin or of_day_secs < end


def _spent_because(name: str, limit: float | None, spent: float, outstanding_secs: float | None) -> str:
    if limit is None:
        return ""
    if spent >= limit:
        return f"spent {spent:.0f} of {limit:.0f} device-seconds of this {name}"
    if outstanding_secs is not None and (
        outstanding_secs <= 0 or spent + _RESERVE * outstanding_secs >= limit
    ):
        return f"the running lease may use up the {limit:.0f} device-seconds of this {name}"
    return ""
