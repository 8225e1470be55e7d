"""From the store to a model: snapshots to learn from, and what a version's manifest says of its origin.

The bridge between `fleet.store.store` and `transfer`; used by the demo and the verbs `train`, `eval` and
`onboard`. Imports torch when called.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agents.records import (
    Descriptor,
    DeviceId,
    DeviceSpec,
    Family,
    Workload,
    WorkloadId,
    canonical_json,
    content_hash,
)
from fleet.errors import FleetError, StoreError
from fleet.json_types import Json, JsonDict
from fleet.models.training_rows import JudgedRows, RecentPart, counting_rows
from fleet.store.reader import StoreReader
from transfer.arrays import Rows

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.features.blocks import PublishedLayout
    from transfer.train.rows import TrainConfig


# Which workloads no refresh ever learns from: the ground on which champion and challenger meet. Pure.
#
# Used by training, onboarding and the refresh. The rule looks at the workloads alone, so that it says the
# same on every host, after every restart and for every version of a model. A share is held out, and of a
# store of some size at least as many as a judgement takes: whoever tunes three networks has forty
# workloads, and a seventh part of them judges nobody. Why it is so:
# `docs/decisions/0017-champions-per-device.md`.

#: Raise it when the rule changes: workloads change sides then, and what heads have learnt from alone keeps
#: comparisons honest.
RULE = 2
#: Share of the workloads that is held out.
SHARE = 0.15
#: With fewer workloads than this none is held out: too few would be left to learn from, and one or two judge
#: nothing.
LEAST_WORKLOADS = 10
#: From so many workloads on, at least so many are held out: those that the share would take first.
FLOOR_WORKLOADS, LEAST_HELD = 27, 9

#: Hexadecimal digits of the hash that the rule looks at.
_DIGITS = 8


def is_held_out(workload: Workload) -> bool:
    """Whether a workload is held out in every store, however many others there are."""
    return _place(workload) < SHARE


def _place(workload: Workload) -> float:
    """Where in [0, 1) the rule puts a workload; those below a bound are held out.

    Workloads of one operator with the same shapes go to one side: they differ in data types, strides or
    layout alone, and who learnt one of them has half seen the other.
    """
    shapes = [list(shape) for shape in workload.arg_shapes]
    key = canonical_json([workload.operator, shapes]) if shapes else workload.workload_id
    # The text of the first rule: what was held out by that one still is.
    digest = content_hash("holdout", "1", key)
    return int(digest[:_DIGITS], 16) / float(16**_DIGITS)


def held_out(workloads: Iterable[Workload]) -> frozenset[WorkloadId]:
    """The held-out ones among the workloads that a family has records of; none where these are few."""
    places = {workload.workload_id: _place(workload) for workload in workloads}
    if len(places) < LEAST_WORKLOADS:
        return frozenset()
    bound = SHARE
    if len(places) >= FLOOR_WORKLOADS:
        bound = max(bound, math.nextafter(sorted(places.values())[LEAST_HELD - 1], 1.0))
    return frozenset(workload_id for workload_id, place in places.items() if place < bound)


#: Key of manifests with what the version that this one went on from has learnt from (`training_workloads`),
#: without what this one learnt from itself.
INHERITED = "inherited_workloads"
#: Key of manifests with the model that a version's weights go back to: a shipped one, or a version.
ORIGIN = "origin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetSnapshot:
    """What a store held at one version of its table, ready to learn from."""

    dataset: Dataset
    workloads: Mapping[WorkloadId, Workload]
    devices: Mapping[DeviceId, tuple[DeviceSpec, Descriptor]]
    table_version: int


def learnable(snapshot: DatasetSnapshot) -> tuple[Rows, frozenset[WorkloadId]]:
    """Rows of workloads that are not held out for judging, and the held-out workloads."""
    dataset = snapshot.dataset
    kept_out = held_out(snapshot.workloads[workload_id] for workload_id in dataset.workload_ids)
    is_open = np.array([workload_id not in kept_out for workload_id in dataset.workload_ids], dtype=np.bool_)
    return np.flatnonzero(is_open[dataset.group]), kept_out


def load_snapshot(
    reader: StoreReader,
    *,
    device_ids: Collection[DeviceId] = (),
    workload_ids: Collection[WorkloadId] = (),
    environments: Mapping[DeviceId, Mapping[str, DeviceId]] | None = None,
    published: bool = False,
    judged: JudgedRows | None = None,
    version: int | None = None,
    part: RecentPart | None = None,
) -> DatasetSnapshot:
    """Read records into a dataset; empty collections mean all.

    Args:
        reader: The store.
        device_ids: Only of these devices.
        workload_ids: Only of these workloads.
        environments: Of some devices only the records of these environments, each as those of a device of its
            own; all records of the others.
        published: Make the features of MTL-TLP too.
        judged: Gathers what a judge asks of the records; not for the devices of `environments`.
        version: Version of the table; the reader's own where None.
        part: Only these of the records that count.

    Of each candidate one record counts (`fleet.models.training_rows.counting_rows`), one of the newest
    environment before others. A suspect latency counts where no steady one took its place: they repeat hardly
    worse (`docs/results/measuring.md`), and a device that never rests would have no others.

    Raises:
        FleetError: A device is not in the store; or published features of several families are asked for.
        TransferError: There is no ok record.
        StoreError: The version does not exist any more, or a file is damaged.
    """
    from transfer.data.dataset import build_dataset

    devices = {
        device_id: (entry.spec, entry.descriptor)
        for device_id, entry in reader.devices().items()
        if entry.descriptor is not None
    }
    unknown = sorted(set(device_ids) - set(devices))
    if unknown:
        stored_names = ", ".join(sorted(devices)) or "none"
        raise FleetError(f"device {unknown[0]!r} has no records in {reader.path}; it holds: {stored_names}")
    table = reader.version if version is None else version
    chosen = set(device_ids) or set(devices)
    parted = environments or {}
    records = (
        row
        for device_id in sorted(chosen)
        for row in counting_rows(reader, device_id, table, workload_ids, parted.get(device_id), judged, part)
    )
    for device_id, names in parted.items():
        devices |= dict.fromkeys(names.values(), devices[device_id])
    workloads = reader.workloads()
    layout = published_layout(devices[device_id][0] for device_id in chosen) if published else None
    return DatasetSnapshot(
        dataset=build_dataset(records, workloads, devices, layout=layout),
        workloads=workloads,
        devices=devices,
        table_version=table,
    )


def published_layout(specs: Iterable[DeviceSpec]) -> PublishedLayout:
    """The layout of published features for some devices.

    Raises:
        FleetError: They are of several families, or there is none.
    """
    from transfer.features.blocks import LAYOUTS

    families = sorted({str(spec.family) for spec in specs})
    if len(families) != 1:
        raise FleetError(
            f"MTL-TLP is for devices of one family, got {', '.join(families) or 'none'}; choose with --device"
        )
    return LAYOUTS[families[0]]


def read_snapshot(
    reader: StoreReader,
    device_ids: Sequence[str],
    *,
    published: bool = False,
    judged: JudgedRows | None = None,
) -> DatasetSnapshot:
    """Read the records of some devices, or of all, which must be of one family.

    `published` and `judged` are as of `load_snapshot`.

    Raises:
        FleetError: The devices are of several families, or unknown.
    """
    chosen = [DeviceId(name) for name in device_ids]
    entries = reader.devices()
    families: dict[Family, list[str]] = {}
    for device_id in chosen or sorted(entries):
        if device_id in entries:
            families.setdefault(entries[device_id].spec.family, []).append(device_id)
    if len(families) > 1:
        listed = "; ".join(f"{family}: {', '.join(names)}" for family, names in sorted(families.items()))
        raise FleetError(f"a model is shared by devices of one family, got {listed}; choose with --device")
    return load_snapshot(reader, device_ids=chosen, published=published, judged=judged)


def train_config(epochs: int) -> TrainConfig:
    """How source models are trained."""
    from transfer.train.rows import TrainConfig

    return TrainConfig(epochs=epochs)


def manifest_of(
    snapshot: DatasetSnapshot,
    *,
    seed: int,
    config: Json,
    seconds: float,
    sources: Sequence[str],
) -> JsonDict:
    """What a model's manifest says of how it came about."""
    return {
        "table_version": snapshot.table_version,
        "candidates": len(snapshot.dataset.candidate_ids),
        "workloads": len(snapshot.dataset.workload_ids),
        "devices": list(sources),
        "seed": seed,
        "train": dict(config),
        "train_secs": seconds,
    }


def training_workloads(reader: StoreReader, manifest: Json) -> frozenset[WorkloadId]:
    """Workloads that a version learnt from, or one that it went on from: its weights have seen them.

    Whatever goes on from it cannot be judged on them. All that the store knows where nobody knows which.
    """
    learnt = learnt_workloads(reader, manifest)
    if learnt is None:
        return frozenset(reader.workloads())
    return frozenset(learnt) | frozenset(map(WorkloadId, manifest.get(INHERITED, ())))


def measured_workloads(reader: StoreReader, device_ids: Collection[str], version: int) -> set[WorkloadId]:
    """Workloads that some devices have records of at a version of the table."""
    batches = reader.columns(("workload_id",), device_ids=device_ids, version=version)
    return {
        WorkloadId(workload_id)
        for _, batch in batches
        for workload_id in batch.column(0).unique().to_pylist()
    }


def learnt_workloads(reader: StoreReader, manifest: Json) -> Collection[WorkloadId] | None:
    """Workloads that a version itself learnt from; None where nobody knows."""
    if "trained_workloads" in manifest:
        return [WorkloadId(workload_id) for workload_id in manifest["trained_workloads"]]
    try:
        return measured_workloads(reader, manifest["heads"], int(manifest["table_version"]))
    except (StoreError, KeyError, ValueError):
        return None


def training_provenance(
    dataset: Dataset,
    rows: Rows,
    heads: Sequence[str],
    data_until: Mapping[DeviceId, float],
    *,
    holds_out: bool,
) -> JsonDict:
    """What a manifest says so that a version can be compared with others later.

    Args:
        dataset: What it learnt from.
        rows: Rows that its weights have seen, those that told when to stop included.
        heads: Heads that were trained.
        data_until: Unix seconds of the last record, by device: later ones are fresh to it.
        holds_out: Whether the held-out workloads were left out.
    """
    groups = np.unique(dataset.group[rows])
    measured = np.isfinite(dataset.latency_secs[rows])
    columns = {str(head): dataset.column(head) for head in heads}
    return {
        "trained_heads": list(heads),
        "trained_workloads": [dataset.workload_ids[number] for number in groups.tolist()],
        "records": {head: int(measured[:, column].sum()) for head, column in columns.items()},
        "data_until": {
            str(device_id): float(at) for device_id, at in data_until.items() if device_id in columns
        },
        "holdout": {"rule": RULE, "share": SHARE} if holds_out else None,
    }
