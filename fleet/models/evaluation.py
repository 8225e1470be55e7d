"""Judge models on what a store holds, on what was held out.

Behind `fleet eval`; reads the store, makes splits and rankers, leaves the rest to
`transfer.evaluate.compare`. What measuring twice tells goes along: the noise floor that a regret must exceed,
and the ceiling that one record of a candidate reaches when it ranks another record of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from agents.records import CandidateId, DeviceId
from fleet.config.settings import FleetConfig
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.models.registry_file import latest
from fleet.models.registry_reader import RegistryReader
from fleet.models.training_rows import LEAST_PAIRS, JudgedRows
from fleet.models.versions import DatasetSnapshot, read_snapshot, train_config
from fleet.store.noise import READING_COLUMNS, NoiseFloor, Reading, is_comparable, noise_floor, readings
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.adapt.kept import head_of
from transfer.data.metrics import Metrics, evaluate_ranking
from transfer.data.splits import Split, SplitKind, make_splits, near_copies
from transfer.evaluate.compare import Comparison, Finished, compare
from transfer.evaluate.rankers import KeptRanker, ModelRanker, Ranker
from transfer.features.extractor import DEFAULT_SPEC
from transfer.model import checkpoint
from transfer.model.kinds import KINDS, reads_published
from transfer.processes import workers_for

#: A comparison, and what else there is to know of it, JSON-ready: `split`, `table_version`, `model` (that was
#: judged, where it was not trained here), `folds_asked` (the split has fewer if there are fewer workloads),
#: `near_copies` (held-out workloads with one on the training side of their split), `not_judged` (held-out
#: candidates of the model that judge nobody, by device), `noise` and `ceilings` (of devices that have any).
Evaluation = tuple[Comparison, JsonDict]


def evaluate_store(
    settings: FleetConfig,
    device_ids: Sequence[str],
    *,
    split: str,
    seeds: int,
    on_progress: Callable[[Finished], None] | None = None,
) -> Evaluation:
    """Train the models of `training.model` on parts of a store and judge them on the rest.

    Workloads are held out in as many parts as `training.folds` says, or in one part per workload if there
    are fewer.

    Args:
        settings: Store, folds, epochs, and the first seed.
        device_ids: Devices of one family; all of the store where empty.
        split: A value of `transfer.data.splits.SplitKind`.
        seeds: How many runs with other splits and initial weights.
        on_progress: Told of each fit that ended.

    Raises:
        FleetError: The devices are of several families.
        TransferError: There is too little to train or to judge.
    """
    split_kind = SplitKind(split)
    reader = Store.read(Path(settings.store.path))
    kinds = KINDS[settings.training.model]
    snapshot = read_snapshot(reader, device_ids, published=reads_published(kinds))
    config = train_config(settings.training.epochs)
    rankers = [ModelRanker(config=config, name=kind.replace("_", "-"), kind=kind) for kind in kinds]
    first, folds = settings.training.seed, settings.training.folds

    def splits_of(seed: int) -> list[Split]:
        return make_splits(split_kind, snapshot.dataset, snapshot.workloads, folds=folds, seed=seed)

    passes = len(rankers) * seeds * folds * settings.training.epochs
    workers = workers_for(len(snapshot.dataset), passes)
    tried = range(first, first + seeds)
    comparison, about = _judge(
        reader, snapshot, rankers, splits_of, tried, workers=workers, on_progress=on_progress
    )
    copies = 0
    if split_kind in {SplitKind.BY_WORKLOAD, SplitKind.BY_NETWORK}:
        parts = splits_of(first)
        copies = sum(len(near_copies(snapshot.dataset, snapshot.workloads, part)) for part in parts)
    return comparison, about | {
        "split": split_kind.value,
        "near_copies": copies,
        "folds_asked": folds if split_kind is SplitKind.BY_WORKLOAD else None,
    }


def evaluate_model(
    settings: FleetConfig,
    models: Path,
    version: str,
    device_ids: Sequence[str],
    on_progress: Callable[[Finished], None] | None = None,
) -> Evaluation:
    """Judge a kept model on the candidates that were measured after it was trained, as a refresh judges.

    What a model chose, or was measured again, judges nobody (`fleet.models.training_rows`).

    Args:
        settings: The store that the model was trained from.
        models: Folder of the model versions.
        version: Name of a version, or `latest`.
        device_ids: Heads to judge; all that the store has records of where empty.
        on_progress: Told when the scores are there.

    Raises:
        FleetError: There is no such model, it has no such head, it was not trained from this store, or every
            candidate was there when it was trained, or judges nobody.
    """
    folder = latest(models) if version == "latest" else RegistryReader(models).path(version)
    model, manifest = checkpoint.load(folder, DEFAULT_SPEC)
    headless = [device_id for device_id in device_ids if device_id not in model.device_ids]
    if headless:
        raise FleetError(
            f"{folder.name} has no head for {', '.join(headless)}; it has: {', '.join(model.device_ids)}"
        )
    # As training and refresh read it: what was measured before a drift is no second measurement.
    reader = Store.read(Path(settings.store.path)).parted(RegistryReader(models).environments_since())
    recorded_heads = [DeviceId(head) for head in model.device_ids if head in reader.devices()]
    chosen = list(device_ids) or recorded_heads
    if not chosen:
        raise FleetError(
            f"{reader.path} has no records of the heads of {folder.name}: {', '.join(model.device_ids)}"
        )
    trained_at = int(manifest["table_version"])
    if reader.version < trained_at:
        raise FleetError(
            f"{folder.name} was trained on table version {trained_at}, {reader.path} is at {reader.version}: "
            "is --store the right one?"
        )
    judged = JudgedRows()
    snapshot = read_snapshot(reader, chosen, published=model.layout is not None, judged=judged)
    held = _measured_after(reader, snapshot, recorded_heads, trained_at, folder.name)
    snapshot, not_judged = _judging(snapshot, held, judged, folder.name)
    heads = {device_id: head_of(model, folder, manifest, device_id) for device_id in chosen}
    ranker = KeptRanker(name=folder.name, model=model, heads=heads)
    seeds, learnt = [settings.training.seed], tuple(chosen)
    comparison, about = _judge(
        reader, snapshot, [ranker], lambda _: [held], seeds, learnt=learnt, on_progress=on_progress
    )
    return comparison, about | {"split": held.name, "model": folder.name, "not_judged": not_judged}


def _measured_after(
    reader: StoreReader, snapshot: DatasetSnapshot, heads: Sequence[DeviceId], trained_at: int, version: str
) -> Split:
    """Candidates measured after a version was trained, as the held-out side of a split.

    Raises:
        FleetError: There are none.
    """
    dataset = snapshot.dataset
    earlier_ids = {
        candidate_id
        for _, batch in reader.columns(("candidate_id",), device_ids=heads, version=trained_at)
        for candidate_id in batch.column("candidate_id").to_pylist()
    }
    is_new = np.array([candidate_id not in earlier_ids for candidate_id in dataset.candidate_ids])
    if not is_new.any():
        raise FleetError(
            f"{version} was trained when the table was at version {trained_at} and has seen all "
            f"{len(dataset)} candidates: measure new ones with `fleet collect`, or leave out --model to "
            "judge by workloads held out"
        )
    return Split(
        name=f"measured after version {trained_at}",
        train=np.flatnonzero(~is_new),
        test=np.flatnonzero(is_new),
    )


def _judging(
    snapshot: DatasetSnapshot, held: Split, judged: JudgedRows, version: str
) -> tuple[DatasetSnapshot, dict[str, int]]:
    """A snapshot of the measurements that may judge, and how many held-out ones may not, by device.

    Raises:
        FleetError: None of the held-out ones may.
    """
    dataset, may = snapshot.dataset, judged.not_ranked(snapshot.dataset)
    is_held = np.isfinite(dataset.latency_secs[held.test])
    if is_held.any() and not (is_held & may[held.test]).any():
        raise FleetError(
            f"{version} cannot be judged: all {len(held.test)} candidates measured since then were chosen by "
            "a model or measured again, which judges no head: measure others with `fleet collect`"
        )
    counts = (is_held & ~may[held.test]).sum(axis=0).tolist()
    left_out = {
        str(device_id): count for device_id, count in zip(dataset.device_ids, counts, strict=True) if count
    }
    return replace(snapshot, dataset=dataset.where(may)), left_out


def _judge(
    reader: StoreReader,
    snapshot: DatasetSnapshot,
    rankers: Sequence[Ranker],
    splits_of: Callable[[int], list[Split]],
    seeds: Sequence[int],
    *,
    workers: int = 1,
    learnt: tuple[str, ...] = (),
    on_progress: Callable[[Finished], None] | None,
) -> Evaluation:
    noise, ceilings = measured_twice(reader, snapshot)
    comparison = compare(
        rankers,
        snapshot.dataset,
        splits_of,
        list(seeds),
        noise_floors={device_id: floor.median_change for device_id, floor in noise.items()},
        workers=workers,
        learnt=learnt,
        on_progress=on_progress,
    )
    return comparison, {
        "table_version": snapshot.table_version,
        "model": None,
        "folds_asked": None,
        "near_copies": 0,
        "not_judged": {},
        "noise": {device_id: asdict(floor) for device_id, floor in noise.items()},
        "ceilings": ceilings_as_json(ceilings),
    }


def measured_twice(
    reader: StoreReader, snapshot: DatasetSnapshot
) -> tuple[dict[str, NoiseFloor], dict[str, Metrics]]:
    """Noise floor and ceiling of the devices with enough re-measurements."""
    dataset = snapshot.dataset
    group_of = dict(zip(dataset.candidate_ids, dataset.group.tolist(), strict=True))
    floors: dict[str, NoiseFloor] = {}
    ceilings: dict[str, Metrics] = {}
    for device_id in dataset.device_ids:
        batches = reader.columns(READING_COLUMNS, device_ids=[device_id], version=snapshot.table_version)
        read = [
            reading
            for _, batch in batches
            for reading in readings(device_id, batch)
            if is_comparable(reading)
        ]
        floor = noise_floor(read)
        if floor is not None and floor.pairs >= LEAST_PAIRS:
            floors[device_id] = floor
        pairs = [pair for pair in _repeats(read) if pair[0] in group_of]
        group = np.array([group_of[candidate_id] for candidate_id, _, _ in pairs], dtype=np.int32)
        sizes = np.bincount(group)
        if sizes[sizes >= 2].sum() >= LEAST_PAIRS:
            first, second = (np.array([pair[place] for pair in pairs]) for place in (1, 2))
            ceilings[device_id] = evaluate_ranking(-first, second, group, dataset.weight, least=2)
    return floors, ceilings


def ceilings_as_json(ceilings: Mapping[str, Metrics]) -> JsonDict:
    """Ceilings by device, JSON-ready, with the workloads and candidates that they were made of."""
    return {
        device_id: {
            **ceiling.summary(),
            "workloads": len(ceiling.groups),
            "candidates": int(ceiling.counts.sum()),
        }
        for device_id, ceiling in ceilings.items()
    }


def _repeats(comparable: Iterable[Reading]) -> list[tuple[CandidateId, float, float]]:
    """First and last latency of every candidate that was measured again.

    Those of the environment with most of them: numbers of two are not put in one order.
    """
    of_each: dict[tuple[CandidateId, str], dict[int, float]] = {}
    for reading in comparable:
        of_each.setdefault((reading.candidate_id, reading.environment_id), {})[reading.attempt] = (
            reading.latency_secs
        )
    pairs_by_environment: dict[str, list[tuple[CandidateId, float, float]]] = {}
    for (candidate_id, environment_id), attempts in of_each.items():
        if len(attempts) > 1:
            pair = candidate_id, attempts[min(attempts)], attempts[max(attempts)]
            pairs_by_environment.setdefault(environment_id, []).append(pair)
    return max(pairs_by_environment.values(), key=len, default=[])
