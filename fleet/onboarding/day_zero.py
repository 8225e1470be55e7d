"""A head for a device that has no source device in its store: from the model that comes with the program.

`serve_at_once` costs no measurement and a second. `onboard_alone` is what an onboarding does there: the
reference programs say which of the shipped heads is nearest, and that head serves at once. Samples of the
device's own move it; the moved head serves where it is judged better or as good. Called by
`fleet.onboarding.onboarding` and by searches. Imports torch when called.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agents.records import CandidateId, DeviceId, DeviceSpec, is_live
from fleet.config.settings import FleetConfig, select_devices
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.registry import Registry
from fleet.models.registry_file import latest
from fleet.models.shipped_model import ShippedHeads, is_servable
from fleet.models.versions import held_out, is_held_out, load_snapshot, train_config
from fleet.onboarding.adaptation import adaptation_report, source_devices_of, source_version, strategy_for
from fleet.onboarding.fingerprint import earlier_environment, measure_fingerprint
from fleet.onboarding.head_version import (
    adapt_version,
    onboarding_of,
    sample_outcomes,
    serving_of,
    with_columns,
)
from fleet.planner.collect import Collection
from fleet.planner.selection import choose_workloads, none_fits
from fleet.planner.settings import Clock, CollectSettings, Display
from fleet.store.delta.log import RECORDS
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.model.kinds import is_extensible

#: Samples of a workload, at least: fewer order nothing.
_PER_WORKLOAD = 8


def is_alone(registry: Registry, store: StoreReader, spec: DeviceSpec) -> bool:
    """Whether no model serves that learnt a head of another device of the family that the store knows.

    A challenger that nobody judged is no start; nor does a head of the shipped model, which learnt from none
    of its records, make a device a source of others.
    """
    others = {
        str(device_id)
        for device_id, entry in store.devices().items()
        if device_id != spec.device_id and entry.spec.family is spec.family
    }
    for version in {champion.version for champion in registry.champions().values()}:
        if is_extensible(registry.kind(version)):
            manifest = registry.manifest(version)
            heads = manifest["trained_heads" if "trained_heads" in manifest else "heads"]
            if others & set(heads):
                return False
    return True


def starts_alone(settings: FleetConfig, registry: Registry, store: StoreReader, spec: DeviceSpec) -> bool:
    """Whether an onboarding starts from the shipped model, for want of source devices."""
    return settings.onboarding.shipped and is_servable(spec) and is_alone(registry, store, spec)


def check_onboarding(settings: FleetConfig, device_id: DeviceId, models: Path) -> None:
    """Refuse an onboarding that has nothing to start from, before an engine or a device is waited for.

    Raises:
        FleetError: There is no model to start from, it has no head of a source device, or source devices have
            measured nothing that the device may be given.
    """
    spec, registry = select_devices(settings)[device_id], Registry(models)
    path = Path(settings.store.path)
    store = Store.read(path) if (path / RECORDS).is_dir() else None
    is_shipped = settings.onboarding.shipped and is_servable(spec)
    if is_shipped and (store is None or is_alone(registry, store, spec)):
        return
    if store is None:
        latest(models)
        raise FleetError(
            f"there is no store at {path}, so {device_id} has no source devices: run `fleet collect` and "
            "`fleet train` on other devices of its family first"
        )
    version = source_version(registry, store, spec).name
    heads = tuple(registry.manifest(version)["heads"])
    sources = source_devices_of(store, device_id, spec.family, heads, version)
    entries = store.devices()
    usable = [source for source in sources if is_live(entries[source].spec) or not is_live(spec)]
    if not set(usable) & set(store.device_ids):
        raise FleetError(
            f"the source devices of {device_id}, {', '.join(sources)}, have measured nothing that it may be "
            "given: run `fleet collect` on one of them first"
        )


def serve_at_once(engine: EngineSession, settings: FleetConfig, spec: DeviceSpec, models: Path) -> None:
    """Let the shipped model serve a device that no model serves.

    Raises:
        ShippedModelError: The shipped model is damaged.
    """
    shipped = ShippedHeads(Registry(models), engine.store(), enabled=settings.onboarding.shipped)
    if version := shipped.serve_first(spec.device_id):
        engine.published(version, [spec.device_id])


def onboard_alone(
    engine: EngineSession, settings: FleetConfig, spec: DeviceSpec, models: Path, display: Display
) -> JsonDict:
    """Fingerprint, serve, measure, adapt, report; the driver of an onboarding without source devices.

    The device is ready, and the shipped model may serve it.

    Returns:
        As of `fleet.onboarding.onboarding.onboard_device`, with `shipped` (name of the shipped model) and
        `first_head` (version that served before a sample was measured).

    Raises:
        FleetError: No workload fits, or no sample ran.
        TransferError: No head can be made.
    """
    target, clock = spec.device_id, Clock()
    samples = settings.onboarding.samples
    registry = Registry(models)
    heads = ShippedHeads(registry, engine.store())
    shipped = heads.model(spec.family)
    descriptor = engine.store().devices()[target].descriptor
    assert descriptor is not None  # the device is ready
    expected = shipped.expected(descriptor)
    how = CollectSettings(samples=_PER_WORKLOAD, seed=settings.training.seed)
    with display.live():
        collection = Collection(engine, {target: spec}, how, display)
        with clock.part("fingerprint"):
            mine = measure_fingerprint(engine, collection, spec)
        with clock.part("first_head"):
            if first := heads.serve_first(target, mine):
                engine.published(first, [target])
        if samples:
            with clock.part("measure"):
                chosen = _measure(collection, settings, spec, samples)
        display.finish()
    result: JsonDict = {
        "device": target,
        "samples": 0,
        "samples_asked": samples,
        "outcomes": {},
        "strategy": settings.onboarding.strategy,
        "taken": "day_zero",
        "notes": {},
        "unlike": shipped.unlike(descriptor),
        "version": first,
        "shipped": shipped.name,
        "first_head": first,
        "source_devices": [],
        "earlier_environment": None,
        "fingerprint": {
            "programs": mine.tried,
            "ran": len(mine.latency_secs),
            "distance": shipped.distances(mine),
        },
        "expected": expected.get("0"),
        "reason": "nothing was measured",
        "more": _more(expected, 0),
        "curve": [],
    }
    if samples:
        result |= _adapted(engine, settings, spec, heads, chosen, expected, clock)
    result["version"] = result["version"] or registry.champions()[target].version
    result |= serving_of(registry, target, result["version"])
    if result["served_by"] == result["version"] != first:
        engine.published(result["version"], [target])
    result["path"] = str(models / result["version"])
    result["seconds"] = clock.parts
    return result


def _measure(
    collection: Collection, settings: FleetConfig, spec: DeviceSpec, samples: int
) -> frozenset[CandidateId]:
    """Measure random candidates of some workloads, none of which is kept for judging."""
    selection = settings.workloads
    listed = collection.network_workloads(selection.networks)
    bounds = {"min_flops": selection.min_flops, "max_flops": selection.max_flops}
    collected = choose_workloads(listed, count=selection.count, **bounds)
    kept_out = held_out(collected)
    open_ones = [
        workload for workload in listed if not (is_held_out(workload) or workload.workload_id in kept_out)
    ]
    count = max(1, min(selection.count, samples // _PER_WORKLOAD))
    workloads = choose_workloads(open_ones, count=count, **bounds)
    if not workloads:
        raise none_fits(len(listed), selection.networks, selection.min_flops, selection.max_flops)
    each, rest = divmod(samples, len(workloads))
    shares = {workload.workload_id: each + (place < rest) for place, workload in enumerate(workloads)}
    pools = collection.propose(workloads, shares)
    collection.measure(pools)
    return frozenset(candidate.candidate_id for pool in pools[spec.family].values() for candidate in pool)


def _adapted(
    engine: EngineSession,
    settings: FleetConfig,
    spec: DeviceSpec,
    heads: ShippedHeads,
    chosen: frozenset[CandidateId],
    expected: Json,
    clock: Clock,
) -> JsonDict:
    """Move the head by what the device measured, and keep it as a version."""
    import numpy as np

    from transfer.adapt.base import Regime

    target, store, shipped = spec.device_id, engine.store(), heads.model(spec.family)
    environment_id = engine.environment_id(target)
    outcomes = sample_outcomes(store, target, environment_id, chosen)
    snapshot = load_snapshot(store, device_ids=[target], environments={target: {environment_id: target}})
    hardware_by_device = {device_id: (its.spec, its.descriptor) for device_id, its in shipped.devices.items()}
    snapshot = with_columns(snapshot, hardware_by_device)
    config = train_config(settings.training.epochs)
    onboarding = onboarding_of(
        *(snapshot, target, chosen, shipped.model, config, settings.training.seed), regime=Regime.BOTH_NEW
    )
    onboarding = replace(
        onboarding,
        source_rows=np.zeros(0, dtype=np.int64),
        inherited=shipped.trained_workloads,
        origin=shipped.name,
    )
    strategy = strategy_for(settings.onboarding.strategy, onboarding.regime, is_alone=True)
    with clock.part("adapt"):
        adapted, version = adapt_version(
            onboarding,
            snapshot,
            heads,
            strategy,
            earlier=earlier_environment(store, target, environment_id),
            strangers=list(hardware_by_device),
        )
    with clock.part("report"):
        report = adaptation_report(onboarding, adapted, strategy, onboarding.few_shot)
    if report["expected"] is None:
        report["expected"] = expected.get("0")
    return {
        **report,
        "outcomes": outcomes,
        "version": version,
        "more": _more(expected, len(onboarding.few_shot)),
    }


def _more(expected: Json, samples: int) -> list[dict[str, float]]:
    """What more samples bought where each device of the shipped model was left out in turn."""
    top1_by_samples = {int(k): figures["top1"] for k, figures in expected.items()}
    now = max((top1 for k, top1 in top1_by_samples.items() if k <= samples), default=0.0)
    return [
        {"samples": k, "top1": top1}
        for k, top1 in sorted(top1_by_samples.items())
        if k > samples and top1 > now
    ]
