"""Whom a new device learns from, and which candidates it measures.

Called by `fleet.onboarding.onboarding`; measures nothing. Imports torch when called.
"""

from __future__ import annotations

import math
from collections.abc import Collection as CollectionOf
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Family, WorkloadId
from fleet.errors import FleetError
from fleet.models.holdout import held_out, is_held_out
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot
from fleet.onboarding.adaptation import Onboarding
from fleet.planner.device_history import known_candidates
from fleet.store.reader import StoreReader
from transfer.model.kinds import is_extensible

if TYPE_CHECKING:
    import numpy as np

    from fleet.config.settings import FleetConfig
    from transfer.model.fleet_tlp import FleetTLP

#: Candidates of each workload that are chosen among, at least; traces take some 20 KB each.
_LEAST_POOL = 32
#: Candidates that are chosen among, over those asked for.
_POOL_SHARE = 4
#: Candidates of each workload that are searched, at most.
_WHOLE_POOL = 16_384


def family_devices(reader: StoreReader, family: Family) -> list[DeviceId]:
    """Devices of a family that were probed, so that they can be described to a model."""
    return [
        device_id
        for device_id, entry in reader.devices().items()
        if entry.spec.family is family and entry.descriptor is not None
    ]


def source_devices_of(
    store: StoreReader, target: DeviceId, family: Family, heads: tuple[str, ...], version: str
) -> list[DeviceId]:
    """Devices of the target's family with records and a head in the model."""
    entries = store.devices()
    sources = [
        DeviceId(head)
        for head in heads
        if head != target and head in entries and entries[DeviceId(head)].spec.family is family
    ]
    if not sources:
        raise FleetError(
            f"model {version} has heads for {', '.join(heads)}, none of them a source device of {target} "
            f"(family {family}) with records in {store.path}; run `fleet collect` and `fleet train` "
            "on devices of that family first"
        )
    return sources


def source_version(
    registry: Registry, store: StoreReader, spec: DeviceSpec, *, with_own: bool = False
) -> Path:
    """The newest FleetTLP that serves a device of the family, to start from; else the newest of all.

    An MTL-TLP is no start: it takes no new head. `with_own` counts the version that serves the device itself.

    Raises:
        FleetError: There is no FleetTLP.
    """
    devices = store.devices()
    serving = {
        champion.version
        for device_id, champion in registry.champions().items()
        if (with_own or device_id != spec.device_id)
        and device_id in devices
        and devices[device_id].spec.family is spec.family
        and is_extensible(registry.kind(champion.version))
    }
    return registry.folder / max(serving) if serving else registry.newest_fleet_tlp()


def pools_of(
    store: StoreReader,
    sources: CollectionOf[DeviceId],
    samples: int,
    *,
    learnable: CollectionOf[CandidateId],
    live: bool = False,
    whole: bool = False,
) -> tuple[dict[WorkloadId, list[Candidate]], bool, int]:
    """Candidates to choose among by workload; whether none is of a held-out workload; how many to choose.

    The dataset of the onboarding may have workloads beside these, those of the fingerprint, and with them
    enough that the rule holds out some of which samples are chosen here: these would be paid for nothing.

    Args:
        store: Where the records are.
        sources: Whose candidates.
        samples: How many are asked for; as many as there are if these are fewer.
        learnable: Candidates that the dataset of the onboarding has: one whose records tell nothing is no
            sample.
        live: For a live device, which measures candidates of our own only
            (`fleet.planner.imported_candidates`).
        whole: Choose among all that are known, not the first few of each workload.

    Raises:
        FleetError: Source devices have measured none.
    """
    workloads = store.workloads()

    def pools_up_to(limit: int) -> dict[WorkloadId, list[Candidate]]:
        candidates_by_workload = known_candidates(store, sources, limit, live=live)
        pools = {
            workload_id: [each for each in pool if each.candidate_id in learnable]
            for workload_id, pool in candidates_by_workload.items()
        }
        return {workload_id: pool for workload_id, pool in pools.items() if pool}

    limit = max(_LEAST_POOL, math.ceil(_POOL_SHARE * samples / max(1, len(workloads))))
    limit = _WHOLE_POOL if whole else limit
    pools = pools_up_to(limit)
    if sum(map(len, pools.values())) < samples:
        pools = pools_up_to(samples)
    kept_out = held_out(workloads[workload_id] for workload_id in pools)
    open_pools = {workload_id: pool for workload_id, pool in pools.items() if workload_id not in kept_out}
    # Held-out workloads teach nothing, so samples of them would be spent in vain.
    if sum(map(len, open_pools.values())) >= samples:
        return open_pools, not any(is_held_out(workloads[workload_id]) for workload_id in open_pools), samples
    candidate_count = sum(map(len, pools.values()))
    if samples and not candidate_count:
        raise FleetError(
            f"the source devices {', '.join(sources)} have measured no candidate"
            f"{' of our own' if live else ''} that a head can learn from: run `fleet collect` on one of them "
            "first"
        )
    return pools, False, min(samples, candidate_count)


def choose(
    snapshot: DatasetSnapshot,
    target: DeviceId,
    pools: Mapping[WorkloadId, list[Candidate]],
    measured: Mapping[CandidateId, float],
    settings: FleetConfig,
    source: FleetTLP,
    samples: int,
) -> dict[WorkloadId, list[Candidate]]:
    """The candidates to measure, those of earlier onboardings first: they need no measurement.

    `measured` has the seconds of what the device has measured, NaN where it failed.
    """
    import numpy as np

    from transfer.adapt.sample_selection import Choice, selector_named

    dataset = snapshot.dataset
    by_id = {candidate.candidate_id: candidate for pool in pools.values() for candidate in pool}
    pool = np.flatnonzero([candidate_id in by_id for candidate_id in dataset.candidate_ids])
    measured_rows = pool[[dataset.candidate_ids[row] in measured for row in pool.tolist()]]
    selector = selector_named(settings.onboarding.selector)
    choice = Choice(
        dataset=dataset,
        target=target,
        pool=pool,
        source_model=lambda: source,
        seed=settings.training.seed,
        measured=measured_rows,
        measured_secs=np.array([measured[dataset.candidate_ids[row]] for row in measured_rows.tolist()]),
    )
    if len(measured_rows) > samples:
        rows = selector.choose(replace(choice, pool=measured_rows, measured=measured_rows[:0]), samples)
    else:
        rows = np.concatenate([measured_rows, selector.choose(choice, samples - len(measured_rows))])
    few: dict[WorkloadId, list[Candidate]] = {}
    for row in rows.tolist():
        candidate = by_id[dataset.candidate_ids[row]]
        few.setdefault(candidate.workload_id, []).append(candidate)
    return few


def rows_of(onboarding: Onboarding, pools: Mapping[WorkloadId, list[Candidate]]) -> np.ndarray:
    """Rows that the head will rank: all that source devices measured.

    The samples are among them. They are the promising ones: without them the rest is harder than any draw,
    and an expectation for it was too high.
    """
    import numpy as np

    pool_ids = {candidate.candidate_id for pool in pools.values() for candidate in pool}
    return np.flatnonzero([candidate_id in pool_ids for candidate_id in onboarding.dataset.candidate_ids])
