"""One refresh, read top to bottom: read, train the challengers, judge, publish what won.

Runs in the process of `fleet.refresh.process`. Every step leaves what the next one needs on the disk, so
that the same request goes on after a kill: the plan (version of the table, version to start from), the
epochs, the trained challenger, the version with the request's `run`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from agents.files import write_durably
from agents.records import DeviceId, Family, canonical_json, content_hash
from fleet.errors import FleetError, StoreError, TooFewRecordsError
from fleet.json_types import JsonDict
from fleet.models.judge import (
    contaminated_parents,
    counting_verdicts,
    publish_if_better,
    retention_reasons,
    verdicts_as_json,
)
from fleet.models.promotion import DecisionKind, DeviceDecision, refusal, start_from, summary
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHeads, serve_unserved
from fleet.models.training import CHALLENGER, Challenger, Training, WarmStart, train_challengers
from fleet.models.training_rows import JudgedRows, RecentPart
from fleet.models.versions import learnable, load_snapshot, train_config, training_workloads
from fleet.onboarding.adaptation import family_devices
from fleet.refresh.request import PLAN, RefreshRequest, warm_epochs
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.adapt.maml import Maml
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.extractor import DEFAULT_SPEC
from transfer.model import checkpoint
from transfer.model.kinds import BOOSTED, KINDS, is_extensible, reads_published


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a refresh decided before it began; kept, so that one that goes on decides the same."""

    table_version: int
    #: Version to start from; empty for a training from nothing.
    base: str
    why: str
    run: str


def run_refresh(request: RefreshRequest) -> JsonDict:
    """Train the challengers of one family, judge them, publish what won.

    Each challenger is a version of its own. One that lost everywhere is not kept; but one that new devices
    can start from is where another won.

    Returns:
        What came of it, JSON-ready.

    Raises:
        TooFewRecordsError: No device has enough to learn from.
        FleetError: The store or the registry cannot be used.
        TransferError: Training failed.
    """
    started = time.monotonic()
    registry, reader, devices = opened(request)
    shipped = ShippedHeads(registry, reader, enabled=request.shipped)
    serve_unserved(shipped, devices)
    plan, start = _planned(request, registry, reader, devices)
    learnt_until = start.manifest.get("data_until", {}) if start else {}
    judged = JudgedRows()
    snapshot = load_snapshot(
        reader,
        device_ids=devices,
        version=plan.table_version,
        part=RecentPart(new_since=min(learnt_until.values(), default=0.0)),
        judged=judged,
        published=reads_published(KINDS[request.model]) or registry.asks_published(devices),
    )
    dataset = snapshot.dataset
    rows, held = learnable(snapshot)
    heads, refused = _heads(dataset, rows, devices)
    training = Training(
        run=plan.run,
        folder=Path(request.folder),
        shipped=shipped,
        snapshot=snapshot,
        judged=judged,
        heads=heads,
        model=request.model,
        config=replace(train_config(request.epochs), device=request.compute, lends=True),
        seed=request.seed,
        about={
            "family": request.family,
            "reasons": list(request.reasons),
            "environments_since": registry.environments_since(),
        },
        start=start,
    )
    trained, judge = train_challengers(training)
    counting = counting_verdicts([challenger.verdicts for challenger in trained.values()])
    challengers = _published(registry, trained, counting, refused, plan.base, request.keep)
    shutil.rmtree(training.folder / CHALLENGER, ignore_errors=True)
    return {
        "kind": "refresh",
        "family": request.family,
        # Of several versions that serve from now on, the one that serves more devices.
        "version": max(challengers.values(), key=lambda outcome: len(outcome["published"]))["version"],
        "published": sorted(device for outcome in challengers.values() for device in outcome["published"]),
        "given_back": judge.give_back([each.device_id for each in counting if not each.moves_on]),
        "model": request.model,
        "challengers": challengers,
        "verdicts": verdicts_as_json([*counting, *refused]),
        "text": summary([*counting, *refused]),
        "start": plan.base or "nothing",
        "why_start": plan.why,
        "table_version": plan.table_version,
        "candidates": len(dataset),
        "held_out_workloads": len(held),
        "workloads": len(dataset.workload_ids),
        "train_secs": sum(challenger.manifest["train_secs"] for challenger in trained.values()),
        "resumed_epochs": sum(challenger.manifest["resumed_epochs"] for challenger in trained.values()),
        "secs": time.monotonic() - started,
    }


def run_start(request: RefreshRequest) -> JsonDict:
    """Make the start of meta-learning of a version, which a device that arrives would have to wait for.

    Raises:
        FleetError: The store or the registry cannot be used.
        TransferError: The version cannot be read.
    """
    began = time.monotonic()
    registry, reader, devices = opened(request)
    snapshot = load_snapshot(reader, device_ids=devices, part=RecentPart())
    rows, _ = learnable(snapshot)
    folder = registry.path(request.version)
    source, _ = checkpoint.load_fleet_tlp(folder, DEFAULT_SPEC)
    part = snapshot.dataset.take(rows)
    Maml(starts=folder).start(source, part, train_config(request.epochs), request.seed)
    return {"kind": "start", "version": request.version, "secs": time.monotonic() - began}


def _published(
    registry: Registry,
    trained: Mapping[str, Challenger],
    counting: Sequence[DeviceDecision],
    refused: Sequence[DeviceDecision],
    base: str,
    keep: int,
) -> dict[str, JsonDict]:
    """Keep the challengers that won somewhere, or may yet; publish what won. What came of each, by way.

    `counting` are the decisions on who takes a place, `refused` are of devices with too little to learn from.
    Where a version is kept, only the newest `keep` stay; else champions note why they stay.
    """
    outcomes: dict[str, JsonDict] = {}
    for way, challenger in trained.items():
        decided = challenger.verdicts
        manifest = {
            **challenger.manifest,
            "run": challenger.run,
            "verdicts": verdicts_as_json([*decided, *refused]),
        }
        version, published = "", list[str]()
        counts = counting if is_extensible(way) else decided
        if any(each.moves_on or each.kind is DecisionKind.UNJUDGED for each in counts):
            version, published = publish_if_better(registry, challenger.model, manifest, decided)
        outcomes[way] = {
            "version": version,
            "published": published,
            "train_secs": manifest["train_secs"],
            "verdicts": verdicts_as_json(decided),
        }
    if any(outcome["version"] for outcome in outcomes.values()):
        registry.prune(keep)
    elif registry.champions():
        registry.retain(_retention(trained, base))
    return outcomes


def _retention(trained: Mapping[str, Challenger], base: str) -> dict[str, str]:
    """Why champions stay if no challenger was kept, by device: what each was judged to be."""
    reasons_by_device: dict[str, list[str]] = {}
    for way, challenger in trained.items():
        start = "the shipped model" if way == BOOSTED else base if is_extensible(way) and base else "nothing"
        called = "a refresh" if len(trained) == 1 else f"a refresh of {way}"
        for device_id, why in retention_reasons(challenger.verdicts, f"{called} from {start}").items():
            reasons_by_device.setdefault(device_id, []).append(why)
    return {device_id: "; ".join(reasons) for device_id, reasons in reasons_by_device.items()}


def opened(request: RefreshRequest) -> tuple[Registry, StoreReader, list[DeviceId]]:
    """Registry and store of a request, and the devices that it is about.

    Raises:
        FleetError: One of them cannot be used, or the store knows none of the devices.
    """
    registry = Registry(Path(request.models))
    reader = Store.read(Path(request.store)).parted(registry.environments_since())
    family_ids = family_devices(reader, Family(request.family))
    device_ids = [
        device_id for device_id in family_ids if not request.device_ids or device_id in request.device_ids
    ]
    if not device_ids:
        raise FleetError(f"{reader.path} knows no device of the family {request.family}; collect first")
    return registry, reader, device_ids


def _planned(
    request: RefreshRequest, registry: Registry, reader: StoreReader, devices: Sequence[DeviceId]
) -> tuple[_Plan, WarmStart | None]:
    """The plan of this request as it was made first, and the version to start from."""
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
        serving = {
            str(device_id): champions[device_id].version for device_id in devices if device_id in champions
        }
        # A damaged version is no start; nor is one of a kind that is trained from nothing.
        ours = {
            device_id: version
            for device_id, version in serving.items()
            if is_extensible(registry.kind(version))
        }
        manifests = {version: registry.manifest(version) for version in set(ours.values())}
        contaminated = contaminated_parents(reader, manifests, devices, reader.version)
        base, why = start_from(ours, manifests, DEFAULT_SPEC.hash, contaminated)
        if not any(map(is_extensible, KINDS[request.model])):
            base, why = "", "an MTL-TLP is trained from nothing"
        run = content_hash(request.request_id, request.family, str(reader.version), base)
        plan = _Plan(table_version=reader.version, base=base, why=why, run=run)
    start = None
    if plan.base:
        try:
            model, _ = checkpoint.load_fleet_tlp(registry.path(plan.base), DEFAULT_SPEC)
            manifest = registry.manifest(plan.base)
            start = WarmStart(
                version=plan.base,
                model=model,
                manifest=manifest,
                workloads=training_workloads(reader, manifest),
                epochs=warm_epochs(request.epochs),
            )
        except TransferError as error:
            plan = replace(plan, base="", why=f"{plan.base} cannot be read ({str(error)[:120]})")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (canonical_json(asdict(plan)) + "\n").encode())
    return plan, start


def _heads(
    dataset: Dataset, rows: np.ndarray, devices: Sequence[DeviceId]
) -> tuple[list[str], list[DeviceDecision]]:
    """Devices with enough to learn from, and why the others have not.

    Raises:
        TooFewRecordsError: None has enough.
    """
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
    if not heads:
        reasons = "; ".join(decision.reason for decision in refused)
        raise TooFewRecordsError(f"no device has enough to learn from: {reasons}")
    return heads, refused
