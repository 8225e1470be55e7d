"""The multi-task training story, read top to bottom.

One call trains a `MultiTaskTLP` on a `Dataset`: scale the inputs by the training rows, then for each
epoch walk over batches of whole workloads and lower the mean over devices of the loss inside each
workload. Called by `transfer.adapt`, `transfer.evaluate` and the refresh of the fleet. It must not know
where a dataset comes from or where a model goes.

Legend: N candidates of a dataset, D devices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from transfer.batches import Batch, draw_batches, lay_out
from transfer.dataset import Dataset
from transfer.errors import TransferError
from transfer.losses import LossWeights, head_loss
from transfer.model import ModelSizes, MultiTaskTLP, block_tensors, model_config, scoped_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a model is trained.

    The defaults were tuned on 1,400 candidates of 44 workloads; 940 of them train 3 heads in 4 s on one core.
    """

    epochs: int = 24
    #: Workloads whose candidates make one batch.
    workloads_per_batch: int = 4
    #: Most candidates of one workload in a batch; a fresh random choice each epoch.
    candidates_per_workload: int = 64
    #: Highest learning rate, reached after the warm-up.
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    #: Share of the steps with rising learning rate; then it falls by a cosine to 0.
    warmup_fraction: float = 0.1
    #: Largest norm of the gradient.
    gradient_clip: float = 1.0
    loss: LossWeights = field(default_factory=LossWeights)
    sizes: ModelSizes = field(default_factory=ModelSizes)
    #: Epochs without a better validation loss before stopping; used only with validation rows.
    patience: int = 10
    #: Threads of torch. One is the fastest for a model of this size, and sums in another order would give
    #: other weights.
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "workloads_per_batch", "patience", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"train config: {name} must be at least 1, got {getattr(self, name)}")
        if self.candidates_per_workload < 2:
            raise ValueError("train config: candidates_per_workload must be at least 2 to rank anything")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"train config: learning_rate must be above 0, got {self.learning_rate}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """What one epoch showed."""

    #: Counted from 1.
    epoch: int
    #: Mean loss over the batches.
    train_loss: float
    #: Loss of the validation rows, or None without any.
    validation_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """A trained model and how it came about."""

    model: MultiTaskTLP
    history: tuple[EpochReport, ...]
    #: Wall seconds.
    seconds: float


@dataclass(frozen=True, slots=True)
class _Data:
    """The rows that training, or validation, may look at."""

    dataset: Dataset
    device_ids: tuple[str, ...]
    #: Row numbers of each workload.
    groups: tuple[np.ndarray, ...]
    #: (N, D) relative speed, one column for each of `device_ids`; NaN where missing or not given.
    labels: Tensor
    #: (N,) weight of each row, or None for equal ones.
    weights: Tensor | None


def train(
    dataset: Dataset,
    rows: np.ndarray,
    *,
    config: TrainConfig,
    seed: int,
    devices: Sequence[str] | None = None,
    init: MultiTaskTLP | None = None,
    validation_rows: np.ndarray | None = None,
    row_weights: np.ndarray | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Train one model with a head for each device.

    Args:
        dataset: Candidates of all devices; only `rows` and `validation_rows` of it are looked at.
        rows: Row numbers to train on. Labels are relative to the best latency among them.
        config: How.
        seed: Of initial weights, dropout and the order of batches. Torch's global random state is
            left as it was.
        devices: Devices to train heads for. Default: all of the dataset that have two different
            candidates of one workload in `rows`.
        init: Model to start from (not changed); its input scaling and its other heads are kept.
            Heads that it lacks are added fresh. Default: a new model, with scaling from `rows`.
        validation_rows: Rows for early stopping; the weights of the best epoch are returned. Choose
            other workloads than those of `rows`.
        row_weights: (len(rows),) weight of each row in the loss, default 1.
        on_epoch: Called after each epoch.

    Returns:
        The model, in evaluation mode.

    Raises:
        TransferError: Nothing to learn from, or the inputs or the loss are not finite.
    """
    started = time.perf_counter()
    rows = np.asarray(rows, dtype=np.int64)
    device_ids = tuple(devices) if devices is not None else trainable_devices(dataset, rows)
    training = _gather(dataset, rows, device_ids, row_weights)
    validation = None
    if validation_rows is not None and len(validation_rows):
        validation = _gather(dataset, np.asarray(validation_rows, dtype=np.int64), device_ids, None)
    with scoped_seed(seed), torch_threads(config.threads):
        model = _start(dataset, rows, device_ids, config, init)
        history = _fit(model, training, validation, config, np.random.default_rng(seed), on_epoch)
    model.eval()
    return TrainResult(model=model, history=history, seconds=time.perf_counter() - started)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def trainable_devices(dataset: Dataset, rows: np.ndarray) -> tuple[str, ...]:
    """Devices with at least two measured candidates of one workload among `rows`."""
    measured = np.isfinite(dataset.latency_secs[rows])
    counts = np.zeros((len(dataset.workload_ids), measured.shape[1]), dtype=np.int64)
    np.add.at(counts, dataset.group[rows], measured)
    enough = np.flatnonzero((counts >= 2).any(axis=0))
    return tuple(str(dataset.device_ids[column]) for column in enough)


def _gather(
    dataset: Dataset, rows: np.ndarray, device_ids: tuple[str, ...], row_weights: np.ndarray | None
) -> _Data:
    """Collect labels and weights of `rows`, refusing what cannot be trained on."""
    able = trainable_devices(dataset, rows)
    unable = [device_id for device_id in device_ids if device_id not in able]
    if unable or not device_ids:
        raise TransferError(
            f"cannot train a head for {', '.join(unable) or 'any device'}: among {len(rows)} rows no "
            "workload has two measured candidates; measure more candidates of the same workload"
        )
    features = dataset.features
    for name in ("numbers", "workload", "summary"):
        if not np.isfinite(getattr(features, name)[rows]).all():
            raise TransferError(
                f"features `{name}` of the training rows hold NaN or infinity; extract them again"
            )
    labels = np.full((len(dataset.group), len(device_ids)), np.nan, dtype=np.float32)
    columns = [dataset.column(device_id) for device_id in device_ids]
    labels[rows] = dataset.labels(rows)[:, columns]
    weights = None
    if row_weights is not None:
        if row_weights.shape != rows.shape or not np.isfinite(row_weights).all() or row_weights.min() < 0:
            raise TransferError(
                f"row_weights must be {len(rows)} finite numbers of at least 0, got shape {row_weights.shape}"
            )
        weights = torch.zeros(len(dataset.group))
        weights[torch.from_numpy(rows)] = torch.from_numpy(row_weights.astype(np.float32))
    labelled = rows[np.isfinite(labels[rows]).any(axis=1)]
    groups = tuple(labelled[dataset.group[labelled] == g] for g in np.unique(dataset.group[labelled]))
    return _Data(dataset, device_ids, groups, torch.from_numpy(labels), weights)


def _start(
    dataset: Dataset,
    rows: np.ndarray,
    device_ids: tuple[str, ...],
    config: TrainConfig,
    init: MultiTaskTLP | None,
) -> MultiTaskTLP:
    """A new model scaled by the training rows, or a copy of `init` with the missing heads."""
    if init is None:
        model = MultiTaskTLP(model_config(dataset.spec, config.sizes))
        model.fit_scaler(dataset.features.take(rows))
    elif init.config.spec_hash == dataset.spec.hash:
        model = init.copy()
    else:
        raise TransferError(
            f"the model to start from reads features {init.config.spec_hash}, the dataset holds "
            f"{dataset.spec.hash}; train from nothing instead"
        )
    model.check_block(dataset.features)
    for device_id in device_ids:
        if device_id not in model.device_ids:
            model.add_head(device_id)
    return model


def _fit(
    model: MultiTaskTLP,
    training: _Data,
    validation: _Data | None,
    config: TrainConfig,
    random: np.random.Generator,
    on_epoch: Callable[[EpochReport], None] | None,
) -> tuple[EpochReport, ...]:
    """Run the epochs; with validation, leave the weights of the best one in `model`."""
    optimizer = torch.optim.AdamW(_parameter_groups(model, config.weight_decay), lr=config.learning_rate)
    steps = config.epochs * math.ceil(len(training.groups) / config.workloads_per_batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, _learning_rate_curve(steps, config.warmup_fraction)
    )
    history: list[EpochReport] = []
    best: tuple[float, int, dict[str, Tensor]] | None = None
    for epoch in range(1, config.epochs + 1):
        train_loss = _run_epoch(model, training, config, random, optimizer, schedule)
        held = None if validation is None else _held_loss(model, validation, config)
        history.append(EpochReport(epoch=epoch, train_loss=train_loss, validation_loss=held))
        if on_epoch is not None:
            on_epoch(history[-1])
        if held is not None:
            if best is None or held < best[0]:
                best = held, epoch, {name: value.clone() for name, value in model.state_dict().items()}
            elif epoch - best[1] >= config.patience:
                break
    if best is not None:
        model.load_state_dict(best[2])
    return tuple(history)


def _run_epoch(
    model: MultiTaskTLP,
    training: _Data,
    config: TrainConfig,
    random: np.random.Generator,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LambdaLR,
) -> float:
    """One pass over all workloads; the mean loss of its batches, 0 if no random choice held a pair."""
    model.train()
    losses = []
    for batch in draw_batches(
        training.groups,
        workloads=config.workloads_per_batch,
        most=config.candidates_per_workload,
        random=random,
    ):
        loss = _batch_loss(model, training, batch, config.loss)
        if loss is not None:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
            norm = nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip)
            if not math.isfinite(loss.item()) or not math.isfinite(norm.item()):
                raise TransferError(
                    f"training diverged: loss {loss.item()}, gradient norm {norm.item()} with learning rate "
                    f"{config.learning_rate}; lower it"
                )
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    return sum(losses) / max(1, len(losses))


def _held_loss(model: MultiTaskTLP, validation: _Data, config: TrainConfig) -> float:
    """Mean loss of the validation workloads, one at a time."""
    model.eval()
    with torch.no_grad():
        losses = [
            _batch_loss(model, validation, lay_out([group]), config.loss) for group in validation.groups
        ]
    return float(np.mean([loss.item() for loss in losses if loss is not None]))


def _batch_loss(model: MultiTaskTLP, data: _Data, batch: Batch, terms: LossWeights) -> Tensor | None:
    """Mean over the heads that have labels in the batch, or None where no head has any."""
    inputs = block_tensors(data.dataset.features, batch.rows)
    labels = data.labels[torch.from_numpy(batch.rows)]
    weights = None if data.weights is None else data.weights[torch.from_numpy(batch.rows)][batch.place]
    representation = model.backbone(*inputs)
    losses = []
    for column, device_id in enumerate(data.device_ids):
        label = labels[:, column]
        if not bool(label.isfinite().any()):
            continue
        loss = head_loss(
            model.logits(representation, device_id)[batch.place],
            label[batch.place],
            label.isfinite()[batch.place] & batch.filled,
            terms=terms,
            weights=weights,
        )
        if loss is not None:
            losses.append(loss)
    return torch.stack(losses).mean() if losses else None


def _parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Weight decay for matrices only: norms, biases and embeddings of rare values must not shrink."""
    decayed = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    known = {id(p) for p in decayed}
    other = [p for p in model.parameters() if id(p) not in known]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": other, "weight_decay": 0.0}]


def _learning_rate_curve(steps: int, warmup_fraction: float) -> Callable[[int], float]:
    """Factor on the learning rate: a straight rise, then half a cosine down to 0."""
    rise = max(1, round(steps * warmup_fraction))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise))))

    return factor
