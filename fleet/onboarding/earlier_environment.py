"""What a device measured before its environment changed: a source device of its own for the next head.

A changed driver, compiler or board makes another environment, whose records are not compared with those of
the one before. They still say more of the device than any other device does. Called by `fleet.onboarding`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow.compute as pc

from agents.records import DeviceId, Outcome
from fleet.store.reader import StoreReader

#: Ok records of an environment that make it a source.
_LEAST_RECORDS = 16
_MARK = "@before"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The last environment of a device before the present one."""

    environment_id: str
    #: The device as it was then, in datasets and models; never in the store.
    device_id: DeviceId


def earlier_environment(store: StoreReader, device_id: DeviceId, present: str) -> Earlier | None:
    """Find the environment in which a device measured before its present one.

    Returns:
        The one of the newest record among those with enough ok records; None where there is none.
    """
    count: dict[str, int] = {}
    last_at: dict[str, float] = {}
    for _, batch in store.columns(("environment_id", "outcome", "measured_at"), device_ids=[device_id]):
        ok = batch.filter(pc.equal(batch.column("outcome"), Outcome.OK.value))
        of = zip(ok.column("environment_id").to_pylist(), ok.column("measured_at").to_pylist(), strict=True)
        for environment_id, at_secs in of:
            count[environment_id] = count.get(environment_id, 0) + 1
            last_at[environment_id] = max(last_at.get(environment_id, 0.0), at_secs)
    found = [one for one in count if one != present and count[one] >= _LEAST_RECORDS]
    if not found:
        return None
    newest = max(found, key=last_at.__getitem__)
    name = DeviceId(f"{device_id}{_MARK}")
    return Earlier(environment_id=newest, device_id=name)


def environment_since(store: StoreReader, device_id: DeviceId, environment_id: str) -> float:
    """Unix seconds of the first record of a device in an environment; the present where there is none."""
    records = store.records(device_id=device_id)
    moments = (one.measured_at for one in records if one.environment_id == environment_id)
    return min(moments, default=time.time())
