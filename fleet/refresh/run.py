"""One refresh, read top to bottom: read, train on from the champion, judge, publish what won.

Runs in the process of `fleet.refresh.process`. Every step leaves what the next one needs on the disk, so
that the same request goes on after a kill: the plan (version of the table, version to start from), the
epochs, the trained challenger, the version with the request's `run`. Imports torch when called.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.records import DeviceId, Family, WorkloadId, canonical_json, content_hash
from fleet.durable import write_durably
from fleet.errors import FleetError, StoreError
from fleet.models.judge import (
    Judge,
    publish_if_better,
    retention_reasons,
    training_provenance,
    verdicts_as_json,
)
from fleet.models.promotion import DeviceDecision, refusal, start_from, summary
from fleet.models.registry import Registry
from fleet.refresh.data import RefreshData, family_devices, held_workloads, read_refresh_data
from fleet.refresh.request import EPOCHS, PLAN, RefreshRequest, warm_epochs
from fleet.store.store import Store, StoreReader

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.model.fleet_tlp import FleetTLP
    from transfer.train.training import TrainConfig

#: Learning rate of a warm start over that of a training from nothing (the trade: `docs/models.md`).
WARM_RATE = 1.0
#: Candidates of a new device that choose the head to start from.
_LIKENESS = 512
#: Name of the trained challenger in the folder of a request.
CHALLENGER = "challenger"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a refresh decided before it began; kept, so that one that goes on decides the same."""

    table_version: int
    #: Version to start from; empty for a training from nothing.
    base: str
    why: str
    run: str


def run_refresh(request: RefreshRequest) -> dict[str, Any]:
    """Train a challenger of one family, judge it, publish what won.

    Returns:
        What came of it, JSON-ready.

    Raises:
        FleetError: There is nothing to learn from, or the store or the registry cannot be used.
        TransferError: Training failed.
    """
    started = time.monotonic()
    registry = Registry(Path(request.models))
    reader = Store.read(Path(request.store))
    folder = Path(request.folder)
    devices = _devices(reader, request)
    plan, base = _planned(request, registry, reader, devices)
    manifest_of_base = registry.manifest(plan.base) if plan.base else {}
    until = manifest_of_base.get("data_until", {})
    data = read_refresh_data(
        reader, devices, version=plan.table_version, new_since=min(until.values(), default=0.0)
    )
    dataset = data.snapshot.dataset
    held = held_workloads(data)
    is_held = np.array([one in held for one in dataset.workload_ids], dtype=np.bool_)[dataset.group]
    rows = np.flatnonzero(~is_held)
    heads, refused = _heads(dataset, rows, devices)
    if not heads:
        raise FleetError("no device has enough to learn from: " + "; ".join(one.reason for one in refused))
    model, about = _challenger(request, plan, base, dataset, rows, heads, data)
    trained = [WorkloadId(dataset.workload_ids[one]) for one in np.unique(dataset.group[rows]).tolist()]
    judge = Judge(
        registry,
        reader,
        dataset,
        data.snapshot.workloads,
        unguided=data.unguided,
        floors=data.floors,
    )
    verdicts = judge.verdicts(model, heads, trained)
    version, published = "", list[str]()
    if any(one.moves_on for one in verdicts):
        manifest = {
            **about,
            **training_provenance(dataset, rows, heads, _last(data), holds_out=bool(held)),
            "run": plan.run,
            "table_version": plan.table_version,
            "family": request.family,
            "reasons": list(request.reasons),
            "warm_start": plan.base or None,
            "warm_starts": int(manifest_of_base.get("warm_starts", 0)) + 1 if plan.base else 0,
            "verdicts": verdicts_as_json([*verdicts, *refused]),
        }
        version, published = publish_if_better(registry, model, manifest, verdicts)
        registry.prune(request.keep)
    elif registry.champions():
        registry.retain(retention_reasons(verdicts, f"a refresh from {plan.base or 'nothing'}"))
    shutil.rmtree(folder / CHALLENGER, ignore_errors=True)
    return {
        "kind": "refresh",
        "family": request.family,
        "version": version,
        "published": published,
        "verdicts": verdicts_as_json([*verdicts, *refused]),
        "text": summary([*verdicts, *refused]),
        "start": plan.base or "nothing",
        "why_start": plan.why,
        "table_version": plan.table_version,
        "candidates": len(dataset),
        "held_out_workloads": len(held),
        "workloads": len(dataset.workload_ids),
        "train_secs": about["train_secs"],
        "resumed_epochs": about["resumed_epochs"],
        "secs": time.monotonic() - started,
    }


def _devices(reader: StoreReader, request: RefreshRequest) -> list[DeviceId]:
    there = family_devices(reader, Family(request.family))
    wanted = [one for one in there if not request.device_ids or one in request.device_ids]
    if not wanted:
        raise FleetError(f"{reader.path} knows no device of the family {request.family}; collect first")
    return wanted


def _planned(
    request: RefreshRequest, registry: Registry, reader: StoreReader, devices: Sequence[DeviceId]
) -> tuple[_Plan, FleetTLP | None]:
    """The plan of this request as it was made first, and the model to start from."""
    from transfer.errors import TransferError
    from transfer.features.extractor import DEFAULT_SPEC

    path = Path(request.folder) / PLAN
    plan = None
    if path.exists():
        plan = _Plan(**json.loads(path.read_text()))
        try:
            next(iter(reader.columns(("attempt",), version=plan.table_version)), None)
            if plan.base and plan.base not in registry.versions():
                plan = None
        except StoreError:
            # The store has forgotten that version of the table meanwhile: begin again with the present one.
            plan = None
    if plan is None:
        shutil.rmtree(Path(request.folder) / CHALLENGER, ignore_errors=True)
        champions = registry.champions()
        serving = {str(one): champions[one].version for one in devices if one in champions}
        manifests = {one: registry.manifest(one) for one in set(serving.values())}
        base, why = start_from(serving, manifests, DEFAULT_SPEC.hash)
        run = content_hash(request.request_id, request.family, str(reader.version), base)
        plan = _Plan(table_version=reader.version, base=base, why=why, run=run)
    model = None
    if plan.base:
        from transfer.model import checkpoint

        try:
            model, _ = checkpoint.load(registry.path(plan.base), DEFAULT_SPEC)
        except TransferError as error:
            plan = replace(plan, base="", why=f"{plan.base} cannot be read ({str(error)[:120]})")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (canonical_json(asdict(plan)) + "\n").encode())
    return plan, model


def _heads(
    dataset: Dataset, rows: np.ndarray, devices: Sequence[DeviceId]
) -> tuple[list[str], list[DeviceDecision]]:
    """Devices with enough to learn from, and why the others have not."""
    heads: list[str] = []
    refused: list[DeviceDecision] = []
    for device_id in devices:
        counts = np.zeros(1, dtype=np.int64)
        if device_id in dataset.device_ids:
            column = dataset.column(device_id)
            counts = np.bincount(dataset.group[rows[np.isfinite(dataset.latency_secs[rows, column])]])
        verdict = refusal(device_id, int(counts[counts >= 2].sum()), int((counts >= 2).sum()))
        if verdict is None:
            heads.append(str(device_id))
        else:
            refused.append(verdict)
    return heads, refused


def _challenger(
    request: RefreshRequest,
    plan: _Plan,
    base: FleetTLP | None,
    dataset: Dataset,
    rows: np.ndarray,
    heads: Sequence[str],
    data: RefreshData,
) -> tuple[FleetTLP, dict[str, Any]]:
    """The trained challenger and what its manifest says of the training; read where it is there already."""
    from fleet.models.training import divide
    from transfer.model import checkpoint
    from transfer.train.training import TrainConfig, train

    kept = Path(request.folder) / CHALLENGER
    if kept.exists():
        model, manifest = checkpoint.load(kept)
        if manifest.get("run") == plan.run:
            about = manifest["about"]
            assert isinstance(about, dict)
            return model, about
        shutil.rmtree(kept)
    config = TrainConfig(epochs=request.epochs, device=request.compute)
    init = None
    if base is not None:
        config = warm_config(config)
        init = _with_heads(base, dataset, rows, heads, request.seed)
    learn, stop = divide(data.snapshot, request.seed, rows)
    result = train(
        dataset,
        learn,
        config=config,
        seed=request.seed,
        devices=heads,
        init=init,
        validation_rows=stop,
        run_folder=Path(request.folder) / EPOCHS / plan.run[:12],
    )
    about = {
        "candidates": len(dataset),
        "workloads": len(dataset.workload_ids),
        "devices": list(heads),
        "seed": request.seed,
        "train": asdict(config),
        "train_secs": result.seconds,
        "epochs_done": len(result.history),
        "best_epoch": result.best_epoch,
        "resumed_epochs": result.resumed_epochs,
    }
    checkpoint.save(kept, result.model, {"run": plan.run, "about": about})
    return result.model, about


def warm_config(config: TrainConfig) -> TrainConfig:
    """How a champion is trained on: for less long than from nothing."""
    return replace(
        config,
        epochs=warm_epochs(config.epochs),
        learning_rate=config.learning_rate * WARM_RATE,
    )


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


def _last(data: RefreshData) -> dict[str, float]:
    """Unix seconds of the last record of each device."""
    dataset = data.snapshot.dataset
    return {
        str(one): float(np.nanmax(data.measured_at[:, column]))
        for column, one in enumerate(dataset.device_ids)
    }


__all__ = ["CHALLENGER", "run_refresh", "warm_config"]
