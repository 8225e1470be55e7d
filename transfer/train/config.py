"""Settings of a training run and what an epoch showed.

Read by every part of training; `transfer.train.training` gives both to the rest of the project.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from transfer.errors import TransferError
from transfer.model.encoder import ModelSizes
from transfer.train.losses import LossWeights

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
    loss: LossWeights = field(default_factory=LossWeights)
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

    def __post_init__(self) -> None:
        for name in ("epochs", "workloads_per_batch", "patience", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"train config: {name} must be at least 1, got {getattr(self, name)}")
        if self.trees < 0:
            raise ValueError(f"train config: trees must be at least 0, got {self.trees}")
        for name in ("candidates_per_workload", "candidates_per_epoch"):
            if getattr(self, name) < 2:
                raise ValueError(f"train config: {name} must be at least 2 to rank anything")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"train config: learning_rate must be above 0, got {self.learning_rate}")
        if self.device not in DEVICE_CHOICES:
            raise ValueError(
                f"train config: device must be one of {', '.join(DEVICE_CHOICES)}, got {self.device!r}"
            )


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
