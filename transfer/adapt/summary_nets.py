"""A few small networks on the summary of a candidate, in an ensemble with a head on unseen candidates.

They read other inputs by other means than the sequence model, so their errors are others too. On four ISA
profiles with whole networks held out (one seed, k = 0), top-1 was .700 for the head, .745 for two such nets
and .725 for both at equal shares; but only the head did well on an operator that no training workload had
(batched matrix products: .68, networks .33). Called by `transfer.adapt.source_devices`.

Legend: M networks, P summary slots, W width, N candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import erf
from torch import nn

from transfer.arrays import Floats, Singles
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import scoped_seed
from transfer.model.inputs import torch_threads
from transfer.train.losses import head_loss
from transfer.train.rows import TrainConfig, TrainingRows, gather_rows, lay_out

_WIDTH = 256
_DROPOUT = 0.1
_RATE, _DECAY = 1e-3, 1e-2
#: The rate at which networks go on from what they know.
_TUNING_RATE = 3e-4
_EPOCHS = 40
#: Most updates of one network: bounds the time where there are many workloads.
_MOST_STEPS = 800
_BATCHES = TrainConfig(workloads_per_batch=4, candidates_per_workload=64)
#: Standardised inputs are cut here.
_LIMIT = 6.0
#: Candidates scored at once.
_ROWS = 8192


#: Arrays of `SummaryNets` in the order of a network's parameters.
_LAYERS = ("nets_in", "nets_in_bias", "nets_mid", "nets_mid_bias", "nets_out", "nets_out_bias")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SummaryNets:
    """Trained networks; arrays are float32, ready to be stored."""

    #: (P,) constants of the inputs.
    nets_mean: Singles
    nets_std: Singles
    #: (M, P, W), (M, W), (M, W, W), (M, W), (M, W), (M,)
    nets_in: Singles
    nets_in_bias: Singles
    nets_mid: Singles
    nets_mid_bias: Singles
    nets_out: Singles
    nets_out_bias: Singles

    def log_scores(self, summary: NDArray[np.floating]) -> Floats:
        """(M, N) logarithms of relative speeds in (0, 1) of candidates with (N, P) summaries."""
        scores = np.empty((len(self.nets_in), len(summary)))
        for start in range(0, len(summary), _ROWS):
            part = slice(start, start + _ROWS)
            x = _standardised(np.asarray(summary[part]), self.nets_mean, self.nets_std)
            for place in range(len(scores)):
                hidden = _gelu(x @ self.nets_in[place] + self.nets_in_bias[place])
                hidden = _gelu(hidden @ self.nets_mid[place] + self.nets_mid_bias[place])
                logits = (hidden @ self.nets_out[place] + self.nets_out_bias[place]).astype(np.float64)
                scores[place, part] = -np.logaddexp(0.0, -logits)
        return scores


def fit_nets(part: Dataset, device_id: str, count: int, seed: int) -> SummaryNets:
    """Train networks on the labels that `part` shows of one device, each with its own seed.

    Raises:
        TransferError: No workload has two labels.
    """
    return _taught(part, device_id, [(seed, place) for place in range(count)], _RATE, None)


def tune_nets(nets: SummaryNets, part: Dataset, device_id: str, seed: int) -> SummaryNets:
    """Let networks go on learning, from the labels that `part` shows of one device; `nets` are not changed.

    Raises:
        TransferError: No workload has two labels.
    """
    seeds = [(seed, place, 1) for place in range(len(nets.nets_in))]
    return _taught(part, device_id, seeds, _TUNING_RATE, nets)


def _taught(
    part: Dataset,
    device_id: str,
    seeds: Sequence[tuple[int, ...]],
    rate: float,
    start: SummaryNets | None,
) -> SummaryNets:
    """One network a seed, from nothing or from where `start` is."""
    data = gather_rows(part, np.arange(len(part)), (device_id,))
    summary = np.ascontiguousarray(part.features.summary[data.rows], dtype=np.float32)
    if start is None:
        mean, std = summary.mean(axis=0), summary.std(axis=0)
        std = np.where(std > 1e-4, std, 1.0).astype(np.float32)
    else:
        mean, std = start.nets_mean, start.nets_std
    x = torch.from_numpy(_standardised(summary, mean, std))
    nets = []
    for place, seed in enumerate(seeds):
        random = np.random.default_rng(seed)
        with scoped_seed(int(random.integers(2**31))):
            net = _network(x.shape[1])
            if start is not None:
                _set(net, start, place)
            _learn(net, x, data, rate, random)
        nets.append(net)
    return _as_arrays(nets, mean, std)


def _standardised(summary: NDArray[np.floating], mean: Singles, std: Singles) -> NDArray[np.floating]:
    scaled: NDArray[np.floating] = np.clip((summary - mean) / std, -_LIMIT, _LIMIT)
    return scaled


def _learn(
    net: nn.Sequential,
    x: torch.Tensor,
    data: TrainingRows,
    rate: float,
    random: np.random.Generator,
) -> None:
    labels = torch.from_numpy(data.labels[:, 0].copy())
    epochs = max(1, min(_EPOCHS, _MOST_STEPS // data.batch_count(_BATCHES)))
    with torch_threads(1), torch.enable_grad():
        optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=_DECAY)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        for _ in range(epochs):
            for batch in map(lay_out, data.batches(_BATCHES, random)):
                rows = torch.from_numpy(batch.rows)
                target = labels[rows][batch.place]
                logits = net(x[rows]).squeeze(-1)[batch.place]
                loss = head_loss(logits, target, target.isfinite() & batch.filled)
                if loss is not None:
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
                    optimizer.step()
            schedule.step()


def _set(net: nn.Sequential, nets: SummaryNets, place: int) -> None:
    """Give a network the values of one that was stored: the inverse of `_as_arrays`."""
    with torch.no_grad():
        for parameter, name in zip(net.parameters(), _LAYERS, strict=True):
            value = np.ascontiguousarray(getattr(nets, name)[place].T)
            parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))


def _as_arrays(nets: Sequence[nn.Sequential], mean: Singles, std: Singles) -> SummaryNets:
    parameters = [[parameter.detach().numpy() for parameter in net.parameters()] for net in nets]
    first, first_bias, second, second_bias, last, last_bias = (
        np.stack(several).astype(np.float32) for several in zip(*parameters, strict=True)
    )
    return SummaryNets(
        nets_mean=mean,
        nets_std=std,
        nets_in=np.ascontiguousarray(first.transpose(0, 2, 1)),
        nets_in_bias=first_bias,
        nets_mid=np.ascontiguousarray(second.transpose(0, 2, 1)),
        nets_mid_bias=second_bias,
        nets_out=last[:, 0],
        nets_out_bias=last_bias[:, 0],
    )


def _network(slots: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(slots, _WIDTH),
        nn.GELU(),
        nn.Dropout(_DROPOUT),
        nn.Linear(_WIDTH, _WIDTH),
        nn.GELU(),
        nn.Dropout(_DROPOUT),
        nn.Linear(_WIDTH, 1),
    )


def _gelu(x: Singles) -> Singles:
    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2.0))), dtype=np.float32)
