"""`fleet onboard`: a head for a new device from a few measured candidates, and what to expect of it.

Probe, fingerprint, choose, measure, adapt, report. Candidates are chosen among those that source devices
have measured, so that the new device's labels line up with theirs. Asked again for more samples, it goes on
from what it has. With recorded devices: `fleet.onboarding.replay`.
"""

from __future__ import annotations

import math
from collections.abc import Collection as CollectionOf
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from agents.records import (
    Candidate,
    CandidateId,
    DeviceId,
    DeviceSpec,
    Outcome,
    WorkloadId,
    is_live,
)
from fleet.config.settings import FleetConfig
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.models.freshness import CURVES, history, remember
from fleet.models.opponents import origin_of
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHeads, ShippedModelError, is_servable
from fleet.models.versions import DatasetSnapshot, load_snapshot, train_config, training_workloads
from fleet.onboarding.adaptation import (
    adaptation_report,
    choose,
    pools_of,
    rows_of,
    source_devices_of,
    source_version,
    strategy_for,
)
from fleet.onboarding.day_zero import onboard_alone, starts_alone
from fleet.onboarding.fingerprint import (
    Earlier,
    earlier_environment,
    known_fingerprints,
    measure_fingerprint,
    why_as_before,
)
from fleet.onboarding.head_version import (
    adapt_version,
    onboarding_of,
    sample_outcomes,
    serving_of,
    with_target,
    without_head,
)
from fleet.onboarding.text import WHY_FEWER
from fleet.planner.collect import Collection
from fleet.planner.settings import Clock, CollectSettings, Display
from fleet.store.reader import StoreReader


def onboard_device(
    engine: EngineSession,
    settings: FleetConfig,
    spec: DeviceSpec,
    models: Path,
    display: Display,
    *,
    has_drifted: bool = False,
) -> JsonDict:
    """Fingerprint, choose, measure, adapt, report; keep the head as a version. The driver of an onboarding.

    Args:
        engine: Draws, measures and stores; the device is ready.
        settings: Samples, strategy, seed.
        spec: The device.
        models: Folder of the model versions.
        display: Shows how it goes.
        has_drifted: The engine's store parts what the device measured before it drifted. Where its reference
            programs run as before, its head stays.

    Returns:
        What `fleet onboard --json` prints: samples (as many as asked for, or as source devices have measured
        candidates), `samples_asked`, strategy asked for and taken, version of the model,
        `served_by` (the version that serves the device now; where it is another one, `why_not_served`),
        likeness to source devices by fingerprint, what to expect with intervals (or why nothing can be told),
        the curve so far, seconds by part.

    Raises:
        FleetError: The device has no source devices, these have measured nothing, or no sample ran.
        TransferError: No head can be made.
    """
    target = spec.device_id
    if starts_alone(settings, Registry(models), engine.store(), spec):
        return onboard_alone(engine, settings, spec, models, display)
    clock, config = Clock(), train_config(settings.training.epochs)
    arrival = _Arrival(engine, settings, spec, models)
    samples = _measure(arrival, clock, display, has_drifted=has_drifted)
    registry = Registry(models)
    if isinstance(samples, str):
        return {"device": target, "samples": 0, "drift": samples, **serving_of(registry, target, "")}
    snapshot, earlier = samples.snapshot, arrival.earlier
    display.computes(f"{target}: {sum(samples.outcomes.values())} samples are measured; its head is made")
    onboarding = onboarding_of(
        *(snapshot, target, samples.few_shot, arrival.source, config, settings.training.seed),
        holds_out=samples.holds_out,
    )
    onboarding = replace(onboarding, inherited=arrival.inherited, origin=arrival.origin)
    strategy = strategy_for(settings.onboarding.strategy, onboarding.regime, arrival.version)
    with clock.part("adapt"):
        adapted, version = adapt_version(onboarding, snapshot, arrival.shipped, strategy, earlier=earlier)
    serving = serving_of(registry, target, version)
    if serving["served_by"] == version:
        engine.published(version, [target])
    result: JsonDict = {
        "device": target,
        "samples_asked": settings.onboarding.samples,
        "outcomes": samples.outcomes,
        "strategy": strategy.name,
        "version": version,
        "path": str(models / version),
        **serving,
        "source_devices": list(arrival.sources),
        "earlier_environment": earlier.environment_id if earlier is not None else None,
        "fingerprint": samples.fingerprint,
    }
    with clock.part("report"):
        ranked = rows_of(onboarding, samples.pools)
        result |= adaptation_report(onboarding, adapted, strategy, ranked, arrival.version)
        # Those that were lost are in no dataset.
        result["samples"] = len(samples.few_shot)
        if result["expected"] is None and settings.onboarding.shipped and is_servable(spec):
            descriptor = snapshot.devices[target][1]
            result["expected"] = arrival.shipped.model(spec.family).expected(descriptor).get("0")
        result["curve"] = history(models.parent / CURVES, target)
        if result["expected"] is not None:
            point = {"samples": len(samples.few_shot), "taken": result["taken"], **result["expected"]}
            remember(models.parent / CURVES, target, point)
    result["seconds"] = clock.parts
    return result


class _Arrival:
    """What is known before the device measures anything: the model to start from, and the source devices."""

    def __init__(self, engine: EngineSession, settings: FleetConfig, spec: DeviceSpec, models: Path) -> None:
        from transfer.features.extractor import DEFAULT_SPEC
        from transfer.model import checkpoint

        self.engine, self.settings, self.spec = engine, settings, spec
        target, store, registry = spec.device_id, engine.store(), Registry(models)
        self.environment_id = engine.environment_id(target)
        #: Measurements from before the device's environment changed.
        self.earlier = earlier_environment(store, target, self.environment_id)
        #: Folder of the version that the source model is of.
        self.version = source_version(registry, store, spec, with_own=self.earlier is not None)
        source, manifest = checkpoint.load_fleet_tlp(self.version, DEFAULT_SPEC)
        self.source = without_head(source, target, self.earlier)
        heads = self.source.device_ids
        self.sources = source_devices_of(store, target, spec.family, heads, self.version.name)
        #: Workloads that the source model has learnt from, and the model that its weights go back to.
        self.inherited = training_workloads(store, manifest)
        self.origin = origin_of(self.version.name, manifest)
        #: Of the shipped model, which serves the device until a head of its own may.
        self.shipped = ShippedHeads(registry, store, enabled=settings.onboarding.shipped)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Samples:
    """What the device measured, and what it was chosen from."""

    pools: Mapping[WorkloadId, list[Candidate]]
    holds_out: bool
    few_shot: frozenset[CandidateId]
    outcomes: dict[str, int]
    #: How many reference programs ran, and how alike that makes the source devices.
    fingerprint: JsonDict
    snapshot: DatasetSnapshot


def _measure(arrival: _Arrival, clock: Clock, display: Display, *, has_drifted: bool) -> _Samples | str:
    """Take the fingerprint, choose the few-shot set, and measure it; or say why there is no need to."""
    from transfer.adapt.nearest import distances
    from transfer.adapt.sample_selection import IN_ROUNDS, rounds

    engine, settings, spec, earlier = arrival.engine, arrival.settings, arrival.spec, arrival.earlier
    target, environment_id, store = spec.device_id, arrival.environment_id, engine.store()
    asked_samples, selector = settings.onboarding.samples, settings.onboarding.selector
    how = CollectSettings(samples=max(1, asked_samples), seed=settings.training.seed)
    # The device's own measurements in another environment are as good as samples.
    recorded_devices = [*arrival.sources, target] if earlier is not None else arrival.sources
    with display.live():
        collection = Collection(engine, {target: spec}, how, display)
        with clock.part("choose"):
            before = load_snapshot(
                store, device_ids=recorded_devices, environments=_parts(target, "", earlier)
            )
            how_wide = {"live": is_live(spec), "whole": selector in IN_ROUNDS}
            learnable = frozenset(before.dataset.candidate_ids)
            pools, holds_out, count = pools_of(
                store, recorded_devices, asked_samples, learnable=learnable, **how_wide
            )
        if count < asked_samples:
            display.say(f"{target} measures {count} samples of {asked_samples}: {WHY_FEWER}")
        with clock.part("fingerprint"):
            mine = measure_fingerprint(engine, collection, spec)
            others = known_fingerprints(store, arrival.sources, mine.latency_secs, earlier, target)
            near = {name: round(value, 4) for name, value in distances(mine, others).items()}
            # The judge says of the new head that the shipped model is damaged.
            with suppress(ShippedModelError):
                if version := arrival.shipped.serve_first(target, mine):
                    engine.published(version, [target])
        if has_drifted:
            names = {fingerprint.device_id: fingerprint for fingerprint in others}
            before_it = names.get(earlier.device_id) if earlier is not None else None
            if why := why_as_before(mine, before_it, engine.store()):
                display.finish()
                return why
        for so_far in rounds(selector, count):
            with clock.part("choose"):
                measured = _measured(engine.store(), target, environment_id)
                few = choose(before, target, pools, measured, settings, arrival.source, so_far)
            with clock.part("measure"):
                _check_programs(collection, few)
                collection.measure({spec.family: few})
        few_shot = frozenset(candidate.candidate_id for chosen in few.values() for candidate in chosen)
        store = engine.store()
        outcomes = sample_outcomes(store, target, environment_id, few_shot)
        parts = _parts(target, environment_id, earlier)
        snapshot = with_target(store, arrival.sources, spec, parts)
        display.finish()
    return _Samples(
        pools=pools,
        holds_out=holds_out,
        few_shot=few_shot,
        outcomes=outcomes,
        fingerprint={"programs": mine.tried, "ran": len(mine.latency_secs), "distance": near},
        snapshot=snapshot,
    )


def _check_programs(collection: Collection, few: CollectionOf[WorkloadId]) -> None:
    """Refuse chosen candidates of workloads that the device may not be given."""
    workloads = collection.stored_workloads(few)
    if missing := sorted(set(few) - workloads.keys()):
        raise FleetError(
            f"the programs of {len(missing)} of {len(few)} chosen workloads, {missing[0]} first, may be of "
            "others, and no known network has them: collect on a live source device once more, then onboard"
        )


def _parts(
    target: DeviceId, environment_id: str, earlier: Earlier | None
) -> dict[DeviceId, dict[str, DeviceId]]:
    """How the records of the target are told apart by environment; without its present one if empty."""
    present = {environment_id: target} if environment_id else {}
    before = {earlier.environment_id: earlier.device_id} if earlier is not None else {}
    return {target: present | before} if present or before else {}


def _measured(store: StoreReader, target: DeviceId, environment_id: str) -> dict[CandidateId, float]:
    """Seconds of what a device has measured in its present environment, NaN where it failed."""
    secs_by_candidate: dict[CandidateId, float] = {}
    for row in store.records(device_id=target):
        if row.environment_id == environment_id:
            secs = row.latency_secs if row.outcome is Outcome.OK else math.nan
            # The fastest of several; a failure only where no other measurement is.
            before = secs_by_candidate.get(row.candidate_id, math.nan)
            secs_by_candidate[row.candidate_id] = secs if math.isnan(before) or secs < before else before
    return secs_by_candidate
