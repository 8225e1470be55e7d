"""`fleet train`: from a store to the next model version, with early stopping, going on after a kill.

Reads the store, chooses what to learn from and what to judge on, and leaves the training to
`transfer.train.training`, or to several workers of `fleet.models.ray_train`. Imports torch when called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import canonical_json, content_hash
from fleet.errors import FleetError
from fleet.models.judge import Judge, publish_if_better, training_provenance, verdicts_as_json
from fleet.models.judged_rows import JudgedRows
from fleet.models.promotion import DeviceDecision
from fleet.models.registry import Registry
from fleet.models.versions import (
    DatasetSnapshot,
    learnable,
    manifest_of,
    published_layout,
    read_snapshot,
    train_config,
)
from fleet.store.store import Store
from transfer.model.kinds import FLEET_TLP, KINDS, MTL_TLP
from transfer.processes import workers_for

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.model.mtl_tlp import TlpModel
    from transfer.train.config import TrainConfig
    from transfer.train.published_procedure import MtlTlpResult, TlpConfig
    from transfer.train.training import TrainResult, TrainRun

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
    workers: int = 1,
    compute: str = "auto",
    check: bool = False,
    publish: bool = True,
    on_progress: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Train on everything that the store holds of some devices, and keep the models of `training.model`.

    Args:
        settings: Store, model, epochs, seed.
        models: Folder of the model versions; curves go beside it, into `training`.
        device_ids: Devices to learn; all of the store where empty.
        workers: Processes that share each batch.
        compute: Where: "auto", "cpu" or "cuda".
        check: Tell for each head whether the other devices help or hurt it; trains many more models.
        publish: Let it serve the devices where it wins; else it is kept, and serves nobody.
        on_progress: Called with `train`, epochs done and epochs at most, later with `check`, models done and
            all models of the check.

    Returns:
        What came of it, as plain values; where two were trained, of the one that serves more devices, with
        the other among its `others`.

    Raises:
        FleetError: A device was asked for that nothing can be learnt of, or there is none; or what was asked
            for is for a FleetTLP only.
        TransferError: Training failed.
    """
    from transfer.train.training import TrainRun

    kinds = _kinds(settings, is_plain=workers == 1 and not check)
    registry = Registry(models)
    reader = Store.read(settings.store.path).parted(since := registry.environments_since())
    published = MTL_TLP in kinds or registry.asks_published(device_ids or registry.champions())
    judged = JudgedRows()
    snapshot = read_snapshot(reader, device_ids, published=published, judged=judged)
    dataset = snapshot.dataset
    config = replace(train_config(settings.training.epochs), device=compute, lends=True)
    seed = settings.training.seed
    open_rows, kept_out = learnable(snapshot)
    rows, held = divide(snapshot, seed, open_rows)
    heads = _heads(snapshot, rows, device_ids)
    made: list[_Trained] = []
    if FLEET_TLP in kinds:
        run_folder = models.parent / RUNS / _run_name(snapshot, config, seed, heads)
        run = TrainRun(
            folder=run_folder, on_epoch=lambda done: on_progress("train", done.epoch, config.epochs)
        )
        result = _train(snapshot, rows, held, heads, config, seed, workers, run)
        made.append(_told(result, config, len(np.unique(dataset.group[held])), workers, run_folder))
    if MTL_TLP in kinds:
        made.append(_told_as_published(*as_published(snapshot, open_rows, heads, config, seed)))
    until = {one: counts.last_at for one, counts in reader.counts().items()}
    told = training_provenance(dataset, open_rows, heads, until, holds_out=bool(kept_out))
    # As a refresh judges: on what no model chose, and beyond noise.
    judge = Judge(registry, reader, snapshot, judged.not_ranked(dataset), judged.floors)
    verdicts = judge.verdicts([one.model for one in made], heads, told["trained_workloads"])
    each = []
    for one, decided in zip(made, verdicts, strict=True):
        manifest = {
            **manifest_of(
                snapshot, seed=seed, config=one.config, seconds=one.seconds, sources=one.model.device_ids
            ),
            **one.about,
            **told,
            "environments_since": since,
            "verdicts": verdicts_as_json(decided),
        }
        if publish:
            version, serves = publish_if_better(registry, one.model, manifest, decided)
        else:
            version, serves = registry.add(one.model, manifest), []
        each.append(
            {
                "version": version,
                "path": str(models / version),
                "published": publish,
                "devices_left_out": sorted(set(map(str, dataset.device_ids)) - set(heads)),
                **_listed(one, snapshot, decided, serves, publish=publish),
            }
        )
    # The one that serves more devices; the other stands beside it.
    found: dict[str, Any] = max(each, key=lambda one: len(one["serves"]))
    if len(each) > 1:
        found["others"] = [one for one in each if one is not found]
    if check:
        found["transfer"] = check_heads(snapshot, settings, config, heads, partial(on_progress, "check"))
    return found


def _kinds(settings: FleetConfig, *, is_plain: bool) -> tuple[str, ...]:
    """Kinds of models to train; several workers and the transfer check are no plain training.

    Raises:
        FleetError: They are asked for with an MTL-TLP.
    """
    kinds = KINDS[settings.training.model]
    if kinds != (FLEET_TLP,) and not is_plain:
        raise FleetError(
            f"training.model is {settings.training.model}, but several workers and the transfer check are "
            "for fleet_tlp only; give --model fleet_tlp, or leave them out"
        )
    return kinds


def _listed(
    one: _Trained,
    snapshot: DatasetSnapshot,
    decided: Sequence[DeviceDecision],
    serves: Collection[str],
    *,
    publish: bool,
) -> dict[str, Any]:
    """What a command prints of a trained model, and of what was decided of it device by device."""
    return {
        "model_kind": one.model.kind,
        "heads": list(one.model.device_ids),
        "serves": {of.device_id: of.reason for of in decided if of.device_id in serves},
        "kept_champions": {
            of.device_id: of.reason if publish else f"not published; {of.reason}"
            for of in decided
            if of.device_id not in serves
        },
        "parameters": sum(parameter.numel() for parameter in one.model.parameters()),
        "candidates": len(snapshot.dataset.candidate_ids),
        "workloads": len(snapshot.dataset.workload_ids),
        "table_version": snapshot.table_version,
        "seconds": one.seconds,
        **one.about,
        **one.curve,
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trained:
    """A trained model, and what is told of it."""

    model: TlpModel
    config: TrainConfig | TlpConfig
    seconds: float
    #: For its manifest.
    about: Mapping[str, Any]
    #: For people only.
    curve: Mapping[str, Any]


def _told(
    result: TrainResult, config: TrainConfig, held_out_workloads: int, workers: int, run_folder: Path
) -> _Trained:
    """What is told of a FleetTLP."""
    last = result.history[result.best_epoch - 1]
    return _Trained(
        model=result.model,
        config=config,
        seconds=result.seconds,
        about={
            "epochs_done": len(result.history),
            "best_epoch": result.best_epoch,
            "held_out_workloads": held_out_workloads,
            "workers": workers,
        },
        curve={
            "workloads_too_small": result.lonely_workloads,
            "resumed_epochs": result.resumed_epochs,
            "train_loss": last.train_loss,
            "validation_loss": last.validation_loss,
            "samples_per_s": sum(r.samples for r in result.history)
            / max(1e-9, sum(r.seconds for r in result.history)),
            "curves": str(run_folder),
        },
    )


def as_published(
    snapshot: DatasetSnapshot, rows: np.ndarray, heads: Sequence[str], config: TrainConfig, seed: int
) -> tuple[MtlTlpResult, TlpConfig]:
    """Train an MTL-TLP where a FleetTLP would be trained with `config`; it and how it was trained.

    From nothing; it holds back rows of its own to choose the epoch by, as published.
    """
    from transfer.train.published_procedure import published_config, train_mtl_tlp

    theirs = published_config(config)
    layout = published_layout(snapshot.devices[one][0] for one in snapshot.dataset.device_ids)
    result = train_mtl_tlp(snapshot.dataset, rows, layout=layout, config=theirs, seed=seed, devices=heads)
    return result, theirs


def _told_as_published(result: MtlTlpResult, theirs: TlpConfig) -> _Trained:
    """What is told of an MTL-TLP."""
    losses = result.validation_losses
    return _Trained(
        model=result.model,
        config=theirs,
        seconds=result.seconds,
        about={"epochs_done": theirs.epochs, "best_epoch": result.best_epoch, "workers": 1},
        curve={"validation_loss": losses[result.best_epoch - 1] if losses else None},
    )


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
    workers = workers_for(len(snapshot.dataset), len(splits) * len(heads) * config.epochs)
    return check_transfer(
        snapshot.dataset, splits, config, seed=seed, devices=heads, workers=workers, on_progress=on_check
    ).to_json()


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


def _heads(snapshot: DatasetSnapshot, rows: np.ndarray, asked: Sequence[str]) -> tuple[str, ...]:
    """Devices to train a head for: those asked for, or all that something can be learnt of.

    Raises:
        FleetError: Nothing can be learnt of one that was asked for, or of any.
    """
    from transfer.train.rows import trainable_devices

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
    run: TrainRun,
) -> TrainResult:
    if workers > 1:
        assert run.folder is not None, "the workers meet in it"
        from fleet.models.ray_train import train_with_workers

        return train_with_workers(
            snapshot.dataset,
            rows,
            config=config,
            seed=seed,
            workers=workers,
            run_folder=run.folder,
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
        run=run,
    )
