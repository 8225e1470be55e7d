"""One training of a family's model: challengers by each way to train, judged side by side.

`fleet train` (`train_version`) trains from nothing on all that a store holds; the refresh of a daemon
(`fleet.refresh.run`) goes on from a champion. Both call `train_challengers`, and decide themselves what is
kept. Imports torch when called.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.records import WorkloadId, canonical_json, content_hash
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.judge import Judge, publish_if_better, verdicts_as_json
from fleet.models.promotion import DeviceDecision
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHeads, boosting_provenance, serve_unserved
from fleet.models.training_rows import JudgedRows
from fleet.models.versions import (
    INHERITED,
    DatasetSnapshot,
    learnable,
    manifest_of,
    read_snapshot,
    train_config,
    training_provenance,
)
from fleet.store.store import Store
from transfer.model.kinds import BOOSTED, FLEET_TLP, KINDS, is_extensible, reads_published

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.model.tlp_model import TlpModel
    from transfer.train.rows import EpochReport, TrainConfig

#: Folder of the training runs beside that of the models: what is left of a run that is not over, and curves.
RUNS = "training"
#: In the folder of a training: trained challengers until they are judged, and what each epoch leaves.
CHALLENGER, EPOCHS = "challenger", "epochs"
#: With fewer workloads each of them is worth more as something to learn from than as a judge.
ENOUGH_WORKLOADS = 40
#: Of these parts of the workloads one is held out, for early stopping.
_PARTS = 10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WarmStart:
    """The version that a training goes on from."""

    version: str
    model: FleetTLP
    manifest: Json
    #: What its weights have seen (`fleet.models.versions.training_workloads`).
    workloads: frozenset[WorkloadId]
    #: Epochs of a training that goes on from it.
    epochs: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Training:
    """What the challengers of one training have in common."""

    #: Tells it from others: a training of the same name goes on where a killed one was.
    run: str
    #: Its own, for what a killed one leaves.
    folder: Path
    shipped: ShippedHeads
    snapshot: DatasetSnapshot
    judged: JudgedRows
    #: Devices to give a head.
    heads: Sequence[str]
    #: A key of `KINDS`.
    model: str
    config: TrainConfig
    seed: int
    #: Further keys of the manifests.
    about: Json
    start: WarmStart | None = None
    on_epoch: Callable[[EpochReport], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Challenger:
    """A trained model, and what was decided of it."""

    model: TlpModel
    #: Tells it from all others, so that it is kept as a version once only.
    run: str
    #: What its manifest says but for the verdicts.
    manifest: JsonDict
    #: For people only: losses, speed, and where the curves are.
    curve: Json
    verdicts: Sequence[DeviceDecision] = ()


def train_challengers(training: Training) -> tuple[dict[str, Challenger], Judge]:
    """Train a model by each way, and judge them all on the same held-out candidates.

    Returns:
        The challengers by way, in the order in which equals take a place; and who judged them.

    Raises:
        TransferError: Training failed, or the data lack the features that a kind reads.
    """
    snapshot, start, heads = training.snapshot, training.start, training.heads
    kinds, (rows, held) = KINDS[training.model], learnable(snapshot)
    box = None
    if FLEET_TLP in kinds:
        box = training.shipped.boosting_start(heads, snapshot.dataset, rows)
    # What went on from the thousand workloads of the shipped model, by a little, goes first.
    starts: dict[str, FleetTLP | None] = {} if box is None else {BOOSTED: box.model}
    starts |= {kind: start.model if start and is_extensible(kind) else None for kind in kinds}
    trained = {way: _challenger(training, way, init, rows) for way, init in starts.items()}
    last_at = np.nanmax(training.judged.measured_at(snapshot.dataset), axis=0)
    data_until = dict(zip(snapshot.dataset.device_ids, last_at.tolist(), strict=True))
    provenance = training_provenance(snapshot.dataset, rows, heads, data_until, holds_out=bool(held)) | dict(
        training.about
    )
    learnt = provenance["trained_workloads"]
    judge = Judge(
        shipped=training.shipped,
        snapshot=snapshot,
        judged=training.judged,
        learnt=frozenset(learnt).union(
            start.workloads if start else (), box.trained_workloads if box else ()
        ),
    )
    verdicts = judge.verdicts([challenger.model for challenger in trained.values()], heads)
    origins: dict[str, JsonDict] = {}
    if box is not None:
        origins[BOOSTED] = boosting_provenance(box, provenance)
    if start is not None:
        origins[FLEET_TLP] = {
            "warm_start": start.version,
            "warm_starts": int(start.manifest.get("warm_starts", 0)) + 1,
            INHERITED: sorted(start.workloads - set(learnt)),
        }
    judged = {}
    for (way, challenger), decided in zip(trained.items(), verdicts, strict=True):
        shared = {**provenance, "way": way, "warm_start": None, "warm_starts": 0}
        manifest = {**challenger.manifest, **shared, **origins.get(way, {})}
        judged[way] = replace(challenger, manifest=manifest, verdicts=decided)
    return judged, judge


def _challenger(training: Training, way: str, init: FleetTLP | None, rows: np.ndarray) -> Challenger:
    """Train in one of the ways of `train_model`, from `init` if given; read the model if it is there."""
    from transfer.adapt.heads import with_heads
    from transfer.model import checkpoint
    from transfer.train.trainers import TrainingTask, train_model
    from transfer.train.training import TrainRun

    run = content_hash(training.run, way)
    challenger_folder = training.folder / CHALLENGER / way
    if challenger_folder.exists():
        model, saved = checkpoint.load(challenger_folder)
        if saved.get("run") == run:
            return Challenger(model=model, run=run, manifest=saved["manifest"], curve=saved["curve"])
        shutil.rmtree(challenger_folder)
    snapshot, seed, config = training.snapshot, training.seed, training.config
    if init is not None:
        init = with_heads(init, snapshot.dataset, rows, training.heads, seed=seed)
        if training.start is not None:
            config = replace(config, epochs=training.start.epochs)
    learn, stop = divide(snapshot, seed, rows)
    folder = training.folder / EPOCHS / run[:12]
    task = TrainingTask(
        dataset=snapshot.dataset,
        rows=learn,
        devices=training.heads,
        config=config,
        seed=seed,
        stop_rows=stop,
        run=TrainRun(init=init, folder=folder, on_epoch=training.on_epoch),
    )
    started = time.perf_counter()
    trained = train_model(way, task)
    seconds = time.perf_counter() - started
    manifest = {
        **manifest_of(snapshot, seed=seed, config=trained.config, seconds=seconds, sources=training.heads),
        "epochs_done": trained.epochs_done,
        "best_epoch": trained.best_epoch,
        "resumed_epochs": trained.resumed_epochs,
    }
    curve = dict(trained.curve)
    checkpoint.save(challenger_folder, trained.model, {"run": run, "manifest": manifest, "curve": curve})
    return Challenger(model=trained.model, run=run, manifest=manifest, curve=curve)


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
    registry = Registry(models)
    reader = Store.read(settings.store.path).parted(since := registry.environments_since())
    published = reads_published(KINDS[settings.training.model]) or registry.asks_published(
        device_ids or registry.champions()
    )
    judged, seed = JudgedRows(), settings.training.seed
    snapshot = read_snapshot(reader, device_ids, published=published, judged=judged)
    config = replace(train_config(settings.training.epochs), device=compute, lends=True)
    heads = _heads(snapshot, divide(snapshot, seed, learnable(snapshot)[0])[0], device_ids)
    shipped = ShippedHeads(registry, reader, enabled=settings.onboarding.shipped)
    if publish:
        serve_unserved(shipped, heads)
    run = _run_name(snapshot, config, seed, heads)
    training = Training(
        run=run,
        folder=models.parent / RUNS / run,
        shipped=shipped,
        snapshot=snapshot,
        judged=judged,
        heads=heads,
        model=settings.training.model,
        config=config,
        seed=seed,
        about={"environments_since": since},
        on_epoch=lambda done: on_progress(done.epoch, config.epochs),
    )
    challengers, judge = train_challengers(training)
    results = [_keep(registry, snapshot, challenger, publish=publish) for challenger in challengers.values()]
    shutil.rmtree(training.folder / CHALLENGER, ignore_errors=True)
    # The one that serves more devices; the others stand beside it.
    result = max(results, key=lambda listed: len(listed["serves"]))
    if publish:
        result["given_back"] = judge.give_back(
            [name for name in heads if not any(name in listed["serves"] for listed in results)]
        )
    if len(results) > 1:
        result["others"] = [listed for listed in results if listed is not result]
    return result


def _keep(
    registry: Registry, snapshot: DatasetSnapshot, challenger: Challenger, *, publish: bool
) -> JsonDict:
    """Keep a challenger as a version; what a command prints of it, and of what was decided of it."""
    model, decided = challenger.model, challenger.verdicts
    manifest = {**challenger.manifest, "verdicts": verdicts_as_json(decided)}
    if publish:
        version, serves = publish_if_better(registry, model, manifest, decided)
    else:
        version, serves = registry.add(model, manifest), []
    copied = ("way", "candidates", "workloads", "table_version", "epochs_done", "best_epoch")
    return {
        "version": version,
        "path": str(registry.folder / version),
        "published": publish,
        "devices_left_out": sorted(set(map(str, snapshot.dataset.device_ids)) - set(model.device_ids)),
        "model_kind": model.kind,
        "heads": list(model.device_ids),
        "serves": {of.device_id: of.reason for of in decided if of.device_id in serves},
        "kept_champions": {
            of.device_id: of.reason if publish else f"not published; {of.reason}"
            for of in decided
            if of.device_id not in serves
        },
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **{name: manifest[name] for name in copied},
        "seconds": manifest["train_secs"],
        **challenger.curve,
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
