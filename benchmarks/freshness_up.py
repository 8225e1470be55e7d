"""A real `fleet up` beside the shipped head, minute by minute: called by `benchmarks.freshness --up`.

The daemon collects on one profile of this host, with the networks and the model of this release, and trains
when it finds it right. What serves at each minute is kept, and asked at the end about the held-out workloads
of the store. Trainings never see these, but judges do: who serves was chosen by them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from agents.records import DeviceId
from benchmarks.fleet_up import READY, START_SECS, Program, profile_file, verb, wait_until, write_fleet
from benchmarks.harness import working_folder
from fleet.json_types import JsonDict
from fleet.models.head_scores import HeadCache
from fleet.models.holdout import held_out
from fleet.models.registry import Registry
from fleet.models.shipped_heads import ShippedHeads
from fleet.models.shipped_model import SHIPPED_KEY
from fleet.models.training_rows import JudgedRows
from fleet.models.versions import DatasetSnapshot, load_snapshot
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.adapt.base import Adapted
from transfer.arrays import Rows
from transfer.data.dataset import Dataset
from transfer.data.metrics import evaluate_ranking

#: Candidates of a workload that can judge.
_LEAST = 4
_STOP_SECS, _FIRST_HEAD_SECS = 120.0, 600.0
#: As in the demo: larger programs would be few in an hour. All such workloads of the networks are collected.
_WORKLOADS = {
    "networks": ["resnet-50", "mobilenet-v2", "resnext-50", "bert-tiny"],
    "count": 96,
    "min_flops": 2e5,
    "max_flops": 2.5e7,
}


def watched(profile: str, minutes: Sequence[int], keep: Path | None = None) -> list[JsonDict]:
    """Run the daemon until the last minute, and judge what served at each; `keep` keeps its store."""
    device_id = DeviceId(profile)
    with working_folder(keep) as folder:
        device = yaml.safe_load(profile_file(profile).read_text())
        settings = write_fleet(
            folder, {profile: device}, folder, daemon={"refresh": True}, workloads=_WORKLOADS
        )
        models, store = folder / "models", folder / "store"
        command = verb("up", "--config", str(settings), "--models", str(models))
        program, registry = Program(command, folder / "log", folder=folder), Registry(models)
        program.start()
        try:
            wait_until(lambda: READY in program.told(), "the daemon", START_SECS)
            wait_until(lambda: registry.champion(device_id), "a first head", _FIRST_HEAD_SECS)
            began = time.monotonic()
            looks = []
            for minute in sorted(minutes):
                time.sleep(max(0.0, began + 60 * minute - time.monotonic()))
                records = Store.read(store).counts()[device_id].records
                looks.append(look(registry, device_id, minute, records))
            program.stop(_STOP_SECS)
        finally:
            program.kill()
        return _judged(looks, registry, store, device_id)


def look(registry: Registry, device_id: DeviceId, minute: int, records: int) -> JsonDict:
    """What serves now; the head itself, for its version may be forgotten later."""
    champion = registry.champions()[device_id]
    manifest = registry.manifest(champion.version)
    return {
        "minute": minute,
        "records": records,
        "serves": manifest.get("way") or manifest.get(SHIPPED_KEY) or manifest.get("strategy", ""),
        "why": champion.reason,
        "lacks": champion.retained,
        "refresh_secs": manifest.get("train_secs"),
        "head": HeadCache(registry).head(champion.ref),
    }


def _judged(
    looks: Sequence[JsonDict], registry: Registry, store: Path, device_id: DeviceId
) -> list[JsonDict]:
    """Each look with the top-1 of its head, and of the shipped one, by held-out workload."""
    reader = Store.read(store)
    snapshot, rows = judged_by(reader, device_id)
    dataset = snapshot.dataset
    shipped = ShippedHeads(registry, reader).head(device_id)
    assert shipped is not None  # this release ships one for CPUs
    floor = top1_by_workload(shipped.adapted, dataset, rows, device_id)
    return [
        {**look, "judged": top1_by_workload(look["head"], dataset, rows, device_id), "shipped": floor}
        for look in looks
    ]


def judged_by(reader: StoreReader, device_id: DeviceId) -> tuple[DatasetSnapshot, Rows]:
    """What a store has of a device, and the rows of its held-out workloads that no model chose."""
    judged = JudgedRows()
    snapshot = load_snapshot(reader, device_ids=[device_id], judged=judged)
    dataset = snapshot.dataset
    column = dataset.column(device_id)
    held = held_out(snapshot.workloads[name] for name in dataset.workload_ids)
    is_held = np.array([name in held for name in dataset.workload_ids])[dataset.group]
    measured = np.isfinite(dataset.latency_secs[:, column]) & judged.not_ranked(dataset)[:, column]
    return snapshot, np.flatnonzero(is_held & measured)


def top1_by_workload(head: Adapted, dataset: Dataset, rows: Rows, device_id: DeviceId) -> dict[str, float]:
    """Speed of a head's first choice among some rows over the best, by workload."""
    scores = head.score_unseen(dataset.features.take(rows))
    latency = dataset.latency_secs[rows, dataset.column(device_id)]
    metrics = evaluate_ranking(scores, latency, dataset.group[rows], least=_LEAST)
    names = [str(dataset.workload_ids[number]) for number in metrics.groups.tolist()]
    return dict(zip(names, metrics.top1_by_workload.tolist(), strict=True))
