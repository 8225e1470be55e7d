"""Deterministic divisions of a dataset into rows to learn from and rows to be judged on.

Random rows share their workload, and near-copies of themselves, with the rows held out; a split must say what
is new about its test rows: the workload, the network, the device, or only the candidate. Called by training
and evaluation; knows nothing of models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.records import Workload, WorkloadId
from transfer.dataset import Dataset
from transfer.errors import DatasetError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Row indexes of one division, in rising order."""

    #: What is held out, for reports: `fold 2 of 5`, a network, a device.
    name: str
    train: NDArray[np.int64]
    test: NDArray[np.int64]


def workload_folds(
    dataset: Dataset, workloads: Mapping[WorkloadId, Workload], folds: int, seed: int
) -> list[Split]:
    """Hold out every workload exactly once, each fold with its share of every operator.

    Args:
        dataset: What to divide.
        workloads: Tells the operator of each workload.
        folds: Number of folds k, at least 2.
        seed: Of the order in which workloads are dealt.

    Raises:
        DatasetError: There are fewer workloads with rows than folds, or fewer than 2 folds.
    """
    present = np.unique(dataset.group)
    if not 2 <= folds <= len(present):
        raise DatasetError(
            f"cannot make {folds} folds of {len(present)} workloads: give 2 to {len(present)} folds, "
            "or collect more workloads"
        )
    by_operator: dict[str, list[int]] = defaultdict(list)
    for index in present.tolist():
        by_operator[workloads[dataset.workload_ids[index]].operator].append(index)
    random = np.random.default_rng(seed)
    dealt: list[int] = []
    for operator in sorted(by_operator):
        dealt += random.permutation(by_operator[operator]).tolist()
    # Dealing operator after operator, round and round, gives each fold its share of each.
    fold_of = np.full(len(dataset.workload_ids), -1)
    fold_of[dealt] = np.arange(len(dealt)) % folds
    row_fold = fold_of[dataset.group]
    return [
        Split(
            name=f"fold {fold + 1} of {folds}",
            train=np.flatnonzero(row_fold != fold),
            test=np.flatnonzero(row_fold == fold),
        )
        for fold in range(folds)
    ]


def within_workload(dataset: Dataset, test_fraction: float, seed: int) -> Split:
    """Hold out a share of the candidates of every workload.

    A workload gives at least one test row where it has two rows or more, and keeps at least one to train on.

    Raises:
        DatasetError: `test_fraction` is not inside (0, 1).
    """
    if not 0 < test_fraction < 1:
        raise DatasetError(f"test fraction must be inside (0, 1), got {test_fraction}")
    random = np.random.default_rng(seed)
    held = np.zeros(len(dataset), dtype=np.bool_)
    for index in np.unique(dataset.group):
        rows = random.permutation(np.flatnonzero(dataset.group == index))
        count = min(len(rows) - 1, max(1, round(test_fraction * len(rows))))
        held[rows[:count]] = True
    return Split(name="within workload", train=np.flatnonzero(~held), test=np.flatnonzero(held))


def leave_device_out(dataset: Dataset) -> list[tuple[str, list[str]]]:
    """Each device once as the target, with the others as sources: (target, sources).

    Rows need no division: a device held out has its column left out of training.

    Raises:
        DatasetError: There are fewer than two devices.
    """
    devices = [str(device_id) for device_id in dataset.device_ids]
    if len(devices) < 2:
        raise DatasetError(f"leaving a device out needs at least two devices, the dataset has {devices}")
    return [(target, [one for one in devices if one != target]) for target in devices]


def leave_networks_out(
    dataset: Dataset,
    workloads: Mapping[WorkloadId, Workload],
    families: Mapping[str, Sequence[str]] | None = None,
) -> list[Split]:
    """Hold out the workloads of one network family after another.

    A workload that occurs in the family is a test row and never trained on, whoever else uses it, so nothing
    of the held-out networks leaks. Workloads of no network are always trained on.

    Args:
        dataset: What to divide.
        workloads: Tells the networks of each workload.
        families: Networks of each family (all sizes of one network belong together); each network by itself
            where None.

    Returns:
        One split a family, by name; families without test rows, or without training rows, are left out.

    Raises:
        DatasetError: No workload names a network.
    """
    networks_of = {
        index: {name for name, count in workloads[workload_id].networks if count > 0}
        for index, workload_id in enumerate(dataset.workload_ids)
    }
    names = sorted(set().union(*networks_of.values())) if networks_of else []
    if not names:
        raise DatasetError("no workload of the dataset belongs to a network; split by workload instead")
    grouped = {name: [name] for name in names} if families is None else families
    splits = []
    for family in sorted(grouped):
        members = set(grouped[family])
        out = [index for index, networks in networks_of.items() if networks & members]
        test = np.isin(dataset.group, out)
        if test.any() and not test.all():
            splits.append(Split(name=family, train=np.flatnonzero(~test), test=np.flatnonzero(test)))
    return splits
