"""The graph models of the literature: what they learn, and on what their scores depend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks import onboarding_graphs
from benchmarks.onboarding_graphs import (
    Labelled,
    MetaTune,
    TGraph,
    _groups,
    _neighbours,
    adapted,
    fit_metatune,
    fit_tgraph,
    scores_of,
)
from tests.dataset_fixtures import cpu_device
from tests.onboarding_fixtures import NEW, SOURCES, WORKLOADS, records_of
from transfer.data.dataset import Dataset
from transfer.data.joined_records import build_dataset
from transfer.data.ranking import order_agreement

SEED = 0


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    devices = (*SOURCES, NEW)
    return build_dataset(
        [record for device in devices for record in records_of(device)],
        {one.workload_id: one for one in WORKLOADS},
        {device: cpu_device(device) for device in devices},
    )


def lists(dataset: Dataset, device_ids: tuple[str, ...], workloads: range, each: int = 24) -> list[Labelled]:
    rows = np.concatenate([np.flatnonzero(dataset.group == one)[:each] for one in workloads])
    labels = dataset.labels(rows)
    return [Labelled(one, rows, labels[:, dataset.column(one)]) for one in device_ids]


@pytest.fixture(scope="module", params=[fit_tgraph, fit_metatune], ids=["tgraph", "metatune"])
def fitted(request: pytest.FixtureRequest, dataset: Dataset) -> TGraph | MetaTune:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onboarding_graphs, "_EPOCHS", 12)
        patch.setattr(onboarding_graphs, "_TASKS", 100)
        found: TGraph | MetaTune = request.param(dataset, lists(dataset, SOURCES, range(6)), SEED)
    return found


def agreement(model: TGraph | MetaTune, dataset: Dataset, rows: np.ndarray) -> float:
    """Kendall's tau of scores and speeds on the new device, mean of the workloads."""
    scores = scores_of(model, dataset, rows, NEW, SEED)
    secs = dataset.latency_secs[rows, dataset.column(NEW)]
    group = dataset.group[rows]
    return float(
        np.mean([order_agreement(scores[group == one], secs[group == one])[1] for one in np.unique(group)])
    )


def held(dataset: Dataset) -> np.ndarray:
    return np.flatnonzero(dataset.group >= 6)


def test_they_rank_workloads_and_a_device_that_they_never_saw(
    fitted: TGraph | MetaTune, dataset: Dataset
) -> None:
    assert agreement(fitted, dataset, held(dataset)) > 0.4


def test_samples_of_the_new_device_change_a_copy_only(fitted: TGraph | MetaTune, dataset: Dataset) -> None:
    before = {name: one.clone() for name, one in fitted.state_dict().items()}
    [few] = lists(dataset, (NEW,), range(4), each=8)
    tuned = adapted(fitted, dataset, few, SEED)
    assert tuned is not fitted
    assert all(torch.equal(one, before[name]) for name, one in fitted.state_dict().items())
    assert adapted(fitted, dataset, None, SEED) is fitted
    assert agreement(tuned, dataset, few.rows) >= agreement(fitted, dataset, few.rows)


def test_equal_seeds_give_equal_scores(fitted: TGraph | MetaTune, dataset: Dataset) -> None:
    rows = held(dataset)
    first, again = (scores_of(fitted, dataset, rows, NEW, SEED) for _ in range(2))
    assert np.array_equal(first, again)


def test_only_tgraph_sees_the_company_of_a_candidate(fitted: TGraph | MetaTune, dataset: Dataset) -> None:
    rows = np.flatnonzero(dataset.group == 7)
    whole = scores_of(fitted, dataset, rows, NEW, SEED)
    part = scores_of(fitted, dataset, rows[:5], NEW, SEED)
    assert np.allclose(whole[:5], part, atol=1e-5) == isinstance(fitted, MetaTune)
    # Its place in the company makes no difference.
    turned = scores_of(fitted, dataset, rows[::-1].copy(), NEW, SEED)
    np.testing.assert_allclose(turned[::-1], whole, atol=1e-5)


def test_a_large_workload_is_scored_in_companies_of_several_orders(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onboarding_graphs, "_EPOCHS", 1)
    monkeypatch.setattr(onboarding_graphs, "_COMPANY", 8)
    model = fit_tgraph(dataset, lists(dataset, SOURCES, range(2)), SEED)
    [group] = _groups(dataset, lists(dataset, (NEW,), range(1)))
    sizes: list[int] = []

    def noted(inputs: tuple[torch.Tensor, ...], hardware: torch.Tensor) -> torch.Tensor:
        sizes.append(len(inputs[0]))
        return torch.zeros(len(inputs[0]))

    monkeypatch.setattr(model, "forward", noted)
    model.score(group, SEED)
    assert sizes == [8] * 3 * onboarding_graphs._ORDERS


def test_neighbours_are_next_to_each_other_or_of_one_block() -> None:
    block = torch.tensor([[5, 6, 5, 1, 1, 0]])
    shares = _neighbours(block, block > 0)[0]
    assert shares[0].tolist() == [0, 0.5, 0.5, 0, 0, 0]
    assert shares[1].tolist() == [0.5, 0, 0.5, 0, 0, 0]
    # Unknown blocks are not the same, and padding has no neighbour.
    assert shares[3].tolist() == [0, 0, 0.5, 0, 0.5, 0]
    assert not shares[5].any()


def test_inner_steps_of_metatune_are_plain_gradient_steps(dataset: Dataset) -> None:
    rows = np.arange(len(dataset))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MetaTune(dataset, rows)
    [group] = _groups(dataset, lists(dataset, (NEW,), range(1)))
    encoded = model.encode(group.inputs, group.hardware).detach()
    layers = {name: one.detach().clone().requires_grad_() for name, one in model.layers.named_parameters()}
    stepped = model._stepped(layers, encoded, group.labels, 2)
    optimizer = torch.optim.SGD(model.layers.parameters(), lr=onboarding_graphs._INNER_RATE)
    for _ in range(2):
        optimizer.zero_grad()
        F.mse_loss(model(encoded), group.labels).backward()
        optimizer.step()
    for name, one in model.layers.named_parameters():
        torch.testing.assert_close(stepped[name], one)
