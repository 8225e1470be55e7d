"""The rows that training, or validation, may look at: their labels, workload by workload.

Called by `transfer.train.training`, and for labels by the published procedure. Arrays grow with rows and
devices only, never with steps: features are gathered for one batch at a time from the dataset, which may lie
on disk.

Legend: n rows, D devices, G workloads (or parts of workloads) of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from transfer.arrays import Ints, Mask, Rows, Singles
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.features.hardware import vector_distances
from transfer.model.encoder import ModelSizes

# Settings of a training run and what an epoch showed.
#
# Read by every part of training; `transfer.train.training` gives both to the rest of the project.

#: Values of `TrainConfig.device`.
DEVICE_CHOICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a model is trained.

    The defaults were tuned on 1,400 candidates of 44 workloads; 940 of them train 3 heads in 4 s on one core.
    """

    epochs: int = 24
    #: Workloads, or parts of large ones, whose candidates make one batch.
    workloads_per_batch: int = 4
    #: Most candidates of one workload that are compared with each other in a batch.
    candidates_per_workload: int = 64
    #: Most candidates of one workload that an epoch looks at, in parts of about `candidates_per_workload`; of
    #: more, a fresh random choice each epoch. Bounds the weight of a workload with thousands of candidates.
    candidates_per_epoch: int = 64
    #: Highest learning rate, reached after the warm-up.
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    #: Share of the steps with rising learning rate; then it falls by a cosine to 0.
    warmup_fraction: float = 0.1
    #: Largest norm of the gradient.
    gradient_clip: float = 1.0
    sizes: ModelSizes = field(default_factory=lambda: ModelSizes(summary_ramps=8))
    #: Boosted trees in an ensemble with the network; 0 for none.
    trees: int = 500
    #: Whether devices lend each other the latencies of workloads that one of them did not measure.
    lends: bool = False
    #: Epochs without a better validation loss before stopping; used only with validation rows.
    patience: int = 10
    #: Threads of torch. One is the fastest for a model of this size, and sums in another order would give
    #: other weights.
    threads: int = 1
    #: One of `DEVICE_CHOICES`; "auto" takes a GPU where torch finds one. Equal seeds give equal weights on a
    #: CPU only.
    device: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """What one epoch showed. Equal runs give equal reports: times take no part in the comparison."""

    #: Counted from 1.
    epoch: int
    #: Mean loss over the batches.
    train_loss: float
    #: Loss of the validation rows, or None without any.
    validation_loss: float | None
    #: Learning rate of the last step.
    learning_rate: float
    #: Candidates that were learnt from.
    samples: int
    #: Wall seconds, validation included.
    seconds: float = field(compare=False)


def torch_device(choice: str) -> torch.device:
    """The device that a value of `TrainConfig.device` means on this host.

    Raises:
        TransferError: A GPU was asked for and torch finds none.
    """
    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TransferError(
            "training on a GPU was asked for, but this torch finds none; install a CUDA build of torch and "
            "its driver, or train on the CPU (`--compute cpu`)"
        )
    return torch.device("cuda", torch.cuda.current_device())


Positions = Ints

#: Most alike devices that are asked: of a thousand devices each would ask all others else.
_MOST_LENDERS = 4


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRows:
    """Rows of a dataset with what they teach; a position is an index into `rows`."""

    dataset: Dataset
    device_ids: tuple[str, ...]
    #: (n,) row numbers of the dataset, those of one workload together.
    rows: Positions
    #: (n, D) relative speed, one column for each of `device_ids`; NaN where there is none.
    labels: Singles
    #: Positions of each workload in which a device has two candidates to compare.
    groups: tuple[Positions, ...]

    def parts(self, config: TrainConfig, random: np.random.Generator) -> list[Positions]:
        """Positions of each workload, a large one in parts of about equal size.

        `random` deals the candidates of large workloads; the others take nothing from it.
        """
        most = config.candidates_per_workload
        parts: list[Positions] = []
        for group in self.groups:
            if len(group) <= most:
                parts.append(group)
                continue
            chosen = random.permutation(group)[: max(most, config.candidates_per_epoch)]
            # Sorted rows lie near each other, in memory as on disk.
            parts += [np.sort(part) for part in np.array_split(chosen, -(-len(chosen) // most))]
        return parts

    def batches(self, config: TrainConfig, random: np.random.Generator) -> list[list[Positions]]:
        """The batches of an epoch, in a random order: a few parts each."""
        parts, size = self.parts(config, random), config.workloads_per_batch
        order = random.permutation(len(parts))
        return [[parts[place] for place in order[i : i + size]] for i in range(0, len(order), size)]

    def batch_count(self, config: TrainConfig) -> int:
        """Number of batches that `batches` gives."""
        most = config.candidates_per_workload
        sizes = (min(len(group), max(most, config.candidates_per_epoch)) for group in self.groups)
        return -(-sum(-(-size // most) for size in sizes) // config.workloads_per_batch)

    def comparable(self, parts: Sequence[Positions]) -> Mask:
        """(G, D) True where a device has at least two labels in a part, so that there is a pair to rank."""
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        present = np.isfinite(self.labels[np.concatenate(parts)])
        return np.asarray(np.add.reduceat(present, starts, axis=0, dtype=np.int64) >= 2)


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows of a few workloads and where each stands in the padded layout."""

    #: (B,) row numbers of the dataset.
    rows: Rows
    #: (G, n) index into `rows`; 0 where there is nothing.
    place: Tensor
    #: (G, n) bool, false where there is nothing.
    filled: Tensor


def lay_out(groups: Sequence[Rows]) -> PaddedBatch:
    """Lay the rows of some workloads out as (G, n), so that losses can compare candidates of one workload."""
    widest = max(len(group) for group in groups)
    place = torch.zeros(len(groups), widest, dtype=torch.int64)
    filled = torch.zeros(len(groups), widest, dtype=torch.bool)
    start = 0
    for i, group in enumerate(groups):
        place[i, : len(group)] = torch.arange(start, start + len(group))
        filled[i, : len(group)] = True
        start += len(group)
    return PaddedBatch(np.concatenate(groups), place, filled)


def trainable_devices(dataset: Dataset, rows: Rows) -> tuple[str, ...]:
    """Devices with at least two measured candidates of one workload among `rows`."""
    measured = np.isfinite(dataset.latency_secs[rows])
    enough = (labels_by_workload(dataset, rows, measured) >= 2).any(axis=0)
    return tuple(str(dataset.device_ids[column]) for column in np.flatnonzero(enough))


def gather_rows(
    dataset: Dataset,
    rows: Rows,
    device_ids: tuple[str, ...],
    *,
    need_all: bool = True,
) -> TrainingRows:
    """Collect labels of `rows`, refusing what cannot be trained on.

    Args:
        dataset: Candidates of all devices.
        rows: Row numbers; labels are relative to the best latency among them.
        device_ids: Devices of the labels.
        need_all: Whether every device must have a pair to learn from; else one is enough.

    Raises:
        TransferError: A device has no pair to learn from; a latency or a feature is not finite.
    """
    need_pairs(dataset, rows, device_ids, need_all=need_all)
    bad = dataset.features.take(rows).not_finite()
    if bad:
        raise TransferError(
            f"features `{bad[0]}` of the training rows hold NaN or infinity; extract them again"
        )
    columns = [dataset.column(device_id) for device_id in device_ids]
    labels = dataset.labels(rows)[:, columns].astype(np.float32)
    labelled = np.isfinite(labels)
    learnable = np.flatnonzero((labels_by_workload(dataset, rows, labelled) >= 2).any(axis=1))
    group = dataset.group[rows]
    # A row without a label teaches nothing, and would take the place of one that does.
    usable = np.flatnonzero(np.isin(group, learnable) & labelled.any(axis=1))
    usable = usable[np.argsort(group[usable], kind="stable")]
    bounds = np.flatnonzero(np.diff(group[usable])) + 1
    return TrainingRows(
        dataset=dataset,
        device_ids=device_ids,
        rows=rows[usable],
        labels=labels[usable],
        groups=tuple(np.split(np.arange(len(usable), dtype=np.int64), bounds)),
    )


def need_pairs(dataset: Dataset, rows: Rows, device_ids: Sequence[str], *, need_all: bool = True) -> None:
    """Refuse devices without two measured candidates of one workload among the rows; one may do for all."""
    able = trainable_devices(dataset, rows)
    unable = [device_id for device_id in device_ids if device_id not in able]
    if len(unable) == len(device_ids) or (need_all and unable):
        raise TransferError(
            f"cannot train a head for {', '.join(unable) or 'any device'}: among {len(rows)} rows no "
            "workload has two measured candidates there; measure more candidates of the same workload"
        )


def labels_by_workload(dataset: Dataset, rows: Rows, present: Mask) -> Ints:
    """(W, columns) number of rows of each workload where `present` (n, columns) is true."""
    group, workloads = dataset.group[rows], len(dataset.workload_ids)
    counts = [np.bincount(group[column], minlength=workloads) for column in present.T]
    return np.stack(counts, axis=1) if counts else np.zeros((workloads, 0), dtype=np.int64)


def with_lent_latencies(dataset: Dataset, rows: Rows, device_ids: Sequence[str]) -> Dataset:
    """The dataset with latencies that devices lend each other; itself where nothing is lacking.

    A head learns from the candidates that its device measured. Devices of a fleet measure different
    workloads, and breadth is worth more to a head than anything else, so a device that measured nothing of a
    workload takes the latencies of the most alike device that did. Labels are relative to the best candidate
    of a workload on a device, so only the order and the ratios of the lender count. Nothing that is judged or
    stored is ever lent.

    Args:
        dataset: Candidates of all devices.
        rows: Row numbers that may be looked at and filled.
        device_ids: Devices that lend and borrow; no other device's latency is looked at.
    """
    columns = [dataset.column(device_id) for device_id in device_ids]
    group = dataset.group[rows]
    latency = dataset.latency_secs[np.ix_(rows, np.array(columns, dtype=np.int64))]
    measured = labels_by_workload(dataset, rows, np.isfinite(latency)).T >= 2
    lacking = ~measured & measured.any(axis=0)
    if not lacking.any():
        return dataset
    lent = dataset.latency_secs.copy()
    hardware = dataset.hardware[columns]
    for place, column in enumerate(columns):
        nearest = np.argsort(vector_distances(hardware, place), kind="stable")
        for lender in [other for other in nearest.tolist() if other != place][:_MOST_LENDERS]:
            borrowed = lacking[place] & measured[lender]
            filled = borrowed[group]
            lent[rows[filled], column] = latency[filled, lender]
            lacking[place] &= ~borrowed
    return replace(dataset, latency_secs=lent)
