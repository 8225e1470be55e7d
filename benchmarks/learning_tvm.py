"""TVM's own cost models, XGBoost and segment-sum MLP, on TVM's own features of every buffer store.

`per_store_features` lowers candidates, so it must run where TVM is; what it gives are arrays, and the
models learn from arrays only, by TVM's own fitting and prediction. TVM is imported inside functions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from agents.programs.build import scheduled
from agents.records import Workload, is_imported
from benchmarks.rivals.base import need, of_device
from fleet.json_types import JsonDict
from transfer.arrays import Floats, Groups, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.fleet_tlp import scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.rows import training_labels

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
