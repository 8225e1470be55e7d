"""`fleet onboard`: a head for a new device from a few measured candidates, with an honest check.

Candidates are chosen among those that sibling devices have measured, so that the new device's labels line up
with theirs. What the head is worth is checked on the samples themselves: workloads are held out in turn, and
the head that never saw them ranks their few measured candidates.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.records import CandidateId, DeviceId, Family
from fleet import replaying
from fleet.clock import Clock
from fleet.collect import Collection, CollectSettings, known_candidates
from fleet.config import select_devices, unknown_device
from fleet.errors import FleetError
from fleet.jobs import SPOOL
from fleet.learning import (
    Snapshot,
    adapt_version,
    hold_out_target,
    load_snapshot,
    strategy_named,
    train_config,
)
from fleet.models import latest
from fleet.progress import Display
from fleet.ray_session import RaySession
from fleet.selection import few_of_each
from fleet.store import Store

if TYPE_CHECKING:
    from fleet.config import FleetConfig
    from transfer.adapt.base import Strategy


def onboard_device(settings: FleetConfig, device: str, models: Path, display: Display) -> dict[str, Any]:
    """Measure, adapt, check, keep.

    Returns:
        What `fleet onboard --json` prints: device, samples, strategy, version of the model, seconds by part,
        and `check` (see `_check`).

    Raises:
        FleetError: The device is unknown or refused, siblings are missing, or more samples are asked for
            than siblings have measured.
    """
    from transfer import checkpoint
    from transfer.features import DEFAULT_SPEC

    specs = select_devices(settings)
    target = DeviceId(device)
    if target not in specs:
        raise unknown_device(device, specs, Path(settings.devices.folder))
    replays = Path(settings.store.path).parent / replaying.REPLAY
    spec = replaying.ready({target: specs[target]}, replays)[target]
    seed = settings.training.seed
    strategy = strategy_named(settings.onboarding.strategy)
    source, manifest = checkpoint.load(latest(models), DEFAULT_SPEC)
    clock = Clock()
    path = Path(settings.store.path)
    with Store.open(path, create=False) as store, display.live():
        siblings = _siblings(store, target, spec.family, source.device_ids, str(manifest["version"]))
        pools = known_candidates(store, siblings, settings.onboarding.samples)
        few = few_of_each(pools, settings.onboarding.samples, seed=seed)
        support = frozenset(candidate.candidate_id for chosen in few.values() for candidate in chosen)
        if len(support) < settings.onboarding.samples:
            raise FleetError(
                f"{settings.onboarding.samples} samples are asked for, but the siblings "
                f"{', '.join(siblings)} have measured {len(support)} candidates; ask for at most that many, "
                "or run `fleet collect` first"
            )
        how = CollectSettings(samples=len(support), protocol=settings.timing_protocol(), seed=seed)
        known = store.workloads()
        workloads = [known[workload_id] for workload_id in few]
        with clock.part("probe"):
            session = RaySession([spec], path.parent / SPOOL)
        with session:
            collection = Collection(session, store, {target: spec}, how, display)
            with clock.part("probe"):
                collection.register()
            with clock.part("measure"):
                collection.measure({spec.family: few}, workloads)
        snapshot = load_snapshot(store, device_ids=[*siblings, target])
    with clock.part("adapt"):
        _, version = adapt_version(
            snapshot, models, source, target, support, strategy, train_config(settings.training.epochs), seed
        )
    with clock.part("check"):
        check = _check(snapshot, target, support, strategy, settings)
    return {
        "device": target,
        "samples": len(support),
        "strategy": strategy.name,
        "version": version,
        "path": str(models / version),
        "siblings": list(siblings),
        "seconds": clock.parts,
        "check": check,
    }


def _siblings(
    store: Store, target: DeviceId, family: Family, heads: tuple[str, ...], version: str
) -> list[DeviceId]:
    """Devices of the target's family with records and a head in the model."""
    entries = store.devices()
    found = [
        DeviceId(head)
        for head in heads
        if head != target and head in entries and entries[DeviceId(head)].spec.family is family
    ]
    if not found:
        raise FleetError(
            f"model {version} has heads for {', '.join(heads)}, none of them a sibling of {target} (family "
            f"{family}) with records in {store.path}; run `fleet collect` and `fleet train` on devices of "
            "that family first"
        )
    return found


def _check(
    snapshot: Snapshot,
    target: DeviceId,
    support: frozenset[CandidateId],
    strategy: Strategy,
    settings: FleetConfig,
) -> dict[str, Any]:
    """Hold out workloads of the samples in turn and rank their measured candidates.

    A held-out workload has few samples here, so its top-1 is easier than among all candidates:
    `random_top1` beside it says how easy.
    """
    import numpy as np

    dataset = snapshot.dataset
    column = dataset.column(target)
    # Records of earlier onboardings are known too, and welcome: the check may use all of them.
    tried = np.isfinite(dataset.latency_secs[:, column]) | dataset.failed[:, column]
    workloads, counts = np.unique(dataset.group[tried], return_counts=True)
    folds = min(settings.training.folds, len(workloads))
    if folds < 2:
        return {"reason": f"the {len(support)} samples are of one workload: nothing can be held out"}
    # Any fold may hold out the workloads with the most samples.
    most_held = int(np.sort(counts)[::-1][: -(-len(workloads) // folds)].sum())
    result = hold_out_target(
        snapshot,
        target,
        samples=max(2, int(tried.sum()) - most_held),
        folds=folds,
        epochs=settings.training.epochs,
        seed=settings.training.seed,
        workers=len(os.sched_getaffinity(0)),
        strategy=strategy,
        with_full=False,
    )
    warm, scratch = result.target["warm"], result.target["scratch"]
    difference, low, high = result.warm_minus_scratch
    return {
        "held_out_workloads": len(warm.metrics.groups),
        "candidates_per_workload": float(np.mean(warm.metrics.counts)),
        "top1": warm.metrics.top1,
        "top1_interval": list(warm.top1_interval),
        "random_top1": warm.metrics.random_top1,
        "pairwise": warm.metrics.pairwise,
        "scratch_top1": scratch.metrics.top1,
        "scratch_pairwise": scratch.metrics.pairwise,
        "warm_minus_scratch": difference,
        "warm_minus_scratch_interval": [low, high],
    }
