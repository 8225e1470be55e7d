"""Deterministic divisions of a dataset into rows to learn from and rows to be judged on.

Random rows share their workload, and near-copies of themselves, with the rows held out; a split must say what
is new about its test rows: the workload, the network, the device, or only the candidate. These are `by_task`,
`by_target` and `within_task` of TenSet, and whole networks held out as TLP does, but without the leak that
remains there (the same network at another image size, `transfer` of a shared layer): families are held out
whole, and a layer that a held-out network shares with others is never learnt from. Called by training and
evaluation; knows nothing of models.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from agents.records import Workload, WorkloadId
from transfer.arrays import Groups, Ints, Mask, Rows
from transfer.data.dataset import Dataset
from transfer.errors import DatasetError

#: What a name says beside the architecture (`agents.networks.network_name`): its library, and its options or
#: the hash of its file.
_BESIDE = re.compile(r"^[^,]*:|,.*$|\.(?:onnx|pt2)(?:-.*)?$", re.DOTALL)
#: Words that tell the size of a network, not what it is.
_SIZES = frozenset({"nano", "tiny", "mini", "small", "medium", "base", "large", "xlarge", "huge"})


class SplitKind(StrEnum):
    """What is new about the rows that rankers are judged on."""

    #: The candidate only: others of its workload were learnt from (`within_task`).
    WITHIN_WORKLOAD = "within-workload"
    #: The workload (`by_task`).
    BY_WORKLOAD = "by-workload"
    #: The network, with its whole family.
    BY_NETWORK = "by-network"
    #: The device: the same candidates were learnt from on the others (`by_target`).
    BY_DEVICE = "by-device"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Row indexes of one division, in rising order, and what may be seen of them."""

    #: What is held out, for reports: `fold 2 of 5`, a network, a device.
    name: str
    train: Rows
    test: Rows
    #: Devices whose latencies may be learnt from; None for all.
    sources: tuple[str, ...] | None = None
    #: Devices to be judged on the test rows; None for all.
    targets: tuple[str, ...] | None = None

    def visible(self, dataset: Dataset) -> Mask:
        """(N, D) True where a latency may be learnt from."""
        is_visible = np.zeros(dataset.latency_secs.shape, dtype=np.bool_)
        is_visible[self.train] = True
        if self.sources is not None:
            is_visible &= np.isin(np.array(dataset.device_ids), self.sources)[None, :]
        return is_visible


def make_splits(
    kind: SplitKind, dataset: Dataset, workloads: Mapping[WorkloadId, Workload], *, folds: int, seed: int
) -> list[Split]:
    """The splits of one kind.

    Of `folds` parts of the workloads each is held out once; within workloads one part of that size is.
    Networks and devices are held out one after another, whatever it says.

    Raises:
        DatasetError: The dataset has too little of what is to be held out.
    """
    match kind:
        case SplitKind.WITHIN_WORKLOAD:
            return [within_workload(dataset, 1 / folds, seed)]
        case SplitKind.BY_WORKLOAD:
            return workload_folds(dataset, workloads, folds, seed)
        case SplitKind.BY_NETWORK:
            names = {
                name for workload in workloads.values() for name, count in workload.networks if count > 0
            }
            splits = leave_networks_out(dataset, workloads, network_families(names))
            if not splits:
                raise DatasetError(
                    "all workloads belong to networks of one family, so none can be held out; split by "
                    "workload instead, or collect another network"
                )
            return splits
        case SplitKind.BY_DEVICE:
            return leave_device_out(dataset)


def workload_folds(
    dataset: Dataset, workloads: Mapping[WorkloadId, Workload], folds: int, seed: int
) -> list[Split]:
    """Hold out every workload exactly once, each fold with its share of every operator, dealt by `seed`.

    There are `folds` of them, or one per workload with rows if these are fewer.

    Raises:
        DatasetError: There are rows of fewer than 2 workloads, or fewer than 2 folds are asked for.
    """
    present = np.unique(dataset.group)
    if folds < 2:
        raise DatasetError(f"workloads are held out in 2 folds or more, got {folds}")
    if len(present) < 2:
        raise DatasetError(
            f"there are candidates of {len(present)} workloads, and holding one out leaves nothing to learn "
            "from: measure more workloads (`fleet collect --workloads 8`), or split within workloads"
        )
    folds = min(folds, len(present))
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
    """
    random = np.random.default_rng(seed)
    held = np.zeros(len(dataset), dtype=np.bool_)
    order = np.argsort(dataset.group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(dataset.group[order])) + 1):
        rows = random.permutation(members)
        count = min(len(rows) - 1, max(1, round(test_fraction * len(rows))))
        held[rows[:count]] = True
    return Split(name="within workload", train=np.flatnonzero(~held), test=np.flatnonzero(held))


def leave_device_out(dataset: Dataset) -> list[Split]:
    """Hold out each device once: its own measurements are judged, those of the others learnt from.

    Both sides have the same candidates, so what is new is the device alone.

    Raises:
        DatasetError: There are fewer than two devices.
    """
    devices = [str(device_id) for device_id in dataset.device_ids]
    if len(devices) < 2:
        raise DatasetError(f"leaving a device out needs at least two devices, the dataset has {devices}")
    splits = []
    for target in devices:
        sources = tuple(source for source in devices if source != target)
        columns = [dataset.column(source) for source in sources]
        is_tried = ~np.isnan(dataset.latency_secs[:, columns]) | dataset.failed[:, columns]
        splits.append(
            Split(
                name=target,
                train=np.flatnonzero(is_tried.any(axis=1)),
                test=dataset.rows_of(target),
                sources=sources,
                targets=(target,),
            )
        )
    return splits


def leave_networks_out(
    dataset: Dataset,
    workloads: Mapping[WorkloadId, Workload],
    families: Mapping[str, Sequence[str]],
) -> list[Split]:
    """Hold out the workloads of one network family after another.

    A workload that occurs in the family is a test row and never trained on, whoever else uses it, so nothing
    of the held-out networks leaks. Workloads of no network are always trained on. There is one split a family
    (see `network_families`), by name; families without test rows, or without training rows, are left out.

    Raises:
        DatasetError: No workload names a network.
    """
    networks_of = {
        index: {name for name, count in workloads[workload_id].networks if count > 0}
        for index, workload_id in enumerate(dataset.workload_ids)
    }
    if not any(networks_of.values()):
        raise DatasetError("no workload of the dataset belongs to a network; split by workload instead")
    splits = []
    for family in sorted(families):
        members = set(families[family])
        out = [index for index, networks in networks_of.items() if networks & members]
        test = np.isin(dataset.group, out)
        if test.any() and not test.all():
            splits.append(Split(name=family, train=np.flatnonzero(~test), test=np.flatnonzero(test)))
    return splits


def network_families(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Put the sizes and versions of a network together: resnet-18 with resnet50_v2, bert-tiny with bert-base.

    What comes before the first number, version (`v2`, also within a word) or word of size names the family.
    """
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(names)):
        stems: list[str] = []
        for word in re.split(r"[-_. ]+", _BESIDE.sub("", name.lower())):
            stem = re.split(r"v?\d", word, maxsplit=1)[0]
            if word in _SIZES or stem in {"", "v"}:
                break
            stems.append(stem)
            if stem != word:
                break
        families["-".join(stems) or name].append(name)
    return {family: tuple(members) for family, members in families.items()}


def near_copies(
    dataset: Dataset, workloads: Mapping[WorkloadId, Workload], split: Split
) -> dict[WorkloadId, tuple[WorkloadId, ...]]:
    """Test workloads with a near-copy to learn from: another workload of the same operator and shapes.

    Such pairs differ in data types, strides or layout alone (or in nothing that the workload tells). They are
    no leak of labels, but a reader should know how much of the test they make easy.

    Returns:
        Training workloads by test workload; one that is on both sides of the split is its own near-copy.
    """
    learnt: dict[tuple[object, ...], list[WorkloadId]] = defaultdict(list)
    for index in np.unique(dataset.group[split.train]).tolist():
        workload = workloads[dataset.workload_ids[index]]
        learnt[workload.operator, workload.arg_shapes].append(workload.workload_id)
    copies_by_workload = {}
    for index in np.unique(dataset.group[split.test]).tolist():
        workload = workloads[dataset.workload_ids[index]]
        # Without shapes nothing is known that could be alike.
        copies = learnt.get((workload.operator, workload.arg_shapes), []) if workload.arg_shapes else []
        if copies:
            copies_by_workload[workload.workload_id] = tuple(copies)
    return copies_by_workload


def few_of_each(dataset: Dataset, rows: Rows, most: int, seed: int) -> Ints:
    """A random choice of at most `most` rows of each workload, in ascending order."""
    return np.sort(rows[few_places(dataset.group[rows], most, np.random.default_rng(seed))])


def few_places(group: Groups, most: int, random: np.random.Generator) -> Ints:
    """Places of at most `most` members of each (n,) group, ascending; `random` draws once for all of them."""
    shuffled = random.permutation(len(group))
    order = shuffled[np.argsort(group[shuffled], kind="stable")]
    ordered = group[order]
    return np.sort(order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < most])
