"""What is behind `fleet collect`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agents.records import DeviceId, DeviceSpec
from fleet.collection.collect import Collection, CollectSettings
from fleet.collection.device_choice import DeviceChoice
from fleet.collection.progress import Display
from fleet.collection.selection import choose_workloads, none_fits
from fleet.collection.time_spent import Spent
from fleet.errors import FleetError
from fleet.store.store import Store
from fleet.transport.ray_session import RaySession

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

#: Folder of the agents' spools, beside the store.
SPOOL = "spool"
#: Random candidates that a workload gets at least: fewer are no ground to evolve from.
_LEAST_RANDOM = 8


def fitting_devices(settings: FleetConfig) -> dict[DeviceId, DeviceSpec]:
    """Devices to measure on: those asked for, or all device files that this host can be.

    Replay devices must be asked for: their records are no new measurements. They are made ready here. Files
    that cannot be used and were not asked for are left out, each with a warning.

    Raises:
        FleetError: One that was asked for cannot be measured here, or none can.
    """
    choice = DeviceChoice(settings)
    choice.warn()
    return dict(choice.files.specs)


def collect_records(
    settings: FleetConfig, display: Display, *, remeasure: int = 0, noise: int | None = None
) -> list[Spent]:
    """Measure the configured workloads on the configured devices, and the noise where that is due.

    Args:
        settings: Devices, workloads, protocol, store.
        display: Shows how it goes.
        remeasure: Candidates of each device to measure a second time.
        noise: Candidates of an A/A run that is made now, on every device, and is all that is done; None
            for the usual work, which ends with an A/A run on devices that had none for a day.

    Returns:
        Where the time of each device went.
    """
    specs = fitting_devices(settings)
    samples, minimum = settings.workloads.samples, settings.workloads.minimum
    how = CollectSettings(
        samples=samples,
        minimum=max(_LEAST_RANDOM, samples // 2) if minimum is None else minimum,
        exploration=settings.workloads.exploration,
        protocol=settings.timing_protocol(),
        seed=settings.training.seed,
        remeasure=remeasure,
        noise=settings.workloads.noise_samples if noise is None else noise,
    )
    path = Path(settings.store.path)
    with (
        Store.open(path) as store,
        RaySession(list(specs.values()), path.parent / SPOOL) as session,
        display.live(),
    ):
        collection = Collection(session, store, specs, how, display)
        collection.register()
        if noise is not None:
            _measure_noise_now(collection, specs)
            return collection.spent()
        listed = collection.network_workloads(settings.workloads.networks)
        workloads = choose_workloads(
            listed,
            count=settings.workloads.count,
            min_flops=settings.workloads.min_flops,
            max_flops=settings.workloads.max_flops,
        )
        if not workloads:
            asked = settings.workloads
            raise none_fits(len(listed), asked.networks, asked.min_flops, asked.max_flops)
        collection.run(workloads)
        collection.remeasure(workloads)
        if how.noise:
            collection.measure_noise()
        for device_id, count in collection.lost().items():
            display.say(
                f"{device_id}: {count} candidates were lost twice, so the device was out of reach or its "
                "processes ended; the next run tries them again."
            )
        return collection.spent()


def _measure_noise_now(collection: Collection, specs: Mapping[DeviceId, DeviceSpec]) -> None:
    empty = collection.measure_noise(only_due=False)
    if empty:
        names = ", ".join(empty)
        done = "; the others have theirs" if len(empty) < len(specs) else ""
        raise FleetError(
            f"no A/A run on {names}: the store has no ok candidate of it, as it is now, to measure twice; "
            f"run `fleet collect` first{done}"
        )
