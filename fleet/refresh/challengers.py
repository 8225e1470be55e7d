"""The challengers of a refresh: one model of each kind that is to be trained, kept as soon as it is there.

Called by `fleet.refresh.run`, whose plan says what to start from. A FleetTLP goes on from its champion; an
MTL-TLP is trained from nothing, as published. Imports torch when called.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import content_hash
from fleet.models.training import as_published, divide
from fleet.refresh.data import RefreshData
from fleet.refresh.request import EPOCHS, RefreshRequest, warm_epochs
from transfer.model.kinds import FLEET_TLP

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.model.mtl_tlp import TlpModel

#: Candidates of a new device that choose the head to start from.
_LIKENESS = 512
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
    kind: str,
    request: RefreshRequest,
    run: str,
    base: FleetTLP | None,
    rows: np.ndarray,
    heads: Sequence[str],
    data: RefreshData,
) -> Challenger:
    """Train a challenger of a kind on some rows of the data; read it where it is there already.

    A FleetTLP starts from `base`, or from nothing where that is None.

    Raises:
        TransferError: Training failed, or the data lack the features that an MTL-TLP reads.
    """
    from transfer.model import checkpoint
    from transfer.train.config import TrainConfig

    if kind != FLEET_TLP:
        run = content_hash(run, kind)
    folder = Path(request.folder) / CHALLENGER / kind
    if folder.exists():
        model, manifest = checkpoint.load(folder)
        if manifest.get("run") == run:
            return Challenger(model=model, about=manifest["about"], run=run)
        shutil.rmtree(folder)
    if kind == FLEET_TLP:
        model, training_notes = _fleet_tlp(request, run, base, rows, heads, data)
    else:
        config = TrainConfig(epochs=request.epochs, device=request.compute)
        result, theirs = as_published(data.snapshot, rows, heads, config, request.seed)
        model = result.model
        training_notes = {"train": asdict(theirs), "train_secs": result.seconds, "resumed_epochs": 0}
        training_notes |= {"epochs_done": theirs.epochs, "best_epoch": result.best_epoch}
    dataset = data.snapshot.dataset
    about = {
        "candidates": len(dataset),
        "workloads": len(dataset.workload_ids),
        "devices": list(heads),
        "seed": request.seed,
        **training_notes,
    }
    checkpoint.save(folder, model, {"run": run, "about": about})
    return Challenger(model=model, about=about, run=run)


def _fleet_tlp(
    request: RefreshRequest,
    run: str,
    base: FleetTLP | None,
    rows: np.ndarray,
    heads: Sequence[str],
    data: RefreshData,
) -> tuple[TlpModel, dict[str, Any]]:
    from transfer.train.config import TrainConfig
    from transfer.train.training import TrainRun, train

    dataset = data.snapshot.dataset
    config = TrainConfig(epochs=request.epochs, device=request.compute, lends=True)
    init = None
    if base is not None:
        config = replace(config, epochs=warm_epochs(config.epochs))
        init = _with_heads(base, dataset, rows, heads, request.seed)
    learn, stop = divide(data.snapshot, request.seed, rows)
    result = train(
        dataset,
        learn,
        config=config,
        seed=request.seed,
        devices=heads,
        validation_rows=stop,
        run=TrainRun(init=init, folder=Path(request.folder) / EPOCHS / run[:12]),
    )
    return result.model, {
        "train": asdict(config),
        "train_secs": result.seconds,
        "epochs_done": len(result.history),
        "best_epoch": result.best_epoch,
        "resumed_epochs": result.resumed_epochs,
    }


def _with_heads(
    base: FleetTLP, dataset: Dataset, rows: np.ndarray, heads: Sequence[str], seed: int
) -> FleetTLP:
    """The base with exactly these heads; a new one begins like the head that orders its candidates best."""
    from transfer.adapt.heads import with_target_head

    model = base.copy()
    for device_id in heads:
        if device_id not in model.device_ids:
            measured = rows[np.isfinite(dataset.latency_secs[rows, dataset.column(device_id)])]
            random = np.random.default_rng(seed)
            some = np.sort(random.permutation(measured)[:_LIKENESS])
            model = with_target_head(model, dataset.take(some), device_id, seed=seed)
    for device_id in model.device_ids:
        if device_id not in heads:
            model.drop_head(device_id)
    return model
