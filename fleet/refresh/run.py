"""One refresh, read top to bottom: read, train the challengers, judge, publish what won.

Runs in the process of `fleet.refresh.process`. Every step leaves what the next one needs on the disk, so
that the same request goes on after a kill: the plan (version of the table, version to start from), the
epochs, the trained challenger, the version with the request's `run`. Imports torch when called.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.records import DeviceId, Family, WorkloadId, canonical_json, content_hash
from fleet.durable import write_durably
from fleet.errors import FleetError, StoreError, TooFewRecordsError
from fleet.json_types import Json, JsonDict
from fleet.models.judge import (
    Judge,
    contaminated_parents,
    counting_verdicts,
    publish_if_better,
    retention_reasons,
    verdicts_as_json,
)
from fleet.models.promotion import DecisionKind, DeviceDecision, refusal, start_from, summary
from fleet.models.registry import Registry
from fleet.models.shipped_heads import ShippedHeads, boosting_provenance, serve_unserved
from fleet.models.versions import (
    INHERITED,
    learnable,
    train_config,
    training_provenance,
    training_workloads,
)
from fleet.onboarding.choice import family_devices
from fleet.refresh.challengers import CHALLENGER, Challenger, challenger
from fleet.refresh.data import RefreshData, read_refresh_data
from fleet.refresh.request import PLAN, RefreshRequest
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.model.kinds import BOOSTED, FLEET_TLP, KINDS, is_extensible, reads_published

if TYPE_CHECKING:
    from fleet.models.shipped_model import ShippedModel
    from transfer.data.dataset import Dataset
    from transfer.model.fleet_tlp import FleetTLP


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
    registry = Registry(Path(request.models))
    reader = Store.read(Path(request.store)).parted(since := registry.environments_since())
    devices = _devices(reader, request)
    shipped = ShippedHeads(registry, reader, enabled=request.shipped)
    serve_unserved(shipped, devices)
    plan, base = _planned(request, registry, reader, devices)
    manifest_of_base = registry.manifest(plan.base) if plan.base else {}
    kinds = KINDS[request.model]
    data = read_refresh_data(
        reader,
        devices,
        version=plan.table_version,
        new_since=min(manifest_of_base.get("data_until", {}).values(), default=0.0),
        published=reads_published(kinds) or registry.asks_published(devices),
    )
    dataset = data.snapshot.dataset
    rows, held = learnable(data.snapshot)
    heads, refused = _heads(dataset, rows, devices)
    box = shipped.boosting_start(heads, dataset, rows) if FLEET_TLP in kinds else None
    challengers_by_way = _challengers(request, plan, base, box, rows, heads, data)
    inherited = training_workloads(reader, manifest_of_base) if plan.base else frozenset[WorkloadId]()
    provenance = training_provenance(dataset, rows, heads, _last(data), holds_out=bool(held))
    provenance |= {"table_version": plan.table_version, "family": request.family}
    provenance |= {"reasons": list(request.reasons), "environments_since": since}
    learnt, seen = provenance["trained_workloads"], inherited
    if box is not None:
        seen |= box.trained_workloads
    judge = Judge(shipped=shipped, snapshot=data.snapshot, judged=data.judged, trained=learnt, inherited=seen)
    trained = challengers_by_way.values()
    verdicts = judge.verdicts([each.model for each in trained], heads)
    origins = {
        BOOSTED: {} if box is None else boosting_provenance(box, provenance),
        FLEET_TLP: _warm(plan, manifest_of_base, inherited, learnt),
    }
    challengers = _published(registry, challengers_by_way, verdicts, refused, provenance, origins)
    counting = counting_verdicts(verdicts)
    _tidy(registry, request, challengers, _retention(challengers_by_way, verdicts, plan.base))
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
        "train_secs": sum(each.about["train_secs"] for each in trained),
        "resumed_epochs": sum(each.about["resumed_epochs"] for each in trained),
        "secs": time.monotonic() - started,
    }


def _tidy(
    registry: Registry,
    request: RefreshRequest,
    challengers: Mapping[str, Json],
    retained: Mapping[str, str],
) -> None:
    """Forget old versions if there are new ones, else note why champions stay; delete what training left."""
    if any(outcome["version"] for outcome in challengers.values()):
        registry.prune(request.keep)
    elif registry.champions():
        registry.retain(retained)
    shutil.rmtree(Path(request.folder) / CHALLENGER, ignore_errors=True)


def _challengers(
    request: RefreshRequest,
    plan: _Plan,
    base: FleetTLP | None,
    box: ShippedModel | None,
    rows: np.ndarray,
    heads: Sequence[str],
    data: RefreshData,
) -> dict[str, Challenger]:
    """A challenger by each way to train, in the order in which equals take a place.

    What went on from the thousand workloads of the shipped model, by a little, goes first.
    """
    kinds = KINDS[request.model]
    starts: dict[str, FleetTLP | None] = {} if box is None else {BOOSTED: box.model}
    starts |= {kind: base if is_extensible(kind) else None for kind in kinds}
    return {
        way: challenger(way, request, plan.run, start, rows, heads, data) for way, start in starts.items()
    }


def run_start(request: RefreshRequest) -> JsonDict:
    """Make the start of meta-learning of a version, which a device that arrives would have to wait for.

    Raises:
        FleetError: The store or the registry cannot be used.
        TransferError: The version cannot be read.
    """
    from transfer.adapt.maml import Maml
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model import checkpoint

    began = time.monotonic()
    registry = Registry(Path(request.models))
    reader = Store.read(Path(request.store)).parted(registry.environments_since())
    devices = _devices(reader, request)
    data = read_refresh_data(reader, devices, version=reader.version, new_since=0.0, published=False)
    rows, _ = learnable(data.snapshot)
    folder = registry.path(request.version)
    source, _ = checkpoint.load_fleet_tlp(folder, DEFAULT_SPEC)
    part = data.snapshot.dataset.take(rows)
    Maml(starts=folder).start(source, part, train_config(request.epochs), request.seed)
    return {"kind": "start", "version": request.version, "secs": time.monotonic() - began}


def _warm(
    plan: _Plan, of_base: Json, inherited: frozenset[WorkloadId], trained: Sequence[WorkloadId]
) -> JsonDict:
    """What a manifest says of the version that the training went on from; nothing where there is none."""
    if not plan.base:
        return {}
    return {
        "warm_start": plan.base,
        "warm_starts": int(of_base.get("warm_starts", 0)) + 1,
        INHERITED: sorted(inherited - set(trained)),
    }


def _published(
    registry: Registry,
    challengers_by_way: Mapping[str, Challenger],
    verdicts: Sequence[Sequence[DeviceDecision]],
    refused: Sequence[DeviceDecision],
    shared_manifest: Json,
    origins: Mapping[str, Json],
) -> dict[str, JsonDict]:
    """Keep the challengers that won somewhere, or may yet; publish what won. What came of each, by way.

    `verdicts` are in the order of `challengers_by_way`, `refused` of devices with too little to learn from.
    The manifests of all have `shared_manifest`, and what `origins` says of the way.
    """
    counting = counting_verdicts(verdicts)
    challengers: dict[str, JsonDict] = {}
    for (way, trained_challenger), decided in zip(challengers_by_way.items(), verdicts, strict=True):
        manifest = {
            **trained_challenger.about,
            **shared_manifest,
            "run": trained_challenger.run,
            "way": way,
            "warm_start": None,
            "warm_starts": 0,
            "verdicts": verdicts_as_json([*decided, *refused]),
            **origins.get(way, {}),
        }
        version, published = "", list[str]()
        counts = counting if is_extensible(way) else decided
        if any(each.moves_on or each.kind is DecisionKind.UNJUDGED for each in counts):
            version, published = publish_if_better(registry, trained_challenger.model, manifest, decided)
        challengers[way] = {
            "version": version,
            "published": published,
            "train_secs": trained_challenger.about["train_secs"],
            "verdicts": verdicts_as_json(decided),
        }
    return challengers


def _retention(
    ways: Iterable[str], verdicts: Sequence[Sequence[DeviceDecision]], base: str
) -> dict[str, str]:
    """Why champions stay if no challenger was kept, by device: what each was judged to be."""
    reasons_by_device: dict[str, list[str]] = {}
    for way, decided in zip(ways, verdicts, strict=True):
        start = "the shipped model" if way == BOOSTED else base if is_extensible(way) and base else "nothing"
        called = "a refresh" if len(verdicts) == 1 else f"a refresh of {way}"
        for device_id, why in retention_reasons(decided, f"{called} from {start}").items():
            reasons_by_device.setdefault(device_id, []).append(why)
    return {device_id: "; ".join(reasons) for device_id, reasons in reasons_by_device.items()}


def _devices(reader: StoreReader, request: RefreshRequest) -> list[DeviceId]:
    family_ids = family_devices(reader, Family(request.family))
    device_ids = [
        device_id for device_id in family_ids if not request.device_ids or device_id in request.device_ids
    ]
    if not device_ids:
        raise FleetError(f"{reader.path} knows no device of the family {request.family}; collect first")
    return device_ids


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
    model = None
    if plan.base:
        from transfer.model import checkpoint

        try:
            model, _ = checkpoint.load_fleet_tlp(registry.path(plan.base), DEFAULT_SPEC)
        except TransferError as error:
            plan = replace(plan, base="", why=f"{plan.base} cannot be read ({str(error)[:120]})")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (canonical_json(asdict(plan)) + "\n").encode())
    return plan, model


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


def _last(data: RefreshData) -> dict[str, float]:
    """Unix seconds of the last record of each device."""
    dataset = data.snapshot.dataset
    return {
        str(device_id): float(np.nanmax(data.measured_at[:, column]))
        for column, device_id in enumerate(dataset.device_ids)
    }
