"""What the learning core is worth on held-out workloads: `python -m benchmarks.learning --json`.

Trains the model of this project and other people's rankers on the same rows of one store, whole networks (or
workloads) held out, and judges them on the same candidates. The store is one that is given, else the AutoTVM
logs beside the checkout are imported. `--table FILE` writes what `docs/results/` keeps. TVM is imported only
where its own features are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from agents.programs.build import scheduled
from agents.records import DeviceId, Workload, is_imported
from benchmarks.harness import Figures, benchmark, option, working_folder
from benchmarks.onboarding_parts import LOGGED
from benchmarks.rivals.base import EachDevice, need, of_device, training_labels
from benchmarks.rivals.named import PUBLISHED, RIVALS, make_rival, run_kept_fits
from benchmarks.tables import command_of, page, write_page
from benchmarks.training import LOGS, import_devices
from fleet.json_types import JsonDict
from fleet.models.versions import DatasetSnapshot, load_snapshot, train_config
from fleet.store.reader import StoreReader
from fleet.store.store import Store
from transfer.arrays import Floats, Groups, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.data.splits import Split, SplitKind, few_of_each, make_splits
from transfer.errors import TransferError
from transfer.evaluate.compare import fits_of, judge_fits
from transfer.evaluate.rankers import ModelRanker, Ranker
from transfer.model.fleet_tlp import scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.rows import TrainConfig

#: Columns of TVM's features with its workload group, and without it (the first ones).
MLP_COLUMNS, XGB_COLUMNS = 172, 164
_BATCH = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class PerStoreFeatures:
    """TVM's features of N candidates, ragged: one vector for each buffer store of the lowered program."""

    #: (M, 172) stores of all candidates, one after another.
    values: Singles
    #: (N,) stores of each candidate; 0 where TVM could not lower it.
    counts: Groups

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.counts)

    def of(self, rows: Rows, columns: int = MLP_COLUMNS) -> list[Singles]:
        """(stores, columns) of each row; a candidate without stores has one of zeros."""
        ends = np.cumsum(self.counts)
        nothing = np.zeros((1, columns), dtype=np.float32)
        return [
            np.ascontiguousarray(self.values[ends[row] - self.counts[row] : ends[row], :columns])
            if self.counts[row]
            else nothing
            for row in rows.tolist()
        ]


def per_store_features(workload: Workload, traces: Sequence[str], target: str | JsonDict) -> list[Singles]:
    """TVM's features of some candidates of one workload.

    The first call of a process imports TVM's tensor intrinsics, which takes some twenty seconds; callers
    that may import `agents.programs.tvm_import` call its `load_tensor_intrinsics` first.

    Args:
        workload: With its TVM module, one of ours (`fleet.store.reader.StoreReader.own_workloads`).
        traces: MetaSchedule traces, JSON text.
        target: TVM target, as text or as its JSON object; thread and vector limits enter the features.

    Returns:
        (stores, 172) of each trace; (0, 172) where the trace is refused (`agents.programs.trace_rules`), does
        not replay, or the program does not lower.

    Raises:
        TransferError: The workload was imported: its module is not given to TVM.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    if is_imported(workload.workload_id):
        raise TransferError(
            f"workload {workload.workload_id} was imported: TVM is given no module of others; leave it out"
        )
    module = tvm.ir.load_json(workload.module_json)
    context = ms.TuneContext(mod=module, target=tvm.target.Target(target), num_threads=1)
    extractor = ms.feature_extractor.PerStoreFeature(extract_workload=True)
    nothing = np.zeros((0, MLP_COLUMNS), dtype=np.float32)
    found = []
    for trace in traces:
        try:
            candidate = ms.MeasureCandidate(
                scheduled(module, trace), ms.arg_info.ArgInfo.from_entry_func(module, True)
            )
            values = extractor.extract_from(context, [candidate])[0].numpy().astype(np.float32)
        except Exception:  # whatever TVM raises for a candidate, it is the candidate's fault
            values = nothing
        found.append(values if len(values) else nothing)
    return found


def join_features(parts: Sequence[Singles]) -> PerStoreFeatures:
    """Features of candidates, in the order of the dataset's rows, as one ragged array."""
    return PerStoreFeatures(
        values=np.concatenate([np.zeros((0, MLP_COLUMNS), dtype=np.float32), *parts]),
        counts=np.array([len(part) for part in parts], dtype=np.int32),
    )


class TvmRanker:
    """One of TVM's own models of one device, by its name; labels are least / latency of each workload."""

    def __init__(self, name: str, features: PerStoreFeatures) -> None:
        self.name, self.features = name, features
        self._models: JsonDict = {}

    def fit(self, dataset: Dataset, rows: Rows, devices: Sequence[str], seed: int) -> None:
        """Train a model of the one device. See `Ranker.fit`."""
        self._check(dataset)
        labels = training_labels(dataset, rows, devices)[:, 0]
        usable = np.isfinite(labels)
        train, _ = WAYS[self.name]
        self._models = {devices[0]: train(self.features, dataset, rows[usable], labels[usable], seed)}

    def score(self, dataset: Dataset, rows: Rows, device_id: str) -> Floats:
        """Predicted relative speeds. See `Ranker.score`."""
        self._check(dataset)
        model, (_, predict) = of_device(self, self._models, device_id), WAYS[self.name]
        return predict(self.features, model, rows) if len(rows) else np.zeros(0)

    def _check(self, dataset: Dataset) -> None:
        if len(self.features) != len(dataset):
            raise TransferError(
                f"{self.name} was given per-store features of {len(self.features)} rows, the dataset has "
                f"{len(dataset)}; make them for this dataset with `per_store_features`"
            )


def _train_xgb(features: PerStoreFeatures, dataset: Dataset, rows: Rows, labels: Singles, seed: int) -> Any:
    """TVM's `XGBModel`: squared error on the sum over stores, weighted by the label, its own settings."""
    need("xgboost")
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBConfig, XGBModel

    model = XGBModel(config=XGBConfig(seed=seed, nthread=1))
    model._train(xs=features.of(rows, XGB_COLUMNS), ys=labels)
    return model


def _predict_xgb(features: PerStoreFeatures, model: Any, rows: Rows) -> Floats:
    return np.asarray(model._predict(xs=features.of(rows, XGB_COLUMNS)), dtype=np.float64)


def _train_mlp(features: PerStoreFeatures, dataset: Dataset, rows: Rows, labels: Singles, seed: int) -> Any:
    """TVM's segment-sum MLP by its own trainer, which keeps the network that is best on some workloads."""
    from tvm.s_tir.meta_schedule.cost_model.mlp_model import FeatureGroup, SegmentSumMLPTrainer

    with scoped_seed(seed), torch_threads(1):
        trainer = SegmentSumMLPTrainer()
        # TVM squeezes its output, so a last batch of one row would have no dimension.
        trainer.state.model.register_forward_hook(lambda module, inputs, output: output.reshape(-1))
        groups = np.unique(dataset.group[rows])
        for group in groups.tolist():
            is_member = dataset.group[rows] == group
            values = features.of(rows[is_member])
            trainer.state.data[str(group)] = FeatureGroup(str(group), values, 1 / labels[is_member])
        trainer.test_split = max(trainer.test_split, 1 / len(groups))
        # It passes an argument that torch's schedule no longer takes.
        plain = torch.optim.lr_scheduler.StepLR
        random.seed(seed)
        with patch("torch.optim.lr_scheduler.StepLR", lambda *args, verbose, **more: plain(*args, **more)):
            trainer.train_full()
    return trainer.state.model.eval()


def _predict_mlp(features: PerStoreFeatures, model: Any, rows: Rows) -> Floats:
    from tvm.s_tir.meta_schedule.cost_model.mlp_model import SegmentDataLoader

    loader = SegmentDataLoader(features.of(rows), None, batch_size=_BATCH, shuffle=False)
    with torch.no_grad(), torch_threads(1):
        parts = [model(sizes, values) for sizes, values, _ in loader]
    return torch.cat(parts).double().numpy()


#: By name: how a model is trained, and what it predicts.
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Floats]]] = {
    "tvm-xgb": (_train_xgb, _predict_xgb),
    "tvm-mlp": (_train_mlp, _predict_mlp),
}


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

    dataset, traces = snapshot.dataset, dict[str, str]()
    names = ("candidate_id", "dialect", "trace")
    for _, batch in reader.columns(names, device_ids=dataset.device_ids, version=snapshot.table_version):
        columns = (batch.column(name).to_pylist() for name in names)
        for candidate_id, dialect, trace in zip(*columns, strict=True):
            if dialect != _DIALECT:
                raise ValueError(
                    f"TVM's own models need candidates of {_DIALECT}, the store holds {dialect}; leave "
                    f"{' and '.join(WAYS)} out"
                )
            traces[candidate_id] = trace
    spec = snapshot.devices[dataset.device_ids[0]][0]
    load_tensor_intrinsics(spec.family)
    parts: dict[int, Singles] = {}
    for group in np.unique(dataset.group).tolist():
        rows = np.flatnonzero(dataset.group == group).tolist()
        workload = snapshot.workloads[dataset.workload_ids[group]]
        several = [traces[dataset.candidate_ids[row]] for row in rows]
        parts.update(zip(rows, per_store_features(workload, several, spec.target), strict=True))
    return join_features([parts[row] for row in range(len(dataset))])


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
        import_devices(store, LOGGED)
    reader = Store.read(store)
    reads_published = bool(set(options.rankers) & set(PUBLISHED))
    snapshot = load_snapshot(
        reader, device_ids=[DeviceId(device_id) for device_id in options.device], published=reads_published
    )
    # Few measured candidates of each workload.
    whole = snapshot.dataset
    measured = np.flatnonzero(np.isfinite(whole.latency_secs).any(axis=1))
    dataset = whole.take(few_of_each(whole, measured, _JUDGED, 0))
    snapshot = replace(snapshot, dataset=dataset)

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
