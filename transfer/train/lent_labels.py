"""Latencies that devices lend each other, so that every head learns from all workloads.

A head learns from the candidates that its device measured. Devices of a fleet measure different workloads,
and breadth is worth more to a head than anything else, so a device that measured nothing of a workload takes
the latencies of the most alike device that did. Labels are relative to the best candidate of a workload on a
device, so only the order and the ratios of the lender count. Called by `transfer.train.training`; nothing
that is judged or stored is ever lent.

Legend: N candidates, D devices, G workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from transfer.data.dataset import Dataset
from transfer.features.hardware import vector_distances
from transfer.train.rows import labels_by_workload

#: Most alike devices that are asked: of a thousand devices each would ask all others else.
_MOST_LENDERS = 4
#: Candidates that make a pair to rank.
_PAIR = 2


def with_lent_latencies(dataset: Dataset, rows: NDArray[np.int64], device_ids: Sequence[str]) -> Dataset:
    """The dataset with lent latencies, for training alone; itself where nothing is lacking.

    Args:
        dataset: Candidates of all devices.
        rows: Row numbers that may be looked at and filled.
        device_ids: Devices that lend and borrow; no other device's latency is looked at.
    """
    columns = [dataset.column(one) for one in device_ids]
    group = dataset.group[rows]
    latency = dataset.latency_secs[np.ix_(rows, np.array(columns, dtype=np.int64))]
    measured = labels_by_workload(dataset, rows, np.isfinite(latency)).T >= _PAIR
    lacking = ~measured & measured.any(axis=0)
    if not lacking.any():
        return dataset
    lent = dataset.latency_secs.copy()
    hardware = dataset.hardware[columns]
    for place, column in enumerate(columns):
        nearest = np.argsort(vector_distances(hardware, place), kind="stable")
        for lender in [one for one in nearest.tolist() if one != place][:_MOST_LENDERS]:
            taken = lacking[place] & measured[lender]
            filled = taken[group]
            lent[rows[filled], column] = latency[filled, lender]
            lacking[place] &= ~taken
    return replace(dataset, latency_secs=lent)
