"""The validity output: how likely a candidate builds and runs on a device.

Called by `transfer.train.training` when the ranking is learnt: a logistic regression on the finished
backbone, from the candidates that failed and those that ran. So failures cost the ranking nothing (TLP gives
them a speed near 0 and ranks them), and a device without failures has no such output. Knows nothing of
searches, which may ask `FleetTLP.validity` before they spend time on a candidate.

Legend: n candidates, T trunk width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from transfer.arrays import Ints, Rows
from transfer.data.dataset import Dataset
from transfer.model.fleet_tlp import FleetTLP

#: Failures, and candidates that ran, that a device must have at least.
LEAST_OF_EACH = 8
#: Most of either that are looked at, evenly over the rows.
_MOST = 4096
#: L2 penalty on the weights, for a loss that is a mean over candidates.
_PENALTY = 1e-3
_STEPS = 60


def fit_validity(model: FleetTLP, dataset: Dataset, rows: Rows, device_ids: Sequence[str]) -> None:
    """Give a model on the CPU the validity outputs of the devices that have failures to learn from.

    Heads and backbone are not changed.
    """
    for device_id in device_ids:
        column = dataset.column(device_id)
        ran = rows[np.isfinite(dataset.latency_secs[rows, column])]
        failed = rows[dataset.failed[rows, column]]
        if min(len(ran), len(failed)) < LEAST_OF_EACH:
            continue
        chosen = [_evenly(part, _MOST) for part in (ran, failed)]
        valid = torch.from_numpy(np.repeat([1.0, 0.0], [len(part) for part in chosen])).float()
        # Each side stands for all of its candidates, so that the output is a probability.
        stands_for = [len(part) / len(few) for part, few in zip((ran, failed), chosen, strict=True)]
        weight = torch.from_numpy(np.repeat(stands_for, [len(part) for part in chosen])).float()
        x = model.represent(dataset.features.take(np.concatenate(chosen)))
        model.set_validity(device_id, _logistic(x, valid, weight / weight.sum()))


def _evenly(rows: Rows, most: int) -> Ints:
    """At most so many rows, at equal distances."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _logistic(x: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
    """(T + 1,) weights and bias that fit best; the answer is unique, and nothing about it is random."""
    with torch.enable_grad():
        parameters = torch.zeros(x.shape[1] + 1, requires_grad=True)
        optimizer = torch.optim.LBFGS([parameters], max_iter=_STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            logits = x @ parameters[:-1] + parameters[-1]
            errors = F.binary_cross_entropy_with_logits(logits, valid, reduction="none")
            value = (errors * weight).sum() + _PENALTY * parameters[:-1].square().sum()
            value.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
            return value

        optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch publishes no type for it
    return parameters.detach()
