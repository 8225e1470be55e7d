"""The driver of a collection request, from its workloads to its last A/A run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from agents.records import DeviceId, DeviceSpec
from fleet.collection.collect import Collection
from fleet.collection.selection import choose_workloads, none_fits
from fleet.collection.settings import CollectSettings, Display
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

#: Random candidates that a workload gets at least: fewer are no ground to evolve from.
_LEAST_RANDOM = 8


def collect_records(
    engine: EngineSession,
    settings: FleetConfig,
    specs: Mapping[DeviceId, DeviceSpec],
    display: Display,
    *,
    remeasure: int = 0,
    noise: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Measure the configured workloads on some devices, and the noise where that is due.

    Args:
        engine: Draws, measures and stores; the devices are ready.
        settings: Workloads, seed.
        specs: The devices.
        display: Shows how it goes.
        remeasure: Candidates of each device to measure a second time.
        noise: Candidates of an A/A run that is made now, on every device, and is all that is done; None
            for the usual work, which ends with an A/A run on devices that had none for a day.
        minutes: After which nothing new is begun; None for no limit.

    Returns:
        `spent`: where the time of each device went (`fleet.collection.time_spent.Spent`); `lost`: candidates
        of each device that were lost; `fallen`: devices that fell out, and why.
    """
    samples, minimum = settings.workloads.samples, settings.workloads.minimum
    how = CollectSettings(
        samples=samples,
        minimum=max(_LEAST_RANDOM, samples // 2) if minimum is None else minimum,
        exploration=settings.workloads.exploration,
        seed=settings.training.seed,
        remeasure=remeasure,
        noise=settings.workloads.noise_samples if noise is None else noise,
        minutes=minutes,
    )
    collection = Collection(engine, specs, how, display)
    with display.live():
        if noise is not None:
            _measure_noise_now(collection, specs)
        else:
            _collect(collection, settings, how, display)
        display.finish()
    return {
        "spent": [asdict(account) for account in collection.spent()],
        "lost": collection.lost(),
        "fallen": dict(collection.fallen),
    }


def _collect(collection: Collection, settings: FleetConfig, how: CollectSettings, display: Display) -> None:
    choice = settings.workloads
    listed = collection.network_workloads(choice.networks)
    workloads = choose_workloads(
        listed, count=choice.count, min_flops=choice.min_flops, max_flops=choice.max_flops
    )
    if not workloads:
        raise none_fits(len(listed), choice.networks, choice.min_flops, choice.max_flops)
    collection.run(workloads)
    collection.remeasure(workloads)
    if how.noise:
        collection.measure_noise()
    for device_id, count in collection.lost().items():
        reason = collection.loss_reasons.get(device_id) or "its processes ended"
        display.say(
            f"{device_id}: {count} candidates have no result ({reason}); the next run tries them again."
        )
    for device_id, reason in collection.fallen.items():
        display.say(f"{device_id} fell out: {reason}")


def _measure_noise_now(collection: Collection, specs: Mapping[DeviceId, DeviceSpec]) -> None:
    empty = collection.measure_noise(only_due=False)
    if empty:
        names = ", ".join(empty)
        done = "; the others have theirs" if len(empty) < len(specs) else ""
        raise FleetError(
            f"no A/A run on {names}: the store has no ok candidate of it, as it is now, to measure twice; "
            f"run `fleet collect` first{done}"
        )
