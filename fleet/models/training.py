"""`fleet train`: from a store to the next model version, with early stopping, going on after a kill.

Reads the store, chooses what to learn from and what to judge on, and leaves the training to
`transfer.train.training`, or to several workers of `fleet.models.ray_train`. Imports torch when called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import canonical_json, content_hash
from fleet.errors import FleetError
from fleet.models.holdout import held_out
from fleet.models.judge import Judge, publish_if_better, training_provenance, verdicts_as_json
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot, manifest_of, read_snapshot, train_config
from fleet.store.store import Store

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.train.training import TrainConfig, TrainResult

#: Folder of the training runs beside that of the models: curves, and what is kept of a run that is not over.
RUNS = "training"
#: With fewer workloads each of them is worth more as something to learn from than as a judge.
ENOUGH_WORKLOADS = 40
#: Of these parts of the workloads one is held out, for early stopping.
_PARTS = 10
#: Each process of the transfer check gets its own copy of the dataset: beyond this there is one process.
_MOST_COPIED = 100_000


def train_version(
    settings: FleetConfig,
    models: Path,
    device_ids: Sequence[str],
    *,
    workers: int = 1,
    compute: str = "auto",
    check: bool = False,
    publish: bool = True,
    on_check: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Train on everything that the store holds of some devices, and keep the model.

    Args:
        settings: Store, epochs, seed.
        models: Folder of the model versions; curves go beside it, into `training`.
        device_ids: Devices to learn; all of the store where empty.
        workers: Processes that share each batch.
        compute: Where: "auto", "cpu" or "cuda".
        check: Tell for each head whether the other devices help or hurt it; trains many more models.
        publish: Let it serve the devices where it wins; else it is kept, and serves nobody.
        on_check: Told how many models of the check are trained, and of how many.

    Returns:
        What came of it, as plain values.

    Raises:
        FleetError: A device was asked for that nothing can be learnt of, or there is none.
        TransferError: Training failed.
    """
    snapshot = read_snapshot(Path(settings.store.path), device_ids)
    dataset = snapshot.dataset
    config = replace(train_config(settings.training.epochs), device=compute)
    seed = settings.training.seed
    kept_out = held_out(snapshot.workloads[one] for one in dataset.workload_ids)
    open_rows = np.flatnonzero([dataset.workload_ids[one] not in kept_out for one in dataset.group.tolist()])
    rows, held = divide(snapshot, seed, open_rows)
    heads = _heads(snapshot, rows, device_ids)
    run_folder = models.parent / RUNS / _run_name(snapshot, config, seed, heads)
    result = _train(snapshot, rows, held, heads, config, seed, workers, run_folder)
    manifest = manifest_of(
        snapshot, seed=seed, config=config, seconds=result.seconds, sources=result.model.device_ids
    )
    about = {
        "epochs_done": len(result.history),
        "best_epoch": result.best_epoch,
        "held_out_workloads": len(np.unique(dataset.group[held])),
        "workers": workers,
    }
    reader = Store.read(Path(settings.store.path))
    registry = Registry(models)
    until = {one: counts.last_at for one, counts in reader.counts().items()}
    told = training_provenance(dataset, open_rows, heads, until, holds_out=bool(kept_out))
    verdicts = Judge(registry, reader, dataset, snapshot.workloads).verdicts(
        result.model, heads, told["trained_workloads"]
    )
    manifest = {**manifest, **about, **told, "verdicts": verdicts_as_json(verdicts)}
    if publish:
        version, serves = publish_if_better(registry, result.model, manifest, verdicts)
    else:
        version, serves = registry.add(result.model, manifest), []
    last = result.history[result.best_epoch - 1]
    found: dict[str, Any] = {
        "version": version,
        "path": str(models / version),
        "heads": list(result.model.device_ids),
        "published": publish,
        "serves": {one.device_id: one.reason for one in verdicts if one.device_id in serves},
        "kept_champions": {
            one.device_id: one.reason if publish else f"not published; {one.reason}"
            for one in verdicts
            if one.device_id not in serves
        },
        "devices_left_out": sorted(set(map(str, dataset.device_ids)) - set(heads)),
        "parameters": sum(parameter.numel() for parameter in result.model.parameters()),
        "candidates": len(dataset.candidate_ids),
        "workloads": len(dataset.workload_ids),
        "workloads_too_small": result.lonely_workloads,
        "table_version": snapshot.table_version,
        "seconds": result.seconds,
        **about,
        "resumed_epochs": result.resumed_epochs,
        "train_loss": last.train_loss,
        "validation_loss": last.validation_loss,
        "samples_per_s": sum(r.samples for r in result.history)
        / max(1e-9, sum(r.seconds for r in result.history)),
        "curves": str(run_folder),
    }
    if check:
        found["transfer"] = check_heads(snapshot, settings, config, heads, on_check)
    return found


def check_heads(
    snapshot: DatasetSnapshot,
    settings: FleetConfig,
    config: TrainConfig,
    heads: Sequence[str],
    on_check: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Tell for each head which sources help and which hurt it, on workloads held out in turn."""
    from transfer.data.splits import workload_folds
    from transfer.evaluate.negative_transfer import check_transfer

    seed = settings.training.seed
    splits = workload_folds(snapshot.dataset, snapshot.workloads, settings.training.folds, seed)
    workers = len(os.sched_getaffinity(0)) if len(snapshot.dataset) <= _MOST_COPIED else 1
    return check_transfer(
        snapshot.dataset, splits, config, seed=seed, devices=heads, workers=workers, on_progress=on_check
    ).to_json()


def divide(snapshot: DatasetSnapshot, seed: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Part rows into some to learn from, and some of other workloads to stop by.

    Args:
        snapshot: Where the rows are from.
        seed: Of the choice.
        rows: Rows that may be learnt from.

    Returns:
        Both parts; nothing to stop by where workloads are few.
    """
    from transfer.data.splits import workload_folds

    dataset = snapshot.dataset
    if len(np.unique(dataset.group[rows])) < ENOUGH_WORKLOADS:
        return rows, np.zeros(0, dtype=np.int64)
    first = workload_folds(dataset.take(rows), snapshot.workloads, _PARTS, seed)[0]
    return rows[first.train], rows[first.test]


def _heads(snapshot: DatasetSnapshot, rows: np.ndarray, asked: Sequence[str]) -> tuple[str, ...]:
    """Devices to train a head for: those asked for, or all that something can be learnt of.

    Raises:
        FleetError: Nothing can be learnt of one that was asked for, or of any.
    """
    from transfer.train.training import trainable_devices

    able = trainable_devices(snapshot.dataset, rows)
    unable = [name for name in asked if name not in able]
    if unable or not able:
        raise FleetError(
            f"nothing to learn of {', '.join(unable) or 'any device'}: no workload has two ok candidates "
            "there; measure more with `fleet collect`, or leave the device out"
        )
    return able


def _run_name(snapshot: DatasetSnapshot, config: TrainConfig, seed: int, heads: Sequence[str]) -> str:
    """The same for the same data, settings and seed, so that the same command goes on after a kill."""
    told = {"table": snapshot.table_version, "seed": seed, "heads": list(heads), "config": asdict(config)}
    candidates = content_hash(*snapshot.dataset.candidate_ids)
    return content_hash(canonical_json(told), snapshot.dataset.spec.hash, candidates)[:12]


def _train(
    snapshot: DatasetSnapshot,
    rows: np.ndarray,
    held: np.ndarray,
    heads: Sequence[str],
    config: TrainConfig,
    seed: int,
    workers: int,
    run_folder: Path,
) -> TrainResult:
    if workers > 1:
        from fleet.models.ray_train import train_with_workers

        return train_with_workers(
            snapshot.dataset,
            rows,
            config=config,
            seed=seed,
            workers=workers,
            run_folder=run_folder,
            devices=heads,
            validation_rows=held,
        )
    from transfer.train.training import train

    return train(
        snapshot.dataset,
        rows,
        config=config,
        seed=seed,
        devices=heads,
        validation_rows=held,
        run_folder=run_folder,
    )
