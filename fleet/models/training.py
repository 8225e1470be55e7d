"""`fleet train`: from a store to the next model version, with early stopping, going on after a kill.

Reads the store, chooses what to learn from and what to judge on, and leaves the training to
`transfer.train.trainers`. Imports torch when called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.records import canonical_json, content_hash
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.judge import Judge, publish_if_better, verdicts_as_json
from fleet.models.promotion import DeviceDecision
from fleet.models.registry import Registry
from fleet.models.shipped_heads import ShippedHeads, boosting_provenance, serve_unserved
from fleet.models.shipped_model import ShippedModel
from fleet.models.training_rows import JudgedRows
from fleet.models.versions import (
    DatasetSnapshot,
    learnable,
    manifest_of,
    read_snapshot,
    train_config,
    training_provenance,
)
from fleet.store.store import Store
from transfer.model.kinds import BOOSTED, FLEET_TLP, KINDS, reads_published

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.train.config import TrainConfig
    from transfer.train.trainers import Trained, TrainingTask

#: Folder of the training runs beside that of the models: curves, and what is kept of a run that is not over.
RUNS = "training"
#: With fewer workloads each of them is worth more as something to learn from than as a judge.
ENOUGH_WORKLOADS = 40
#: Of these parts of the workloads one is held out, for early stopping.
_PARTS = 10


def train_version(
    settings: FleetConfig,
    models: Path,
    device_ids: Sequence[str],
    *,
    compute: str = "auto",
    publish: bool = True,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> JsonDict:
    """Train on everything that the store holds of some devices, and keep the models of `training.model`.

    Args:
        settings: Store, model, epochs, seed.
        models: Folder of the model versions; curves go beside it, into `training`.
        device_ids: Devices to learn; all of the store where empty.
        compute: Where: "auto", "cpu" or "cuda".
        publish: Let it serve the devices where it wins; else it is kept, and serves nobody.
        on_progress: Called with epochs done and epochs at most.

    Returns:
        What came of it, as plain values; if several were trained, of the one that serves more devices, with
        the others among its `others`. One goes on from the shipped model, if there is one.

    Raises:
        FleetError: A device was asked for that nothing can be learnt of, or there is none.
        TransferError: Training failed.
    """
    from transfer.train.trainers import TrainingTask, train_model
    from transfer.train.training import TrainRun

    kinds = KINDS[settings.training.model]
    registry = Registry(models)
    reader = Store.read(settings.store.path).parted(since := registry.environments_since())
    published = reads_published(kinds) or registry.asks_published(device_ids or registry.champions())
    judged = JudgedRows()
    snapshot = read_snapshot(reader, device_ids, published=published, judged=judged)
    dataset, seed = snapshot.dataset, settings.training.seed
    config = replace(train_config(settings.training.epochs), device=compute, lends=True)
    open_rows, kept_out = learnable(snapshot)
    rows, held = divide(snapshot, seed, open_rows)
    heads = _heads(snapshot, rows, device_ids)
    folder = models.parent / RUNS / _run_name(snapshot, config, seed, heads)
    task = TrainingTask(
        dataset=dataset,
        rows=rows,
        devices=heads,
        config=config,
        seed=seed,
        stop_rows=held,
        run=TrainRun(folder=folder, on_epoch=lambda done: on_progress(done.epoch, config.epochs)),
    )
    shipped = ShippedHeads(registry, reader, enabled=settings.onboarding.shipped)
    box = shipped.boosting_start(heads, dataset, open_rows) if FLEET_TLP in kinds else None
    tasks = _by_way(task, kinds, box)
    all_trained = [train_model(way, its_task) for way, its_task in tasks.items()]
    until = {device_id: counts.last_at for device_id, counts in reader.counts().items()}
    provenance = training_provenance(dataset, open_rows, heads, until, holds_out=bool(kept_out))
    provenance |= {"seed": seed, "environments_since": since}
    if publish:
        serve_unserved(shipped, heads)
    # As a refresh judges: on what no model chose, and beyond noise.
    judge = Judge(
        shipped=shipped,
        snapshot=snapshot,
        judged=judged,
        trained=provenance["trained_workloads"],
        inherited=frozenset() if box is None else box.trained_workloads,
    )
    verdicts = judge.verdicts([trained.model for trained in all_trained], heads)
    results = []
    for way, trained, decided in zip(tasks, all_trained, verdicts, strict=True):
        origin = boosting_provenance(box, provenance) if way == BOOSTED and box is not None else {}
        its_provenance = {**provenance, "way": way, **origin}
        results.append(_keep(registry, snapshot, trained, decided, its_provenance, publish=publish))
    # The one that serves more devices; the others stand beside it.
    result = max(results, key=lambda listed: len(listed["serves"]))
    if publish:
        result["given_back"] = judge.give_back(
            [name for name in heads if not any(name in listed["serves"] for listed in results)]
        )
    if len(results) > 1:
        result["others"] = [listed for listed in results if listed is not result]
    return result


def _by_way(task: TrainingTask, kinds: Sequence[str], box: ShippedModel | None) -> dict[str, TrainingTask]:
    """A task for each way to train, in the order in which equals take a place."""
    from transfer.adapt.heads import with_heads
    from transfer.train.training import TrainRun

    tasks = dict.fromkeys(kinds, task)
    if box is None:
        return tasks
    rows = np.union1d(task.rows, task.stop_rows)
    init = with_heads(box.model, task.dataset, rows, task.devices, seed=task.seed)
    # What went on from a thousand workloads, by a little, goes before what learnt from these alone.
    return {BOOSTED: replace(task, run=TrainRun(init=init)), **tasks}


def _keep(
    registry: Registry,
    snapshot: DatasetSnapshot,
    trained: Trained,
    decided: Sequence[DeviceDecision],
    provenance: Json,
    *,
    publish: bool,
) -> JsonDict:
    """Keep a trained model as a version; what a command prints of it, and of what was decided of it."""
    model, dataset = trained.model, snapshot.dataset
    epochs = {"epochs_done": trained.epochs_done, "best_epoch": trained.best_epoch}
    manifest = {
        **manifest_of(
            snapshot,
            seed=provenance["seed"],
            config=trained.config,
            seconds=trained.seconds,
            sources=model.device_ids,
        ),
        **epochs,
        **provenance,
        "verdicts": verdicts_as_json(decided),
    }
    if publish:
        version, serves = publish_if_better(registry, model, manifest, decided)
    else:
        version, serves = registry.add(model, manifest), []
    return {
        "version": version,
        "path": str(registry.folder / version),
        "published": publish,
        "devices_left_out": sorted(set(map(str, dataset.device_ids)) - set(model.device_ids)),
        "model_kind": model.kind,
        "way": provenance["way"],
        "heads": list(model.device_ids),
        "serves": {of.device_id: of.reason for of in decided if of.device_id in serves},
        "kept_champions": {
            of.device_id: of.reason if publish else f"not published; {of.reason}"
            for of in decided
            if of.device_id not in serves
        },
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "candidates": len(dataset.candidate_ids),
        "workloads": len(dataset.workload_ids),
        "table_version": snapshot.table_version,
        "seconds": trained.seconds,
        **epochs,
        **trained.curve,
    }


def divide(snapshot: DatasetSnapshot, seed: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Part rows that may be learnt from into some to learn from, and some of other workloads to stop by.

    Nothing is to stop by where workloads are few.
    """
    from transfer.data.splits import workload_folds

    dataset = snapshot.dataset
    if len(np.unique(dataset.group[rows])) < ENOUGH_WORKLOADS:
        return rows, np.zeros(0, dtype=np.int64)
    first = workload_folds(dataset.take(rows), snapshot.workloads, _PARTS, seed)[0]
    return rows[first.train], rows[first.test]


def _heads(snapshot: DatasetSnapshot, rows: np.ndarray, requested: Sequence[str]) -> tuple[str, ...]:
    """Devices to train a head for: those asked for, or all that something can be learnt of.

    Raises:
        FleetError: Nothing can be learnt of one that was asked for, or of any.
    """
    from transfer.train.rows import trainable_devices

    able = trainable_devices(snapshot.dataset, rows)
    unable = [name for name in requested if name not in able]
    if unable or not able:
        raise FleetError(
            f"nothing to learn of {', '.join(unable) or 'any device'}: no workload has two ok candidates "
            "there; measure more with `fleet collect`, or leave the device out"
        )
    return able


def _run_name(snapshot: DatasetSnapshot, config: TrainConfig, seed: int, heads: Sequence[str]) -> str:
    """The same for the same data, settings and seed, so that the same command goes on after a kill."""
    identity = {"table": snapshot.table_version, "seed": seed, "heads": list(heads), "config": asdict(config)}
    candidates = content_hash(*snapshot.dataset.candidate_ids)
    return content_hash(canonical_json(identity), snapshot.dataset.spec.hash, candidates)[:12]
