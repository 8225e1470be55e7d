"""Measure a device's fingerprint: the reference programs of its family, before anything else.

Called by onboarding, and by whoever wants devices to be comparable. Which programs and what they say:
`transfer.adapt.nearest`. The records are ordinary ones, of origin `fingerprint`; what was measured in the
device's present environment is not measured again.
"""

from __future__ import annotations

from collections.abc import Collection as Programs
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Workload, WorkloadId
from fleet.drivers.session import DeviceUnusableError, EngineSession
from fleet.errors import FleetError
from fleet.onboarding.drift import Earlier
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings, Display
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
        pool[workload.workload_id] = [
            Candidate(
                workload_id=candidate.workload_id,
                trace=candidate.trace,
                dialect=candidate.dialect,
                origin=ORIGIN,
            )
            for candidate in drawn
        ]
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
