"""What the hour after the start is worth: `python -m benchmarks.freshness --dataset FOLDER`.

A user starts `fleet up` on a machine with networks that no model has seen. At each minute asked for: what is
the head that serves worth, beside the head of the shipped model? Both are asked about candidates of workloads
that never enter the store.

The records of a published dataset answer for the machine: a group of architectures (`benchmarks.pretrained`)
stands for the user's networks, and a profile for the machine. A model learns from the other groups on the
other profiles, and is the shipped one. A fourth part of the group's workloads judges; the records of the
others come to the store evenly over the hour, in random order. At each minute the refresh of a daemon runs on
what is there, judges and publishes (`fleet.refresh.run`).

With `--up PROFILE` a real `fleet up` runs on this host for the last of the minutes, with the model that this
release ships. Those who judge there chose who serves, but no training saw them. `--again STORE --target
PROFILE` refreshes what such a run has kept, with the rules of today, at each of the minutes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import yaml

from agents.records import DeviceId, DeviceKind, Family, Record, WorkloadId
from benchmarks.fleet_up import Program, profile_file, running, verb, wait_until, write_fleet
from benchmarks.harness import Figures, benchmark, option, working_folder
from benchmarks.pretrained import HeldOut, Trial, opened_store
from benchmarks.pretrained_ship import ShippedAbout, ship
from benchmarks.tables import interval
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.opponents import HeadCache
from fleet.models.registry import Registry
from fleet.models.shipped_model import SHIPPED_KEY, ShippedHeads, read_shipped
from fleet.models.standings import mean_of
from fleet.models.training_rows import JudgedRows
from fleet.models.versions import DatasetSnapshot, held_out, load_snapshot
from fleet.refresh.request import RefreshRequest
from fleet.refresh.run import run_refresh
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.adapt.base import Adapted
from transfer.arrays import Floats, Rows
from transfer.data.metrics import evaluate_ranking

#: Candidates of a workload that can judge.
_LEAST = 4
_FIRST_HEAD_SECS = 600.0
#: As in the demo: larger programs would be few in an hour. All such workloads of the networks are collected.
_WORKLOADS = {
    "networks": ["resnet-50", "mobilenet-v2", "resnext-50", "bert-tiny"],
    "count": 96,
    "min_flops": 2e5,
    "max_flops": 2.5e7,
}


def watched(folder: Path, profile: str, minutes: Sequence[int]) -> list[JsonDict]:
    """Run the daemon until the last minute, and look at what served at each; the folder keeps its store."""
    device_id = DeviceId(profile)
    device = yaml.safe_load(profile_file(profile).read_text())
    settings = write_fleet(folder, {profile: device}, folder, daemon={"refresh": True}, workloads=_WORKLOADS)
    models = folder / "models"
    command = verb("up", "--config", str(settings), "--models", str(models))
    registry, looks = Registry(models), []
    with running(Program(command, folder / "log", folder=folder)):
        wait_until(lambda: registry.champion(device_id), "a first head", _FIRST_HEAD_SECS)
        began = time.monotonic()
        for minute in sorted(minutes):
            time.sleep(max(0.0, began + 60 * minute - time.monotonic()))
            records = Store.read(folder / "store").counts()[device_id].records
            looks.append(look(registry, device_id, minute, records))
    return looks


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


#: One part of so many of the user's workloads judges.
_JUDGED_PART = 4
#: Minutes from the start.
MINUTES = (0, 5, 15, 30, 60)


@dataclass(frozen=True)
class Options:
    """The machine, its networks, and when to look."""

    dataset: tuple[Path, ...] = option((), "a published dataset")
    up: str = option("", "a profile of this host on which a real fleet up runs")
    again: Path | None = option(None, "store that an earlier --up kept; nothing is measured")
    target: str = option("open-cpu-2.x86-64-v4", "profile that stands for the machine")
    group: str = option("group-2", "architectures that stand for the user's networks")
    minutes: tuple[int, ...] = option(MINUTES, "when to look; the last is the whole", least=0)
    keep: Path | None = option(None, "folder that keeps the shipped model, or stores and models")
    epochs: int = option(24, least=1)
    seed: int = 0


class _Hour(NamedTuple):
    """What answers for the machine."""

    snapshot: DatasetSnapshot
    target: DeviceId
    #: Rows that judge, none of which enters the store.
    judged: Rows
    #: Records of the machine for the store, in the order in which they come, and the minute of each.
    records: Sequence[Record]
    arrival_minutes: Floats

    def top1(self, head: Adapted) -> Floats:
        """Speed of a head's first choice among the rows that judge over the best, by workload."""
        dataset, rows = self.snapshot.dataset, self.judged
        latency = dataset.latency_secs[rows, dataset.column(self.target)]
        scores = head.score_unseen(dataset.features.take(rows))
        return evaluate_ranking(scores, latency, dataset.group[rows], least=_LEAST).values["top1"]


def measure(options: Options) -> Figures:
    """Let the hour pass, and look."""
    with working_folder(options.keep) as folder, working_folder() as temporary:
        if options.up:
            looks = watched(folder, options.up, options.minutes)
            hour = _measured(folder / "store", DeviceId(options.up))
            heads = ShippedHeads(Registry(folder / "models"), Store.read(folder / "store"))
            shipped = heads.head(hour.target)
            assert shipped is not None  # this release ships one for CPUs
            return _report(hour, looks, shipped.adapted)
        if options.again is not None:
            hour = _measured(options.again, DeviceId(options.target))
            return _report(hour, _replayed(folder, hour, options), _shipped(hour))
        if not options.dataset:
            raise FleetError("nothing answers for the machine: give --dataset FOLDER, or --up PROFILE")
        _, store = opened_store(options.dataset, folder)
        hour, learnt = _hour(store, options)
        box = folder / "-".join(("shipped", store.name, options.target, options.group, str(options.epochs)))
        if not box.exists():
            about = ShippedAbout(name="held-out", datasets={}, processors=(), expected={})
            ship(store, box, about, options.epochs, learnt, without=options.target, seed=options.seed)
        with patch("fleet.models.shipped_model.shipped_folder", lambda _: box):
            looks = _replayed(temporary, hour, options)
            return {"group": options.group, **_report(hour, looks, _shipped(hour))}


def _shipped(hour: _Hour) -> Adapted:
    """The head of the shipped model for the machine."""
    shipped = read_shipped(Family.CPU)
    assert shipped is not None  # it was written just now, or comes with this release
    return shipped.head(*hour.snapshot.devices[hour.target])


def _figure(values: Floats) -> list[float] | None:
    """Mean over workloads with its 90 % interval."""
    return interval(mean_of(values).estimate())


def _report(hour: _Hour, looks: Sequence[Json], shipped: Adapted) -> Figures:
    """What served at each minute beside the shipped head; differences are paired by workload."""
    by_minute: dict[str, Figures] = {}
    floor, gains = hour.top1(shipped), []
    for seen in looks:
        served = hour.top1(seen["head"])
        gains.append(served - floor)
        by_minute[str(seen["minute"])] = {
            **{name: value for name, value in seen.items() if name not in ("minute", "head")},
            "top1": _figure(served),
            "top1_shipped": _figure(floor),
            "minus_shipped": _figure(gains[-1]),
        }
    return {
        "target": hour.target,
        "records": len(hour.records),
        "judged_workloads": len(floor),
        "by_minute": by_minute,
        "worst_minus_shipped": _figure(min(gains, key=lambda gain: float(gain.mean()))),
        f"gain_{looks[-1]['minute']}min": _figure(gains[-1]),
    }


def _measured(store: Path, target: DeviceId) -> _Hour:
    """What a real machine has measured."""
    reader = Store.read(store)
    if target not in reader.devices():
        raise FleetError(f"{store} has no records of {target}; it has: {', '.join(reader.devices())}")
    snapshot, judged = judged_by(reader, target)
    if not len(judged):
        raise FleetError(f"{store} has no held-out workload that judges: it needs records of more workloads")
    records = sorted(reader.records(device_id=target), key=lambda record: record.measured_at)
    secs = np.array([record.measured_at for record in records])
    return _Hour(snapshot, target, judged, records, (secs - secs[0]) / 60)


def _hour(store: Path, options: Options) -> tuple[_Hour, Rows]:
    """What answers for the machine, and the rows that its shipped model learns from."""
    trial = Trial(store, HeldOut(options.group, options.target, options.seed))
    dataset, rows, target = trial.dataset, trial.test, DeviceId(options.target)
    random = np.random.default_rng(options.seed)
    workloads = random.permutation(np.unique(dataset.group[rows]))
    judges = workloads[: len(workloads) // _JUDGED_PART]
    entering = {WorkloadId(dataset.workload_ids[number]) for number in set(workloads) - set(judges)}
    records = [record for record in Store.read(store).records(target) if record.workload_id in entering]
    order = random.permutation(len(records))
    # Evenly over the hour.
    arrival_minutes = (np.arange(len(order)) + 0.5) * max(options.minutes) / max(1, len(order))
    judged = rows[np.isin(dataset.group[rows], judges)]
    sorted_records = [records[place] for place in order]
    return _Hour(trial.snapshot, target, judged, sorted_records, arrival_minutes), trial.train


def _replayed(folder: Path, hour: _Hour, options: Options) -> list[Figures]:
    """What serves at each minute."""
    spec, descriptor = hour.snapshot.devices[hour.target]
    path, registry = folder / "store", Registry(folder / "models")
    with Store.open(path) as store:
        # Its records come from a real machine: what answers here is one to the fleet.
        store.put_device(msgspec.structs.replace(spec, kind=DeviceKind.LOCAL), descriptor)
        store.put_workloads(hour.snapshot.workloads[record.workload_id] for record in hour.records)
    looks, arrived = [], 0
    for minute in sorted(options.minutes):
        until = int(np.searchsorted(hour.arrival_minutes, minute))
        with Store.open(path) as store:
            store.append(hour.records[arrived:until])
        arrived, secs = until, None
        if arrived:
            secs = run_refresh(_request(folder, minute, options)).get("secs")
        else:
            ShippedHeads(registry, Store.read(path)).serve_first(hour.target)
        looks.append(look(registry, hour.target, minute, arrived) | {"refresh_secs": secs})
    return looks


def _request(folder: Path, minute: int, options: Options) -> RefreshRequest:
    return RefreshRequest(
        kind="refresh",
        family=Family.CPU.value,
        store=str(folder / "store"),
        models=str(folder / "models"),
        folder=str(folder / f"refresh-{minute}"),
        request_id=f"minute-{minute}",
        epochs=options.epochs,
        seed=options.seed,
        nice=0,
    )


main = benchmark("freshness", __doc__, Options, measure)

if __name__ == "__main__":
    main()
