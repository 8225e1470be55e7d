"""The single steps behind `fleet collect`, `train` and `eval`, on one store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.probe import differences, probe
from agents.records import DeviceId, DeviceSpec, Family
from fleet.collect import Collection, CollectSettings
from fleet.config import select_devices
from fleet.errors import FleetError
from fleet.learning import Snapshot, load_snapshot, manifest_of, save_version, train_config
from fleet.progress import Display
from fleet.ray_session import RaySession
from fleet.selection import choose_workloads
from fleet.spending import Spent
from fleet.store import Store

if TYPE_CHECKING:
    from fleet.config import FleetConfig

#: Folder of the agents' spools, beside the store.
SPOOL = "spool"
#: Random candidates that a workload gets at least: fewer are no ground to evolve from.
_LEAST_RANDOM = 8


def fitting_devices(settings: FleetConfig) -> dict[DeviceId, DeviceSpec]:
    """Devices to measure on: those asked for, or all device files that this host can be.

    Raises:
        FleetError: One that was asked for cannot be measured here, or none can.
    """
    specs = select_devices(settings)
    descriptor = probe()
    faults = {device_id: differences(spec, descriptor) for device_id, spec in specs.items()}
    if settings.devices.ids:
        refused = [f"device {device_id}: {'; '.join(found)}" for device_id, found in faults.items() if found]
        if refused:
            raise FleetError("\n".join(refused))
        return specs
    fitting = {device_id: spec for device_id, spec in specs.items() if not faults[device_id]}
    if not fitting:
        raise FleetError(
            f"this host can be none of the {len(specs)} devices in {settings.devices.folder}; "
            "run `fleet init` to write its profiles"
        )
    return fitting


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
    samples = settings.workloads.samples
    how = CollectSettings(
        samples=samples,
        minimum=max(_LEAST_RANDOM, samples // 2),
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
        first = next(iter(specs))
        listed = session.call(first, "network_workloads", list(settings.workloads.networks))
        workloads = choose_workloads(
            listed,
            count=settings.workloads.count,
            min_flops=settings.workloads.min_flops,
            max_flops=settings.workloads.max_flops,
        )
        if not workloads:
            raise FleetError(
                f"none of the {len(listed)} workloads of {', '.join(settings.workloads.networks)} has "
                f"between {settings.workloads.min_flops:g} and {settings.workloads.max_flops:g} FLOPs; "
                "widen workloads.min_flops and workloads.max_flops"
            )
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


def read_snapshot(store: Path, device_ids: Sequence[str]) -> Snapshot:
    """Read the records of some devices, or of all, which must be of one family.

    Raises:
        FleetError: The devices are of several families, or unknown.
    """
    reader = Store.read(store)
    chosen = [DeviceId(name) for name in device_ids]
    entries = reader.devices()
    families: dict[Family, list[str]] = {}
    for device_id in chosen or sorted(entries):
        if device_id in entries:
            families.setdefault(entries[device_id].spec.family, []).append(device_id)
    if len(families) > 1:
        listed = "; ".join(f"{family}: {', '.join(names)}" for family, names in sorted(families.items()))
        raise FleetError(f"a model is shared by devices of one family, got {listed}; choose with --device")
    return load_snapshot(reader, device_ids=chosen)


def train_version(settings: FleetConfig, models: Path, device_ids: Sequence[str]) -> dict[str, Any]:
    """Train on everything that the store holds of some devices, and keep the model."""
    import numpy as np

    from transfer.train import train

    snapshot = read_snapshot(Path(settings.store.path), device_ids)
    dataset = snapshot.dataset
    config = train_config(settings.training.epochs)
    rows = np.arange(len(dataset.candidate_ids))
    result = train(dataset, rows, config=config, seed=settings.training.seed)
    manifest = manifest_of(
        snapshot,
        seed=settings.training.seed,
        config=config,
        seconds=result.seconds,
        sources=result.model.device_ids,
    )
    version = save_version(models, result.model, manifest)
    return {
        "version": version,
        "path": str(models / version),
        "heads": list(result.model.device_ids),
        "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
        "candidates": len(rows),
        "workloads": len(dataset.workload_ids),
        "table_version": snapshot.table_version,
        "seconds": result.seconds,
        "train_loss": result.history[-1].train_loss,
    }


def judge_heads(settings: FleetConfig, device_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Score every head on workloads held out in turn: means over workloads, with their 90 % intervals."""
    from transfer.evaluate import hold_out
    from transfer.splits import workload_folds

    snapshot = read_snapshot(Path(settings.store.path), device_ids)
    seed = settings.training.seed
    splits = workload_folds(snapshot.dataset, snapshot.workloads, settings.training.folds, seed)
    approaches = hold_out(
        snapshot.dataset,
        splits,
        train_config(settings.training.epochs),
        seed=seed,
        workers=len(os.sched_getaffinity(0)),
    )
    return {
        device_id: {
            **approach.metrics.summary(),
            "top1_interval": list(approach.top1_interval),
            "top5_interval": list(approach.top5_interval),
            "workloads": len(approach.metrics.groups),
        }
        for device_id, approach in approaches.items()
    }
