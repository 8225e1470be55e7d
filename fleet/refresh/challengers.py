"""The challengers of a refresh: one model by each way to train, kept as soon as it is there.

Called by `fleet.refresh.run`, whose plan says what to start from. One goes on from the shipped model by
boosting, one from the champion by training; others are trained from nothing. Imports torch when called.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import content_hash
from fleet.models.training import divide
from fleet.models.versions import manifest_of
from fleet.refresh.data import RefreshData
from fleet.refresh.request import EPOCHS, RefreshRequest, warm_epochs

if TYPE_CHECKING:
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.model.tlp_model import TlpModel

#: Name of the trained challengers in the folder of a request.
CHALLENGER = "challenger"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Challenger:
    """A trained model, and what its manifest says of the training."""

    model: TlpModel
    about: dict[str, Any]
    #: Tells it from all others, so that it is kept as a version once only.
    run: str


def challenger(
    way: str,
    request: RefreshRequest,
    run: str,
    base: FleetTLP | None,
    rows: np.ndarray,
    heads: Sequence[str],
    data: RefreshData,
) -> Challenger:
    """Train a challenger in one of the ways of `train_model`; read it if it is there already.

    It starts from `base`, or from nothing if that is None.

    Raises:
        TransferError: Training failed, or the data lack the features that the kind reads.
    """
    from transfer.adapt.heads import with_heads
    from transfer.model import checkpoint
    from transfer.train.config import TrainConfig
    from transfer.train.trainers import TrainingTask, train_model
    from transfer.train.training import TrainRun

    run = content_hash(run, way)
    kept = Path(request.folder) / CHALLENGER / way
    if kept.exists():
        model, manifest = checkpoint.load(kept)
        if manifest.get("run") == run:
            return Challenger(model=model, about=manifest["about"], run=run)
        shutil.rmtree(kept)
    dataset, seed = data.snapshot.dataset, request.seed
    config, init = TrainConfig(epochs=request.epochs, device=request.compute, lends=True), None
    if base is not None:
        config = replace(config, epochs=warm_epochs(config.epochs))
        init = with_heads(base, dataset, rows, heads, seed=seed)
    learn, stop = divide(data.snapshot, seed, rows)
    task = TrainingTask(
        dataset=dataset,
        rows=learn,
        devices=heads,
        config=config,
        seed=seed,
        stop_rows=stop,
        run=TrainRun(init=init, folder=Path(request.folder) / EPOCHS / run[:12]),
    )
    trained = train_model(way, task)
    about = {
        **manifest_of(
            data.snapshot, seed=seed, config=trained.config, seconds=trained.seconds, sources=heads
        ),
        "epochs_done": trained.epochs_done,
        "best_epoch": trained.best_epoch,
        "resumed_epochs": trained.resumed_epochs,
    }
    checkpoint.save(kept, trained.model, {"run": run, "about": about})
    return Challenger(model=trained.model, about=about, run=run)
