from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from agents.records import Workload, WorkloadId
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from transfer.dataset import Dataset, build_dataset
from transfer.errors import DatasetError
from transfer.splits import Split, leave_device_out, leave_networks_out, within_workload, workload_folds

NETWORKS = {
    "mm0": ("bert_tiny",),
    "mm1": ("bert_base", "bert_tiny"),
    "mm2": ("bert_base", "vit"),
    "mm3": ("vit",),
    "conv0": ("resnet",),
    "conv1": ("resnet", "vit"),
    "conv2": (),
}
WORKLOADS: dict[WorkloadId, Workload] = {
    one.workload_id: one
    for one in (
        gmm_workload(name, operator="C2D" if name.startswith("conv") else "GMM", networks=networks)
        for name, networks in NETWORKS.items()
    )
}
SIZES = (1, 2, 3, 4, 5, 6, 7)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    records = [
        record_of(candidate, device, 1e-3)
        for workload, size in zip(WORKLOADS.values(), SIZES, strict=True)
        for candidate in gmm_candidates(workload, size)
        for device in ("a", "b", "c")
    ]
    return build_dataset(records, WORKLOADS, {name: cpu_device(name) for name in ("a", "b", "c")})  # type: ignore[misc]


def names(dataset: Dataset, rows: np.ndarray) -> set[str]:
    return {WORKLOADS[dataset.workload_ids[index]].name for index in np.unique(dataset.group[rows])}


def assert_whole(dataset: Dataset, split: Split) -> None:
    both = np.concatenate([split.train, split.test])
    assert sorted(both.tolist()) == list(range(len(dataset)))


@pytest.mark.parametrize("folds", [2, 3, 7])
def test_every_workload_is_held_out_once_and_never_leaks(dataset: Dataset, folds: int) -> None:
    splits = workload_folds(dataset, WORKLOADS, folds, seed=1)
    assert len(splits) == folds
    held: Counter[str] = Counter()
    for split in splits:
        assert_whole(dataset, split)
        assert names(dataset, split.train).isdisjoint(names(dataset, split.test))
        assert len(split.test)
        held.update(names(dataset, split.test))
    assert held == Counter(list(NETWORKS))


def test_each_fold_has_its_share_of_every_operator(dataset: Dataset) -> None:
    for seed in range(5):
        for split in workload_folds(dataset, WORKLOADS, 3, seed=seed):
            found = Counter(name.rstrip("0123456789") for name in names(dataset, split.test))
            assert 1 <= found["mm"] <= 2
            assert found["conv"] == 1


def test_folds_follow_the_seed_alone(dataset: Dataset) -> None:
    first, again, other = (
        [split.test.tolist() for split in workload_folds(dataset, WORKLOADS, 3, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_folds_of_a_part_only_deal_the_workloads_of_the_part(dataset: Dataset) -> None:
    part = dataset.take(dataset.group < 3)
    splits = workload_folds(part, WORKLOADS, 3, seed=0)
    assert all(len(np.unique(part.group[split.test])) == 1 for split in splits)


@pytest.mark.parametrize("folds", [0, 1, 8])
def test_folds_that_cannot_be_made_are_refused(dataset: Dataset, folds: int) -> None:
    with pytest.raises(DatasetError, match=f"cannot make {folds} folds of 7 workloads"):
        workload_folds(dataset, WORKLOADS, folds, seed=0)


def test_within_workload_every_workload_trains_and_most_are_judged(dataset: Dataset) -> None:
    split = within_workload(dataset, 0.25, seed=3)
    assert_whole(dataset, split)
    assert names(dataset, split.train) == set(NETWORKS)
    sizes = Counter(dataset.group.tolist())
    tested = Counter(dataset.group[split.test].tolist())
    assert {index: tested[index] for index in sizes} == {
        index: {1: 0, 2: 1, 3: 1, 4: 1, 5: 1, 6: 2, 7: 2}[size] for index, size in sizes.items()
    }
    np.testing.assert_array_equal(split.test, within_workload(dataset, 0.25, seed=3).test)
    with pytest.raises(DatasetError, match="inside"):
        within_workload(dataset, 1.0, seed=3)


def test_each_device_is_the_target_once(dataset: Dataset) -> None:
    assert leave_device_out(dataset) == [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])]


def test_leaving_out_the_only_device_is_refused(dataset: Dataset) -> None:
    alone = build_dataset(
        [record_of(gmm_candidates(next(iter(WORKLOADS.values())), 1)[0], "a", 1e-3)],
        WORKLOADS,
        {"a": cpu_device("a")},  # type: ignore[dict-item]
    )
    with pytest.raises(DatasetError, match="at least two devices"):
        leave_device_out(alone)


def test_a_held_out_network_shares_no_workload_with_training(dataset: Dataset) -> None:
    splits = {split.name: split for split in leave_networks_out(dataset, WORKLOADS)}
    assert sorted(splits) == ["bert_base", "bert_tiny", "resnet", "vit"]
    for name, split in splits.items():
        assert_whole(dataset, split)
        users = {workload for workload, networks in NETWORKS.items() if name in networks}
        assert names(dataset, split.test) == users
        assert names(dataset, split.train).isdisjoint(users)


def test_a_family_takes_all_sizes_of_its_network_along(dataset: Dataset) -> None:
    splits = leave_networks_out(
        dataset, WORKLOADS, {"bert": ("bert_tiny", "bert_base"), "absent": ("gpt",), "all": tuple(NETWORKS)}
    )
    assert [split.name for split in splits] == ["bert"]
    assert names(dataset, splits[0].test) == {"mm0", "mm1", "mm2"}


def test_workloads_without_networks_cannot_be_split_by_network() -> None:
    lone = gmm_workload("lone", networks=())
    alone = build_dataset(
        [record_of(gmm_candidates(lone, 1)[0], "a", 1e-3)],
        {lone.workload_id: lone},
        {"a": cpu_device("a")},  # type: ignore[dict-item]
    )
    with pytest.raises(DatasetError, match="split by workload instead"):
        leave_networks_out(alone, {lone.workload_id: lone})
