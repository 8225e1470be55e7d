"""Adapt a new device and say what its head is worth: the part that measuring and replaying share.

Called by `fleet.onboarding.onboarding` (a real device) and `fleet.onboarding.replay` (a recorded one).
Imports torch when called.
"""

from __future__ import annotations

import math
from collections.abc import Collection as CollectionOf
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.records import Candidate, CandidateId, DeviceId, DeviceSpec, Family, WorkloadId
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot, held_out, is_held_out
from fleet.planner.device_history import known_candidates
from fleet.store.reader import StoreReader
from transfer.arrays import Rows
from transfer.model.kinds import is_extensible

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.adapt.base import Adapted, Onboarding, Regime, Strategy
    from transfer.adapt.expectation import Expectation
    from transfer.data.dataset import Dataset
    from transfer.model.fleet_tlp import FleetTLP


#: The strategy that checks its default on held-back samples.
AUTO = "auto"


def strategy_for(
    name: str, regime: Regime, starts: Path | None = None, *, is_alone: bool = False
) -> Strategy:
    """The strategy of this name, `auto` included.

    Args:
        name: A name of `transfer.adapt.guard`, or `auto`.
        regime: What the head will be asked.
        starts: Folder of the source model's version, which keeps what strategies make of it once.
        is_alone: Whether nothing is known of source devices but their heads.
    """
    from transfer.adapt.guard import GUARDED, GUARDED_ALONE, auto, strategies

    by_name = strategies(starts)
    if name == AUTO:
        return auto(regime, by_name, GUARDED_ALONE if is_alone else GUARDED)
    return by_name[name]


def expectation(onboarding: Onboarding, adapted: Adapted, strategy: Strategy, ranked: Rows) -> Expectation:
    """What the first choices of a head, made by `strategy`, among the rows `ranked` will reach.

    Raises:
        TransferError: There are too few samples.
    """
    from transfer.adapt.base import Regime
    from transfer.adapt.expectation import expect
    from transfer.adapt.guard import for_check, scores_by_others

    scores = scores_by_others(for_check(strategy, onboarding.regime), onboarding, onboarding.regime)
    has_score = np.isfinite(scores)
    rows = onboarding.few_shot[has_score]
    return expect(
        adapted.score(_visible(onboarding), ranked),
        onboarding.dataset.group[ranked],
        scores[has_score],
        onboarding.latency[rows],
        onboarding.dataset.group[rows],
        seed=onboarding.seed,
        unseen=onboarding.regime is Regime.BOTH_NEW,
    )


def adaptation_report(
    onboarding: Onboarding,
    adapted: Adapted,
    strategy: Strategy,
    ranked: Rows,
    starts: Path | None = None,
) -> JsonDict:
    """What a report says of a head: its samples, how it was made, and what to expect of it.

    With too few samples the reason why nothing is expected; `starts` is as of `strategy_for`.
    """
    from transfer.errors import TransferError

    strategy_name = str(adapted.notes.get("strategy", strategy.name))
    report: JsonDict = {
        "samples": len(onboarding.few_shot),
        "taken": strategy_name,
        "notes": dict(adapted.notes),
    }
    its_own = strategy_for(strategy_name, onboarding.regime, starts)
    try:
        estimate = expectation(onboarding, adapted, its_own, ranked)
    except TransferError as error:
        return report | {"expected": None, "reason": str(error)}
    figures: JsonDict = {
        "samples": estimate.samples,
        "workloads": estimate.workloads,
        "regime": onboarding.regime.value,
    }
    for name, figure in (("top1", estimate.top1), ("top5", estimate.top5)):
        figures[name] = round(figure.value, 4)
        figures[f"{name}_interval"] = [round(figure.low, 4), round(figure.high, 4)]
    return report | {"expected": figures}


def _visible(onboarding: Onboarding) -> Dataset:
    """What the head may look at when it ranks: the source devices', or nothing where nobody has measured."""
    from transfer.adapt.base import Regime

    visible = np.zeros(onboarding.dataset.latency_secs.shape, dtype=np.bool_)
    if onboarding.regime is not Regime.BOTH_NEW:
        visible[onboarding.source_rows] = True
        visible[:, onboarding.dataset.column(onboarding.target)] = False
    return onboarding.dataset.where(visible)


# Whom a new device learns from, and which candidates it measures.
#
# Called by `fleet.onboarding.onboarding`; measures nothing. Imports torch when called.

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
    from transfer.adapt.sample_selection import SELECTORS, Choice

    dataset = snapshot.dataset
    by_id = {candidate.candidate_id: candidate for pool in pools.values() for candidate in pool}
    pool = np.flatnonzero([candidate_id in by_id for candidate_id in dataset.candidate_ids])
    measured_rows = pool[[dataset.candidate_ids[row] in measured for row in pool.tolist()]]
    selector = SELECTORS[settings.onboarding.selector]
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
    pool_ids = {candidate.candidate_id for pool in pools.values() for candidate in pool}
    return np.flatnonzero([candidate_id in pool_ids for candidate_id in onboarding.dataset.candidate_ids])
