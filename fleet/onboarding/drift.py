"""A device that changed: what it was, and whether it is another one now.

A changed driver, compiler or board makes another environment, whose records are not compared with those of
the one before. They still say more of the device than any other device does: they are a source device of its
own. The canaries that raise the alarm of a drift are three programs; the fingerprint has more, and of the
kinds that models are about.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.records import DeviceId, Outcome
from fleet.store.noise import READING_COLUMNS, noise_floor, readings
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    from transfer.adapt.nearest import Fingerprint

#: A reference program has moved that changed by more than this, and by more than twice what its device's
#: repeats differ by.
_LEAST_CHANGE, _TIMES_NOISE = 0.05, 2.0
#: A device is another one than before where so many of its reference programs have moved: one of twenty does
#: by luck.
_MOVED_SHARE = 0.2
#: Ok records of an environment that make it a source.
_LEAST_RECORDS = 16
_MARK = "@before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The last environment of a device before the present one."""

    environment_id: str
    #: The device as it was then, in datasets and models; never in the store.
    device_id: DeviceId
    #: Unix seconds of the first record in the present one; of now where there is none.
    present_since: float


def earlier_environment(store: StoreReader, device_id: DeviceId, present: str) -> Earlier | None:
    """Find the environment in which a device measured before its present one.

    Returns:
        The one of the newest record among those with enough ok records; None where there is none.
    """
    count: Counter[str] = Counter()
    last_at: dict[str, float] = {}
    since = time.time()
    names = ("environment_id", "outcome", "measured_at")
    for _, batch in store.columns(names, device_ids=[device_id]):
        for environment_id, outcome, at_secs in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            if environment_id == present:
                since = min(since, at_secs)
            elif outcome == Outcome.OK:
                count[environment_id] += 1
                last_at[environment_id] = max(last_at.get(environment_id, 0.0), at_secs)
    earlier = [name for name in count if count[name] >= _LEAST_RECORDS]
    if not earlier:
        return None
    newest = max(earlier, key=last_at.__getitem__)
    name = DeviceId(f"{device_id}{_MARK}")
    return Earlier(environment_id=newest, device_id=name, present_since=since)


def why_as_before(now: Fingerprint, before: Fingerprint | None, store: StoreReader) -> str:
    """Why a device needs no new head after an alarm: its reference programs run as they did.

    One sentence; empty where they changed, or too few of them tell. The store says how far numbers repeat.
    """
    from transfer.adapt.nearest import LEAST_SHARED, drifted

    shared = len(now.latency_secs.keys() & before.latency_secs.keys()) if before is not None else 0
    if before is None or shared < LEAST_SHARED:
        return ""
    device_id = now.device_id
    batches = store.columns(READING_COLUMNS, device_ids=[device_id])
    floor = noise_floor(reading for _, batch in batches for reading in readings(device_id, batch))
    # How far nine of ten repeats of a program differ.
    noise = floor.p90_change if floor is not None else 0.0
    within = max(_LEAST_CHANGE, _TIMES_NOISE * noise)
    moved = drifted(before, now, within)
    if len(moved) > _MOVED_SHARE * shared:
        return ""
    return f"{len(moved)} of {shared} reference programs changed by more than {within:.0%}: its head stays"
