"""What `benchmarks.learning` compares: rankers by name, and the rows that they may learn from.

Nothing is measured here. TVM is imported only where its own features are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning_tvm import PerStoreFeatures, TvmMlp, TvmXgb, join_features, per_store_features
from benchmarks.rivals.named import make_rival
from fleet.models.versions import DatasetSnapshot
from fleet.store.reader import StoreReader
from transfer.data.dataset import Dataset
from transfer.data.splits import few_of_each
from transfer.errors import TransferError
from transfer.evaluate.rankers import ModelRanker, Ranker
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.config import TrainConfig
from transfer.train.training import train

#: The model of this project: all devices in one, and each device by itself.
OURS = ("model", "model-single")
#: The first without its trees.
NETWORK = "model-network"
#: TVM's own models, which need candidates that TVM can build again.
TVM_RANKERS = ("tvm-xgb", "tvm-mlp")
_DIALECT = "meta_schedule"


@dataclass(slots=True)
class SingleRanker:
    """A model of its own for each device: what heads of a joint model are compared with."""

    config: TrainConfig = field(default_factory=TrainConfig)
    name: str = "model-single"
    #: Models that `fit` made, by device.
    models: dict[str, FleetTLP] = field(default_factory=dict)

    def fit(self, dataset: Dataset, rows: NDArray[np.int64], devices: Sequence[str], seed: int) -> None:
        """Train a model for each device on its own labels.

        Raises:
            TransferError: Nothing to learn from.
        """
        self.models = {
            device_id: train(dataset, rows, config=self.config, seed=seed, devices=(device_id,)).model
            for device_id in devices
        }

    def score(self, dataset: Dataset, rows: NDArray[np.int64], device_id: str) -> NDArray[np.float64]:
        """Scores (n,) of the device's own model, higher is faster.

        Raises:
            TransferError: Not fitted for the device.
        """
        if device_id not in self.models:
            raise TransferError(f"ranker {self.name!r} is not fitted for {device_id!r}; call fit first")
        scores: NDArray[np.float64] = self.models[device_id].score(dataset.features.take(rows), device_id)
        return scores


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
    rankers: list[Ranker] = []
    stores = tvm_features(reader, snapshot) if set(names) & set(TVM_RANKERS) else None
    for name in names:
        if name == OURS[0]:
            rankers.append(ModelRanker(config=config))
        elif name == OURS[1]:
            rankers.append(SingleRanker(config=config))
        elif name == NETWORK:
            rankers.append(ModelRanker(config=replace(config, trees=0), name=name))
        elif name in TVM_RANKERS and stores is not None:
            rankers.append(TvmXgb(stores) if name == TVM_RANKERS[0] else TvmMlp(stores))
        else:
            rankers.append(make_rival(name))
    return rankers


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
                    f"{' and '.join(TVM_RANKERS)} out"
                )
            traces[row] = trace
    spec = snapshot.devices[dataset.device_ids[0]][0]
    load_tensor_intrinsics(spec.family)
    parts: dict[int, NDArray[np.float32]] = {}
    for group in np.unique(dataset.group).tolist():
        rows = np.flatnonzero(dataset.group == group).tolist()
        workload = snapshot.workloads[dataset.workload_ids[group]]
        found = per_store_features(workload, [traces[row] for row in rows], spec.target)
        parts.update(zip(rows, found, strict=True))
    return join_features([parts[row] for row in range(len(dataset))])


def sampled(snapshot: DatasetSnapshot, most: int, seed: int) -> DatasetSnapshot:
    """At most so many measured candidates of each workload."""
    measured = np.flatnonzero(np.isfinite(snapshot.dataset.latency_secs).any(axis=1))
    return replace(
        snapshot, dataset=snapshot.dataset.take(few_of_each(snapshot.dataset, measured, most, seed))
    )
