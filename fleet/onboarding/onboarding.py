"""`fleet onboard`: a head for a new device from a few measured candidates, and what to expect of it.

Probe, fingerprint, choose, measure, adapt, report. Candidates are chosen among those that source devices
have measured, so that the new device's labels line up with theirs. Asked again for more samples, it goes on
from what it has. With recorded devices: `fleet.onboarding.replay`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection as CollectionOf
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agents.records import (
    CandidateId,
    Descriptor,
    DeviceId,
    DeviceSpec,
    Outcome,
    Workload,
    WorkloadId,
)
from agents.trust import is_live
from fleet.collection.clock import Clock
from fleet.collection.collect import Collection, CollectSettings
from fleet.collection.settings import Display, Engine
from fleet.errors import FleetError
from fleet.models.earlier_environment import Earlier, earlier_environment, environment_since
from fleet.models.holdout import held_out
from fleet.models.names import DEVICE_SCORES
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot, adapt_version, load_snapshot, train_config
from fleet.onboarding.adaptation import Onboarding, history, remember, strategy_for, told
from fleet.onboarding.choice import (
    choose,
    looks_at_results,
    pools_of,
    rounds,
    source_devices_of,
    source_version,
    unmeasured,
)
from fleet.onboarding.fingerprint import known_fingerprints, measure_fingerprint
from fleet.store.reader import StoreReader

if TYPE_CHECKING:
    import numpy as np

    from fleet.config.settings import FleetConfig
    from transfer.adapt.base import Adapted, Strategy
    from transfer.adapt.fingerprint import Fingerprint
    from transfer.data.dataset import Dataset
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.train.training import TrainConfig

#: Where the curve so far of each device is kept, beside the models.
CURVES = "onboarding"


class PublishingEngine(Engine, Protocol):
    """An engine that wants to know of models, too."""

    def published(self, version: str, device_ids: Sequence[DeviceId]) -> None:
        """See `fleet.requests.session.EngineSession`."""


def onboard_device(
    engine: PublishingEngine,
    settings: FleetConfig,
    spec: DeviceSpec,
    models: Path,
    display: Display,
    *,
    fewer: bool = False,
) -> dict[str, Any]:
    """Fingerprint, choose, measure, adapt, report; keep the head as a version. The driver of an onboarding.

    Args:
        engine: Draws, measures and stores; the device is ready.
        settings: Samples, strategy, seed.
        spec: The device.
        models: Folder of the model versions.
        display: Shows how it goes.
        fewer: Do with fewer samples where source devices have not measured so many candidates.

    Returns:
        What `fleet onboard --json` prints: samples, strategy asked for and taken, version of the model,
        `served_by` (the version that serves the device now; where it is another one, `why_not_served`),
        likeness to source devices by fingerprint, what to expect with intervals (or why nothing can be told),
        the curve so far, what more samples would buy, seconds by part.

    Raises:
        FleetError: The device has no source devices, more samples are asked for than source devices have
            measured, or none of them ran.
        TransferError: No head can be made.
    """
    from transfer.evaluate.onboarding_cases import Regime
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model import checkpoint

    target, live = spec.device_id, is_live(spec)
    seed, samples = settings.training.seed, settings.onboarding.samples
    store = engine.store()
    environment_id = engine.environment_id(target)
    earlier = earlier_environment(store, target, environment_id)
    served_from = source_version(Registry(models), store, spec, with_own=earlier is not None)
    source, manifest = checkpoint.load_fleet_tlp(served_from, DEFAULT_SPEC)
    source = _without_head(source, target, earlier)
    clock, config = Clock(), train_config(settings.training.epochs)
    how = CollectSettings(samples=max(1, samples), protocol=settings.timing_protocol(), seed=seed)
    with display.live():
        sources = source_devices_of(store, target, spec.family, source.device_ids, str(manifest["version"]))
        collection = Collection(engine, {target: spec}, how, display)
        with clock.part("choose"):
            # What the device itself measured in another environment is as good a sample.
            known = [*sources, target] if earlier is not None else sources
            selector = settings.onboarding.selector
            how_wide = {"live": live, "fewer": fewer, "whole": looks_at_results(selector)}
            pools, holds_out, samples = pools_of(store, known, samples, **how_wide)
        with clock.part("fingerprint"):
            mine = measure_fingerprint(engine, collection, spec)
            near = _likeness(mine, known_fingerprints(store, sources, mine.latency_secs, earlier, target))
        with clock.part("choose"):
            before = load_snapshot(store, device_ids=known, environments=_parts(target, "", earlier))
        for count in rounds(selector, samples):
            with clock.part("choose"):
                measured = _measured(engine.store(), target, environment_id)
                few = choose(before, target, pools, measured, settings, source, count)
            with clock.part("measure"):
                collection.measure({spec.family: few}, _given(collection, few))
        few_shot = frozenset(one.candidate_id for chosen in few.values() for one in chosen)
        store = engine.store()
        descriptor = store.devices()[target].descriptor
        assert descriptor is not None  # it is ready
        outcomes = _outcomes(store, target, environment_id, few_shot)
        snapshot = _with_target(store, sources, spec, descriptor, _parts(target, environment_id, earlier))
        display.finish()
    display.computes(f"{target}: {sum(outcomes.values())} samples are measured; its head is made")
    strategy = _Kept(
        strategy_for(settings.onboarding.strategy, Regime.DEVICE_NEW, models.parent / DEVICE_SCORES, near)
    )
    one = _onboarding(snapshot, target, few_shot, source, config, seed, holds_out=holds_out)
    with clock.part("standings"):
        device_scores = strategy.prepare(one)
    with clock.part("adapt"):
        _, version = adapt_version(
            *(snapshot, models, source, target, few_shot, strategy, config, seed),
            hold_out=holds_out,
            earlier=earlier,
            since=environment_since(store, target, environment_id),
        )
    serving = _serving(Registry(models), target, version)
    if serving["served_by"] == version:
        engine.published(version, [target])
    adapted = strategy.adapted
    taken = str(adapted.notes.get("strategy", strategy.name))
    result: dict[str, Any] = {
        "device": target,
        "samples": len(few_shot),
        "outcomes": outcomes,
        "strategy": strategy.name,
        "taken": taken,
        "notes": dict(adapted.notes),
        "version": version,
        "path": str(models / version),
        **serving,
        "siblings": list(sources),
        "earlier_environment": earlier.environment_id if earlier is not None else None,
        "fingerprint": {"programs": mine.tried, "ran": len(mine.latency_secs), "distance": near},
    }
    with clock.part("report"):
        result |= told(
            one, adapted, taken, unmeasured(one, pools), device_scores, sum(map(len, pools.values()))
        )
        result["curve"] = history(models.parent / CURVES, target)
        if result["expected"] is not None:
            point = {"samples": len(few_shot), "taken": taken, **result["expected"]}
            remember(models.parent / CURVES, target, point)
    result["seconds"] = clock.parts
    return result


def _given(collection: Collection, few: CollectionOf[WorkloadId]) -> list[Workload]:
    """The workloads of the chosen candidates.

    Raises:
        FleetError: The module of one may be of others.
    """
    found = collection.stored_workloads(few)
    if missing := sorted(set(few) - found.keys()):
        raise FleetError(
            f"the programs of {len(missing)} of {len(few)} chosen workloads, {missing[0]} first, may be of "
            "others, and no known network has them: collect on a live source device once more, then onboard"
        )
    return [found[one] for one in few]


class _Kept:
    """A strategy that keeps what it gave: versions hold a model, the report asks for more."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.name = inner.name
        self.least_samples = inner.least_samples
        self._adapted: Adapted | None = None

    def prepare(self, one: Onboarding) -> Any:
        """What the inner one does ahead, if anything."""
        from transfer.evaluate.onboarding_contenders import Prepared

        if not isinstance(self.inner, Prepared):
            return None
        return self.inner.prepare(one.dataset, one.target, source_rows=one.source_rows, config=one.config)

    def adapt(
        self,
        source: FleetTLP | None,
        dataset: Dataset,
        target_device: str,
        few_shot_rows: np.ndarray,
        *,
        source_rows: np.ndarray,
        config: TrainConfig,
        seed: int,
    ) -> Adapted:
        """See `Strategy.adapt`."""
        self._adapted = self.inner.adapt(
            source,
            dataset,
            target_device,
            few_shot_rows,
            source_rows=source_rows,
            config=config,
            seed=seed,
        )
        return self._adapted

    @property
    def adapted(self) -> Adapted:
        """What `adapt` gave last."""
        assert self._adapted is not None
        return self._adapted


def _onboarding(
    snapshot: DatasetSnapshot,
    target: DeviceId,
    few_shot: CollectionOf[CandidateId],
    source: FleetTLP,
    config: TrainConfig,
    seed: int,
    *,
    holds_out: bool,
) -> Onboarding:
    """What the head is made from; rows as `adapt_version` chooses them."""
    import numpy as np

    from transfer.evaluate.onboarding_cases import Regime

    dataset = snapshot.dataset
    kept_out = held_out(snapshot.workloads[one] for one in dataset.workload_ids) if holds_out else frozenset()
    is_open = np.array([one not in kept_out for one in dataset.workload_ids], dtype=np.bool_)[dataset.group]
    chosen = np.array([one in few_shot for one in dataset.candidate_ids], dtype=np.bool_)
    return Onboarding(
        dataset=dataset,
        target=target,
        few_shot=np.flatnonzero(is_open & chosen),
        source=source,
        source_rows=np.flatnonzero(is_open),
        regime=Regime.DEVICE_NEW,
        config=config,
        seed=seed,
    )


def _likeness(mine: Fingerprint, others: list[Fingerprint]) -> dict[str, float]:
    from transfer.adapt.fingerprint import distances

    return {name: round(value, 4) for name, value in distances(mine, others).items()}


def _parts(
    target: DeviceId, environment_id: str, earlier: Earlier | None
) -> dict[DeviceId, dict[str, DeviceId]]:
    """How the records of the target are told apart by environment; without its present one if empty."""
    present = {environment_id: target} if environment_id else {}
    before = {earlier.environment_id: earlier.device_id} if earlier is not None else {}
    return {target: present | before} if present or before else {}


def _measured(store: StoreReader, target: DeviceId, environment_id: str) -> dict[CandidateId, float]:
    """Seconds of what a device has measured in its present environment, NaN where it failed."""
    found: dict[CandidateId, float] = {}
    for row in store.records(device_id=target):
        if row.environment_id == environment_id:
            secs = row.latency_secs if row.outcome is Outcome.OK else math.nan
            # The fastest of several; a failure only where no other measurement is.
            before = found.get(row.candidate_id, math.nan)
            found[row.candidate_id] = secs if math.isnan(before) or secs < before else before
    return found


def _outcomes(
    store: StoreReader, target: DeviceId, environment_id: str, few_shot: CollectionOf[CandidateId]
) -> dict[str, int]:
    """How the samples ended.

    Raises:
        FleetError: None of them ran.
    """
    found = {
        record.candidate_id: (record.outcome, record.error)
        for record in store.records(device_id=target)
        if record.candidate_id in few_shot and record.environment_id == environment_id
    }
    counts = Counter(str(outcome) for outcome, _ in found.values())
    if few_shot and not counts[Outcome.OK]:
        error = next((error for _, error in found.values() if error), "no error text")
        said = ", ".join(f"{outcome} {count}" for outcome, count in counts.items()) or "no record"
        raise FleetError(
            f"none of the {len(few_shot)} samples ran on {target} ({said}); no head can be made of failures. "
            f"One of them says: {error.strip().splitlines()[-1][:200] if error.strip() else 'nothing'}. Run "
            f"`fleet doctor`, mend the device, and onboard it again"
        )
    return dict(counts)


def _serving(registry: Registry, target: DeviceId, version: str) -> dict[str, str]:
    """Which version serves the device from now on, and why not the new one."""
    champion = registry.champions().get(target)
    if champion is None or champion.version == version:
        return {"served_by": version}
    named, _, why = champion.retained.partition(": ")
    why = why if named == version else "another was published meanwhile"
    return {"served_by": champion.version, "why_not_served": why}


def _with_target(
    store: StoreReader,
    sources: list[DeviceId],
    spec: DeviceSpec,
    descriptor: Descriptor,
    parts: Mapping[DeviceId, Mapping[str, DeviceId]],
) -> DatasetSnapshot:
    """The records of the source devices and the target; an empty column where it has none (k = 0)."""
    import numpy as np

    from transfer.features.extractor import hardware_vector

    snapshot = load_snapshot(store, device_ids=[*sources, spec.device_id], environments=parts)
    dataset = snapshot.dataset
    if spec.device_id in dataset.device_ids:
        return snapshot
    count = len(dataset)
    grown = replace(
        dataset,
        device_ids=(*dataset.device_ids, spec.device_id),
        latency_secs=np.concatenate([dataset.latency_secs, np.full((count, 1), np.nan)], axis=1),
        failed=np.concatenate([dataset.failed, np.zeros((count, 1), dtype=np.bool_)], axis=1),
        hardware=np.concatenate([dataset.hardware, hardware_vector(spec, descriptor)[None, :]]),
    )
    return replace(snapshot, dataset=grown, devices={**snapshot.devices, spec.device_id: (spec, descriptor)})


def _without_head(source: FleetTLP, target: DeviceId, earlier: Earlier | None = None) -> FleetTLP:
    """The model without the head of an earlier onboarding: it saw the samples that check the new one.

    A head of an earlier environment did not, and becomes that of a source. Trees and what is known of the
    other devices stay as they are.
    """
    if target not in source.device_ids:
        return source
    model = source.copy()
    if earlier is not None:
        model.rename_head(target, earlier.device_id)
    else:
        model.drop_head(target)
    return model.eval()
