from __future__ import annotations

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import DeviceId, Workload, WorkloadId
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from tests.model_fixtures import make_dataset, of_devices
from tests.table_fixtures import rows
from transfer.data.dataset import Dataset, build_dataset
from transfer.data.splits import (
    Split,
    SplitKind,
    make_splits,
    network_families,
    workload_folds,
)
from transfer.errors import DatasetError

NETWORKS = {
    name: tuple(networks.split())
    for name, networks in rows("""
        mm0   -> bert_tiny
        mm1   -> bert_base bert_tiny
        mm2   -> bert_base vit
        mm3   -> vit
        conv0 -> resnet
        conv1 -> resnet vit
        conv2 ->
    """)
}
WORKLOADS: dict[WorkloadId, Workload] = {
    one.workload_id: one
    for one in (
        gmm_workload(name, operator="C2D" if name.startswith("conv") else "GMM", networks=networks)
        for name, networks in NETWORKS.items()
    )
}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    records = [
        record_of(candidate, device, 1e-3)
        for size, workload in enumerate(WORKLOADS.values(), 1)
        for candidate in gmm_candidates(workload, size)
        for device in ("a", "b", "c")
    ]
    return build_dataset(records, WORKLOADS, {name: cpu_device(name) for name in ("a", "b", "c")})  # type: ignore[misc]


def alone(workload: Workload) -> Dataset:
    """One candidate of one workload on one device."""
    records = [record_of(gmm_candidates(workload, 1)[0], "a", 1e-3)]
    return build_dataset(records, {workload.workload_id: workload}, {DeviceId("a"): cpu_device("a")})


def names(dataset: Dataset, rows: np.ndarray) -> set[str]:
    return {WORKLOADS[dataset.workload_ids[index]].name for index in np.unique(dataset.group[rows])}


def test_each_fold_has_its_share_of_every_operator_and_seeds_deal_unlike(dataset: Dataset) -> None:
    dealt = set()
    for seed in range(5):
        splits = workload_folds(dataset, WORKLOADS, 3, seed=seed)
        dealt.add(tuple(splits[0].test.tolist()))
        held = Counter()
        for split in splits:
            assert sorted([*split.train, *split.test]) == list(range(len(dataset)))
            held.update(names(dataset, split.test))
            found = Counter(name.rstrip("0123456789") for name in names(dataset, split.test))
            assert 1 <= found["mm"] <= 2
            assert found["conv"] == 1
        assert held == Counter(list(NETWORKS)), "every workload is held out once"
    assert len(dealt) > 1
    # Folds of a part deal the workloads of the part, and few workloads make few folds.
    part = dataset.take(dataset.group < 3)
    splits = workload_folds(part, WORKLOADS, 3, seed=0)
    assert all(len(np.unique(part.group[split.test])) == 1 for split in splits)
    assert [split.name for split in workload_folds(dataset, WORKLOADS, 8, seed=0)][-1] == "fold 7 of 7"


def test_splits_that_cannot_be_made_are_refused(dataset: Dataset) -> None:
    lone = gmm_workload("lone", networks=())
    family = gmm_workload("lone", networks=("bert_tiny", "bert_base"))
    for kind, case, folds, why in (
        (SplitKind.BY_WORKLOAD, (dataset, WORKLOADS), 1, "in 2 folds or more, got 1"),
        (
            SplitKind.BY_WORKLOAD,
            (dataset.take(dataset.group == 0), WORKLOADS),
            2,
            "of 1 workloads, and holding one out leaves nothing",
        ),
        (SplitKind.BY_DEVICE, (of_devices(dataset, "a"), WORKLOADS), 2, "at least two devices"),
        (SplitKind.BY_NETWORK, (alone(lone), {lone.workload_id: lone}), 2, "split by workload instead"),
        (SplitKind.BY_NETWORK, (alone(family), {family.workload_id: family}), 2, "networks of one family"),
    ):
        with pytest.raises(DatasetError, match=why):
            make_splits(kind, *case, folds=folds, seed=0)


NAMES = ("net-a-18", "net-a-50", "net-b_tiny", "net-b_base", "other-v2")


@st.composite
def measured(draw: st.DrawFn) -> tuple[Dataset, dict[WorkloadId, Workload]]:
    """A dataset with random holes, whose workloads belong to random networks and may be alike in shape."""
    workloads = draw(st.integers(2, 9))
    made = make_dataset(workloads=workloads, candidates=draw(st.integers(1, 7)), seed=draw(st.integers(0, 9)))
    latency = made.latency_secs.copy()
    holes = draw(st.integers(0, 2**16))
    latency[np.random.default_rng(holes).random(latency.shape) < 0.4] = np.nan
    order = np.random.default_rng(holes).permutation(len(made))
    made = replace(made, latency_secs=latency).take(order)
    known = {}
    for workload_id in made.workload_ids:
        size = draw(st.sampled_from([8, 16]))
        networks = draw(st.sets(st.sampled_from(NAMES), max_size=3))
        known[workload_id] = msgspec.structs.replace(
            gmm_workload(),
            workload_id=workload_id,
            operator=draw(st.sampled_from(["GMM", "C2D"])),
            arg_shapes=((size, size),),
            networks=tuple((name, 1) for name in sorted(networks)),
        )
    return made, known


def splits_of(kind: SplitKind, case: tuple[Dataset, dict[WorkloadId, Workload]], seed: int) -> list[Split]:
    try:
        return make_splits(kind, *case, folds=2, seed=seed)
    except DatasetError:  # too little of what is to be held out
        return []


@given(measured(), st.sampled_from(SplitKind), st.integers(0, 5))
def test_nothing_that_is_held_out_may_be_learnt_from(
    case: tuple[Dataset, dict[WorkloadId, Workload]], kind: SplitKind, seed: int
) -> None:
    dataset, workloads = case
    again = [split.test.tolist() for split in splits_of(kind, case, seed)]
    for number, split in enumerate(splits_of(kind, case, seed)):
        assert split.test.tolist() == again[number], "splits follow the seed alone"
        assert np.all(np.diff(split.train) > 0)
        assert np.all(np.diff(split.test) > 0)
        seen = split.visible(dataset)
        targets = range(3) if split.targets is None else [dataset.column(name) for name in split.targets]
        # No latency is both learnt from and judged.
        assert not seen[np.ix_(split.test, list(targets))].any()
        learnt, held = (set(dataset.group[rows].tolist()) for rows in (split.train, split.test))
        if kind is SplitKind.BY_DEVICE:
            assert not seen[:, dataset.column(split.name)].any()
            assert np.isfinite(dataset.latency_secs[split.test, dataset.column(split.name)]).all()
        else:
            assert set(split.train.tolist()).isdisjoint(split.test.tolist())
            ids = np.array(dataset.candidate_ids)
            assert set(ids[split.train]).isdisjoint(ids[split.test])
        if kind in {SplitKind.BY_WORKLOAD, SplitKind.BY_NETWORK}:
            assert learnt.isdisjoint(held)
        if kind is SplitKind.BY_NETWORK:
            members = set(network_families(NAMES)[split.name])
            used = {i: {n for n, _ in workloads[w].networks} for i, w in enumerate(dataset.workload_ids)}
            # What a held-out network shares with others is on the held-out side only.
            assert not any(used[index] & members for index in learnt)
            assert all(used[index] & members for index in held)


def test_a_family_is_what_comes_before_size_version_and_options() -> None:
    table = """
        resnet      -> resnet-18 resnet3d_18 resnet50_v2
        resnext     -> resnext-50
        wide-resnet -> wide_resnet_50
        bert        -> bert-tiny bert_base
        inception   -> inception_v3
        densenet    -> densenet121
        mxnet       -> mxnet
        50          -> 50
    """
    families = {family: tuple(names.split()) for family, names in rows(table)}
    assert network_families([name for names in families.values() for name in names]) == families
    for alike in (
        ("mobilenet", "mobilenetv2", "mobilenet_v2", "MobileNetV3-Small", "mobilenet_v2,image_size=96"),
        ("resnet-18", "transformers:resnet,image_size=64,batch=8", "torchvision:resnet18,dtype=float16"),
        ("mine.onnx-0a1b2c3d", "mine.onnx-ffffffff", "mine.pt2-00000000"),
    ):
        [found] = network_families(alike).values()
        assert found == tuple(sorted(alike))
