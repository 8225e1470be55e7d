"""Which candidates to measure on a new device first.

Called by onboarding and `transfer.evaluate`. Knows nothing of models: a model-guided choice would need one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from transfer.dataset import Dataset
from transfer.errors import TransferError

#: Measured candidates of each sampled workload: fewer give no ranking, more leave out workloads. With 64
#: samples on one split, 8 of each of 8 workloads did a little better than 4 of each of 16 (tau .52 and .51).
_SAMPLES_PER_WORKLOAD = 8


def draw_support(
    dataset: Dataset,
    device_id: str,
    rows: NDArray[np.int64],
    samples: int,
    *,
    seed: int,
    per_workload: int = _SAMPLES_PER_WORKLOAD,
) -> NDArray[np.int64]:
    """Draw the few candidates whose target latency adaptation may see.

    Workloads are drawn at random, then candidates in turn from each, so that every sample has others to be
    compared with: a lone candidate of a workload teaches nothing about ranking.

    Args:
        dataset: Candidates of all devices.
        device_id: The target.
        rows: Rows to draw from. Those that failed on the target are drawn too: they cost a measurement.
        samples: How many (k).
        seed: Of the draw.
        per_workload: Wanted candidates of one workload; more where there are too few workloads.

    Raises:
        TransferError: Fewer rows were measured on the target than samples asked for.
    """
    column = dataset.column(device_id)
    tried = rows[np.isfinite(dataset.latency_secs[rows, column]) | dataset.failed[rows, column]]
    if not 2 <= samples <= len(tried):
        raise TransferError(
            f"cannot draw {samples} samples of {device_id!r} from {len(tried)} measured candidates: "
            f"ask for 2 to {len(tried)}"
        )
    random = np.random.default_rng(seed)
    groups = random.permutation(np.unique(dataset.group[tried]))
    pools = [random.permutation(tried[dataset.group[tried] == group]) for group in groups]
    wanted = max(1, samples // per_workload)
    # Workloads beyond the wanted number wait until the first ones have nothing left.
    turns = [
        (i // wanted, place, i, pool[place]) for i, pool in enumerate(pools) for place in range(len(pool))
    ]
    return np.sort(np.array([row for *_, row in sorted(turns)[:samples]], dtype=np.int64))
