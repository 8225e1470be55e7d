"""Measure a device's fingerprint: the reference programs of its family, before anything else.

Called by onboarding, and by whoever wants devices to be comparable. Which programs and what they say:
`transfer.adapt.nearest`. The records are ordinary ones, of origin `fingerprint`; what was measured in the
device's present environment is not measured again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection as Programs
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Outcome, Workload, WorkloadId
from fleet.drivers.session import DeviceUnusableError, EngineSession
from fleet.errors import FleetError
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings, Display
from fleet.store.noise import READING_COLUMNS, noise_floor, readings
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.adapt.nearest import Fingerprint


def measure_fingerprint(engine: EngineSession, collection: Collection, spec: DeviceSpec) -> Fingerprint:
    """Draw the reference programs on the device, and measure those that it has not measured yet.

    Returns:
        What ran; fewer programs than there are, or none, where the device cannot make or build them.
    """
    from transfer.adapt.nearest import ORIGIN, PER_WORKLOAD, SEED, from_records

    pool: dict[WorkloadId, list[Candidate]] = {}
    for workload in _reference_workloads(engine, spec.device_id):
        drawn = engine.propose(spec.device_id, workload, PER_WORKLOAD, SEED, ()).result()
        pool[workload.workload_id] = [replace(candidate, origin=ORIGIN) for candidate in drawn]
    if any(pool.values()):
        collection.measure({spec.family: pool})
    programs = {candidate.candidate_id for several in pool.values() for candidate in several}
    present = engine.environment_id(spec.device_id)
    records = engine.store().records(device_id=spec.device_id)
    mine = (record for record in records if record.environment_id == present)
    return from_records(spec.device_id, mine, programs)


def fingerprint_devices(
    engine: EngineSession, settings: FleetConfig, specs: Mapping[DeviceId, DeviceSpec], display: Display
) -> dict[str, Any]:
    """Measure the fingerprints of some devices, one after the other; the driver of a request.

    Returns:
        `ran`: reference programs that ran, by device; `fallen`: devices that fell out, and why.
    """
    how = CollectSettings(samples=1, seed=settings.training.seed)
    ran: dict[str, int] = {}
    fallen: dict[str, str] = {}
    with display.live():
        for device_id, spec in specs.items():
            try:
                collection = Collection(engine, {device_id: spec}, how, display)
                ran[device_id] = len(measure_fingerprint(engine, collection, spec).latency_secs)
            except DeviceUnusableError as error:
                fallen[device_id] = str(error)
        display.finish()
    return {"ran": ran, "fallen": fallen}


def known_fingerprints(
    store: StoreReader,
    device_ids: list[DeviceId],
    programs: Programs[CandidateId] = (),
    earlier: Earlier | None = None,
    of: str = "",
) -> list[Fingerprint]:
    """Fingerprints of some devices as far as the store has them.

    Records of the reference `programs` count whatever their origin: only the first device met them as new
    candidates. An `earlier` environment of the device `of` is told as a device of its own.
    """
    from transfer.adapt.nearest import from_records

    fingerprints = [
        from_records(device_id, store.records(device_id=device_id), programs) for device_id in device_ids
    ]
    if earlier is not None:
        records = store.records(device_id=of)
        before = (record for record in records if record.environment_id == earlier.environment_id)
        renamed = (replace(record, device_id=earlier.device_id) for record in before)
        fingerprints.append(from_records(earlier.device_id, renamed, programs))
    return [fingerprint for fingerprint in fingerprints if fingerprint.is_usable]


def _reference_workloads(engine: EngineSession, device_id: DeviceId) -> list[Workload]:
    """The reference workloads that the device can make; none where it knows none of their networks."""
    from transfer.adapt.nearest import NETWORKS, choose_workloads

    try:
        workloads = engine.network_workloads(device_id, list(NETWORKS))
    except FleetError:
        # A replay device offers recorded workloads only: other people's logs have none of these.
        return []
    return choose_workloads(workloads)


# A device that changed: what it was, and whether it is another one now.
#
# A changed driver, compiler or board makes another environment, whose records are not compared with those of
# the one before. They still say more of the device than any other device does: they are a source device of
# its own. The canaries that raise the alarm of a drift are three programs; the fingerprint has more, and of
# the kinds that models are about.

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
