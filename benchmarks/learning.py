"""What the learning core is worth on held-out workloads: `python -m benchmarks.learning --json`.

Trains the model of this project and other people's rankers on the same rows of one store, whole networks (or
workloads) held out, and judges them on the same candidates. The store is one that is given, else the AutoTVM
logs beside the checkout are imported. `--table FILE` writes what `docs/results/` keeps. TVM is imported only
where its own features are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agents.records import DeviceId
from benchmarks.harness import Figures, benchmark, command_of, option, working_folder
from benchmarks.learning_tvm import (
    WAYS,
    PerStoreFeatures,
    TvmRanker,
    join_features,
    per_store_features,
)
from benchmarks.rivals.base import EachDevice
from benchmarks.rivals.named import PUBLISHED, RIVALS, make_rival, run_kept_fits
from benchmarks.tables import page, write_page
from benchmarks.training import LOGS, import_devices
from fleet.models.versions import DatasetSnapshot, load_snapshot, train_config
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.arrays import Singles
from transfer.data.splits import Split, SplitKind, few_of_each, make_splits
from transfer.evaluate.compare import fits_of, judge_fits
from transfer.evaluate.rankers import ModelRanker, Ranker
from transfer.train.rows import TrainConfig

#: The model of this project: all devices in one, and each device by itself.
OURS = ("model", "model-single")
#: The first without its trees.
NETWORK = "model-network"
_DIALECT = "meta_schedule"


def make_rankers(
    names: Sequence[str],
    reader: StoreReader,
    snapshot: DatasetSnapshot,
    config: TrainConfig,
) -> list[Ranker]:
    """The rankers with some names.

    Raises:
        TransferError: A name is unknown.
        ValueError: TVM's own models are asked for, and a candidate is of another dialect than TVM's.
    """
    ours: dict[str, Ranker] = {
        OURS[0]: ModelRanker(config=config),
        OURS[1]: EachDevice(ModelRanker(config=config), OURS[1]),
        NETWORK: ModelRanker(config=replace(config, trees=0), name=NETWORK),
    }
    # TVM's own models need candidates that TVM can build again.
    if tvm := set(names) & WAYS.keys():
        stores = tvm_features(reader, snapshot)
        ours |= {name: EachDevice(TvmRanker(name, stores)) for name in tvm}
    return [ours.get(name) or make_rival(name) for name in names]


def tvm_features(reader: StoreReader, snapshot: DatasetSnapshot) -> PerStoreFeatures:
    """TVM's per-store features of a snapshot's candidates, lowered for the first device.

    Raises:
        ValueError: A candidate is not MetaSchedule's.
    """
    from agents.programs.tvm_import import load_tensor_intrinsics

    dataset = snapshot.dataset
    row_of = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
    traces: dict[int, str] = {}
    names = ("candidate_id", "dialect", "trace")
    for _, batch in reader.columns(names, device_ids=dataset.device_ids, version=snapshot.table_version):
        columns = (batch.column(name).to_pylist() for name in names)
        for candidate_id, dialect, trace in zip(*columns, strict=True):
            row = row_of.get(candidate_id)
            if row is None or row in traces:
                continue
            if dialect != _DIALECT:
                raise ValueError(
                    f"TVM's own models need candidates of {_DIALECT}, the store holds {dialect}; leave "
                    f"{' and '.join(WAYS)} out"
                )
            traces[row] = trace
    spec = snapshot.devices[dataset.device_ids[0]][0]
    load_tensor_intrinsics(spec.family)
    parts: dict[int, Singles] = {}
    for group in np.unique(dataset.group).tolist():
        rows = np.flatnonzero(dataset.group == group).tolist()
        workload = snapshot.workloads[dataset.workload_ids[group]]
        found = per_store_features(workload, [traces[row] for row in rows], spec.target)
        parts.update(zip(rows, found, strict=True))
    return join_features([parts[row] for row in range(len(dataset))])


def sampled(snapshot: DatasetSnapshot) -> DatasetSnapshot:
    """Few measured candidates of each workload."""
    dataset = snapshot.dataset
    measured = np.flatnonzero(np.isfinite(dataset.latency_secs).any(axis=1))
    return replace(snapshot, dataset=dataset.take(few_of_each(dataset, measured, _JUDGED, 0)))


#: Devices of the logs that are told apart; `x86_hokusai` is the i7-3770 again.
DEVICES = ("arm-cortex-a72", "x86-amd3700x", "x86-inteli7-3770")
_NOTE = "In brackets: 90 % intervals (bootstrap over workloads and seeds); differences are paired."
#: Most candidates of a workload to learn from, and to be judged on.
_EACH, _JUDGED = 64, 256
RANKERS = (*OURS, "xgboost", "lightgbm", "lightgbm-pooled", "mlp")


@dataclass(frozen=True)
class Options:
    """Who learns from what, and on what they are judged."""

    table: Path | None = option(None, "write the tables to this file")
    title: str = option("Learning", "title of the tables")
    store: Path | None = option(None, "store to learn from")
    device: tuple[str, ...] = option((), "only this device")
    split: str = option("by-network", "what is held out", choices=[kind.value for kind in SplitKind])
    held: tuple[str, ...] = option((), "only this split")
    folds: int = option(3, "parts of a split by workload", least=2)
    epochs: int = option(40, "epochs of the model of this project", least=1)
    seeds: int = option(3, least=1)
    slow_seeds: int = option(1, "seeds of published TLP", least=1)
    workers: int = option(1, "processes that fit side by side", least=1)
    keep: Path | None = option(None, "folder of finished fits, so that a stopped run goes on")
    rankers: tuple[str, ...] = option(RANKERS, "who is compared", choices=(*OURS, NETWORK, *WAYS, *RIVALS))


def measure(options: Options) -> Figures:
    """Run the comparison, and write its page."""
    if options.store is None and not LOGS.is_dir():
        return {"skipped": f"no logs at {LOGS.name} and no --store"}
    with working_folder() as folder:
        result = compared(options, folder)
    if options.table is not None:
        write_page(options.table, page(options.title, command_of("learning", options), result, _NOTE))
    return result


def compared(options: Options, folder: Path) -> Figures:
    """Run the comparison.

    Args:
        options: The command line.
        folder: For a store of imported logs.
    """
    store: Path = options.store or folder / "store"
    if options.store is None:
        import_devices(store)
    reader = Store.read(store)
    chosen = options.device or (DEVICES if options.store is None else ())
    reads_published = bool(set(options.rankers) & set(PUBLISHED))
    snapshot = load_snapshot(
        reader, device_ids=[DeviceId(device_id) for device_id in chosen], published=reads_published
    )
    snapshot = sampled(snapshot)
    dataset = snapshot.dataset

    # The same workloads are held out by every seed: intervals are over workloads and seeds.
    kind = SplitKind(options.split)
    made = make_splits(kind, dataset, snapshot.workloads, folds=options.folds, seed=0)
    names = [one.name for one in made]
    if unknown := set(options.held) - set(names):
        raise SystemExit(f"--held {' '.join(sorted(unknown))}: no such split; there are {', '.join(names)}")
    wanted = [one for one in made if not options.held or one.name in options.held]

    def splits_of(seed: int) -> list[Split]:
        return [replace(one, train=few_of_each(dataset, one.train, _EACH, seed)) for one in wanted]

    fits = fits_of(
        make_rankers(options.rankers, reader, snapshot, train_config(options.epochs)),
        splits_of,
        range(options.seeds),
    )
    # Rankers that take minutes for a thousand rows run with fewer seeds.
    fits = [fit for fit in fits if fit.ranker.name not in PUBLISHED or fit.seed < options.slow_seeds]
    scores = run_kept_fits(fits, dataset, options.keep or folder / "fits", options.workers)
    comparison = judge_fits(fits, scores, dataset)
    return {
        "split": options.split,
        "candidates": len(dataset),
        "workloads": len(dataset.workload_ids),
        "epochs": options.epochs,
        **comparison.as_json(),
    }


main = benchmark("learning", __doc__, Options, measure)

if __name__ == "__main__":
    main()
