"""Two graph models of the literature as baselines of the onboarding curve: TGraph and MetaTune.

The nodes are the steps of a schedule, which say what loops there are and how they are cut. Both read the
hardware vector of a device as well, so that one model serves all. Scores of TGraph depend on what is scored
beside them: here the company is fixed, the candidates of the workload that are to be put in order. Called by
`benchmarks.onboarding_baselines`.

Legend: n candidates of one workload, L steps, C channels, H slots of a hardware vector.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from transfer.data.dataset import Dataset
from transfer.evaluate.rankers import Rows, Scores
from transfer.model.encoder import Standardise
from transfer.model.fleet_tlp import scoped_seed
from transfer.model.inputs import block_tensors, torch_threads
from transfer.train.losses import pairwise_hinge

_WIDTH, _EMBEDDED = 64, 8
#: Candidates of a workload that see each other, in training and in scoring; orders of a larger workload that
#: are tried, and averaged.
_COMPANY, _ORDERS = 64, 10
_RATE, _TUNING_RATE = 1e-3, 3e-4
_EPOCHS, _TUNING_EPOCHS = 24, 16
#: Of MetaTune: workloads and samples of each in a task, tasks, and steps inside of one and on the samples.
_WAYS, _SHOTS, _TASKS, _INNER_STEPS, _TUNING_STEPS = 3, 2, 400, 2, 20
_INNER_RATE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Rows of one device with their relative speeds."""

    device_id: str
    rows: Rows
    labels: NDArray[np.float64]


class _Group:
    """Candidates of one workload on one device, as tensors."""

    def __init__(self, dataset: Dataset, rows: Rows, device_id: str, labels: NDArray[np.float64]) -> None:
        steps = dataset.features.steps.shape[1]
        self.inputs = block_tensors(dataset.features, rows, steps)[:3]
        self.hardware = _hardware(dataset, device_id)
        self.labels = torch.from_numpy(labels.astype(np.float32))
        self.workload = int(dataset.group[rows[0]])

    def __len__(self) -> int:
        return len(self.labels)

    def some(self, places: NDArray[np.int64]) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """Inputs and labels of some of them."""
        chosen = torch.from_numpy(places)
        categories, numbers, mask = self.inputs
        return (categories[chosen], numbers[chosen], mask[chosen]), self.labels[chosen]


def _hardware(dataset: Dataset, device_id: str) -> Tensor:
    """(H,) hardware vector in spreads of each slot over the devices."""
    spread = np.maximum(dataset.hardware.std(axis=0), 1e-6)
    centred = (dataset.hardware[dataset.column(device_id)] - dataset.hardware.mean(axis=0)) / spread
    return torch.from_numpy(np.clip(centred, -6, 6).astype(np.float32))


def _groups(dataset: Dataset, lists: Sequence[Labelled]) -> list[_Group]:
    """One group for each workload and device with two labels or more."""
    found = []
    for one in lists:
        group = dataset.group[one.rows]
        for workload in np.unique(group):
            mine = np.flatnonzero(group == workload)
            if len(mine) > 1:
                found.append(_Group(dataset, one.rows[mine], one.device_id, one.labels[mine]))
    return found


class _Nodes(nn.Module):
    """Steps as nodes: embeddings of their categories and standardised numbers, through one layer."""

    def __init__(self, dataset: Dataset, rows: Rows) -> None:
        super().__init__()
        block = dataset.features.take(rows)
        self.embeddings = nn.ModuleList(nn.Embedding(s, _EMBEDDED) for s in dataset.spec.category_sizes)
        self.numbers = Standardise(block.step_numbers.shape[1])
        self.numbers.fit(block.step_numbers, block.step_counts())
        self.join = nn.Linear(block.step_numbers.shape[1] + _EMBEDDED * len(self.embeddings), _WIDTH)

    def forward(self, categories: Tensor, numbers: Tensor, mask: Tensor) -> Tensor:
        """(n, L, C); null at padding."""
        parts = [one(categories[:, :, place]) for place, one in enumerate(self.embeddings)]
        joined: Tensor = self.join(torch.cat([*parts, self.numbers(numbers)], dim=2))
        return F.gelu(joined) * mask[:, :, None]


def _neighbours(block: Tensor, mask: Tensor) -> Tensor:
    """(n, L, L) shares of a step's neighbours: those next to it, and of its block (0 and 1 are none)."""
    place = torch.arange(mask.shape[1])
    near = (place[:, None] - place[None, :]).abs() == 1
    same = (block[:, :, None] == block[:, None, :]) & (block > 1)[:, :, None] & (place[:, None] != place)
    joined = (near | same) & mask[:, :, None] & mask[:, None, :]
    return joined / joined.sum(dim=2, keepdim=True).clamp(min=1)


class _CrossBlock(nn.Module):
    """x + GELU(h beside A_cross(h)), h = A_self(SAGE(norm(x))); see `TGraph`."""

    def __init__(self) -> None:
        super().__init__()
        half = _WIDTH // 2
        self.own, self.around = nn.Linear(_WIDTH, half), nn.Linear(_WIDTH, half)
        self.squeeze, self.excite = nn.Linear(half, max(1, half // 8)), nn.Linear(max(1, half // 8), half)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, neighbours: Tensor, mask: Tensor) -> Tensor:
        """(n, L, C), each of the n seeing the others."""
        shown = mask[:, :, None]
        count = shown.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (x * shown).sum(dim=1, keepdim=True) / count
        spread = (((x - mean) * shown) ** 2).sum(dim=1, keepdim=True) / count
        normed = (x - mean) * torch.rsqrt(spread + 1e-5) * shown
        h = F.normalize(self.own(normed), dim=2) + self.around(neighbours @ normed)
        h = h * torch.sigmoid(self.excite(F.relu(self.squeeze(h))))
        across = torch.softmax(h / self.log_temperature.exp(), dim=0) * h
        return x + F.gelu(torch.cat([h, across], dim=2)) * shown


class TGraph(nn.Module):
    """Graph network with attention across configurations.

    "Graph neural network with cross-configuration attention" (TGraph, arXiv 2405.16623, section 4): two
    blocks of GraphSAGE, a gate of channels by squeeze and excitation, and a softmax of each channel over the
    configurations of a batch; pairwise hinge loss; test-time augmentation over random batches. The gathered
    features are means over neighbours, whose number differs between schedules.
    """

    def __init__(self, dataset: Dataset, rows: Rows) -> None:
        super().__init__()
        names = [name for name, _ in dataset.spec.categories]
        self.block_slot = names.index("block") if "block" in names else -1
        self.nodes = _Nodes(dataset, rows)
        self.hardware = nn.Linear(dataset.hardware.shape[1], _WIDTH)
        self.blocks = nn.ModuleList([_CrossBlock(), _CrossBlock()])
        self.output = nn.Linear(_WIDTH, 1)

    def forward(self, inputs: tuple[Tensor, Tensor, Tensor], hardware: Tensor) -> Tensor:
        """(n,) scores of candidates that are each other's company."""
        categories, numbers, mask = inputs
        neighbours = _neighbours(categories[:, :, self.block_slot], mask)
        x = (self.nodes(categories, numbers, mask) + self.hardware(hardware)) * mask[:, :, None]
        for block in self.blocks:
            x = block(x, neighbours, mask)
        pooled = x.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.as_tensor(self.output(pooled)).squeeze(1)

    def learn(self, groups: Sequence[_Group], epochs: int, rate: float, seed: int) -> None:
        """Train, a batch one workload on one device."""
        random = np.random.default_rng(seed)
        optimizer = torch.optim.AdamW(self.parameters(), lr=rate, weight_decay=1e-4)
        self.train()
        for _ in range(epochs):
            for place in random.permutation(len(groups)).tolist():
                group = groups[place]
                inputs, labels = group.some(random.permutation(len(group))[:_COMPANY])
                scores = self(inputs, group.hardware)
                known = torch.ones_like(labels, dtype=torch.bool)
                loss = pairwise_hinge(scores[None], labels[None], known[None]).sum()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
                nn.utils.clip_grad_norm_(self.parameters(), 1.0)
                optimizer.step()

    def score(self, group: _Group, seed: int) -> Scores:
        """(n,) scores: the mean over orders in which a large workload is cut into companies."""
        random, count = np.random.default_rng(seed), len(group)
        found = np.zeros(count)
        orders = _ORDERS if count > _COMPANY else 1
        with torch.no_grad():
            for _ in range(orders):
                order = random.permutation(count)
                for part in np.array_split(order, -(-count // _COMPANY)):
                    inputs, _ = group.some(part)
                    found[part] += self(inputs, group.hardware).double().numpy() / orders
        return found


class MetaTune(nn.Module):
    """Graph encoding under meta-learning.

    MetaTune (arXiv 2102.04199, sections 3 and 4): programs are embedded into one super-graph with null
    features where a program lacks a node, so all share one structure; graph convolution, weighted sum and
    maximum over the nodes, three fully connected layers. Supervised pre-training, then the convolution is
    frozen and the layers are trained by MAML (first order) on few-shot tasks of several operators. Here the
    super-graph is the chain of L places of a sequence.
    """

    def __init__(self, dataset: Dataset, rows: Rows) -> None:
        super().__init__()
        steps = dataset.features.steps.shape[1]
        self.nodes = _Nodes(dataset, rows)
        self.convolution = nn.Linear(_WIDTH, _WIDTH)
        self.pooling = nn.Parameter(torch.full((steps,), 1 / steps))
        width = 2 * _WIDTH + dataset.hardware.shape[1]
        self.layers = nn.Sequential(
            nn.Linear(width, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 1)
        )
        place = torch.arange(steps)
        chain = ((place[:, None] - place[None, :]).abs() <= 1).float()
        self.register_buffer("chain", chain / chain.sum(dim=1, keepdim=True))

    def encode(self, inputs: tuple[Tensor, Tensor, Tensor], hardware: Tensor) -> Tensor:
        """(n, 2C + H) candidates on a device as one vector each."""
        chain = torch.as_tensor(self.chain)
        x = F.relu(self.convolution(chain @ self.nodes(*inputs)))
        pooled = torch.cat([torch.einsum("nlc,l->nc", x, self.pooling), x.amax(dim=1)], dim=1)
        return torch.cat([pooled, hardware.expand(len(x), -1)], dim=1)

    def forward(self, encoded: Tensor) -> Tensor:
        """(n,) estimated relative speeds."""
        return torch.as_tensor(self.layers(encoded)).squeeze(1)

    def learn(self, groups: Sequence[_Group], seed: int) -> None:
        """Pre-train all of it, then the layers on tasks of a few samples."""
        random = np.random.default_rng(seed)
        optimizer = torch.optim.Adam(self.parameters(), lr=_RATE)
        for _ in range(_EPOCHS):
            for place in random.permutation(len(groups)).tolist():
                inputs, labels = groups[place].some(random.permutation(len(groups[place]))[:_COMPANY])
                loss = F.mse_loss(self(self.encode(inputs, groups[place].hardware)), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
                optimizer.step()
        with torch.no_grad():
            encoded = [(self.encode(one.inputs, one.hardware), one.labels) for one in groups]
        meta = torch.optim.Adam(self.layers.parameters(), lr=_RATE / 3)
        for support, query in _tasks(encoded, groups, random):
            layers = {name: one.clone() for name, one in self.layers.named_parameters()}
            loss = F.mse_loss(self._with(self._stepped(layers, *support, _INNER_STEPS), query[0]), query[1])
            meta.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch publishes no type for it
            meta.step()

    def tune(self, groups: Sequence[_Group]) -> None:
        """Take steps on the samples of a new device."""
        with torch.no_grad():
            encoded = torch.cat([self.encode(one.inputs, one.hardware) for one in groups])
        labels = torch.cat([one.labels for one in groups])
        layers = {name: one.detach().requires_grad_() for name, one in self.layers.named_parameters()}
        self.layers.load_state_dict(self._stepped(layers, encoded, labels, _TUNING_STEPS))

    def score(self, group: _Group) -> Scores:
        """(n,) scores; none depends on the others."""
        with torch.no_grad():
            found: Scores = self(self.encode(group.inputs, group.hardware)).double().numpy()
        return found

    def _with(self, layers: dict[str, Tensor], encoded: Tensor) -> Tensor:
        return torch.as_tensor(functional_call(self.layers, layers, encoded)).squeeze(1)

    def _stepped(
        self, layers: dict[str, Tensor], encoded: Tensor, labels: Tensor, steps: int
    ) -> dict[str, Tensor]:
        """Layers after some steps; gradients of the steps themselves are left out (first order)."""
        for _ in range(steps):
            loss = F.mse_loss(self._with(layers, encoded), labels)
            gradients = torch.autograd.grad(loss, list(layers.values()))
            pairs = zip(layers.items(), gradients, strict=True)
            layers = {name: one - _INNER_RATE * gradient for (name, one), gradient in pairs}
        return layers


_Examples = tuple[Tensor, Tensor]


def _tasks(
    encoded: Sequence[_Examples], groups: Sequence[_Group], random: np.random.Generator
) -> Iterator[tuple[_Examples, _Examples]]:
    """Support and query of tasks: a few samples of some workloads of one device, and others of the same."""
    devices: dict[bytes, list[int]] = {}
    for place, one in enumerate(groups):
        if len(one) > _SHOTS:
            devices.setdefault(one.hardware.numpy().tobytes(), []).append(place)
    if not devices:
        return
    members = list(devices.values())
    for _ in range(_TASKS):
        mine = members[random.integers(len(members))]
        chosen = random.choice(mine, min(_WAYS, len(mine)), replace=False)
        parts: tuple[list[_Examples], list[_Examples]] = ([], [])
        for place in chosen.tolist():
            vectors, labels = encoded[place]
            order = torch.from_numpy(random.permutation(len(labels)))
            for part, some in zip(parts, (order[:_SHOTS], order[_SHOTS : 16 * _SHOTS]), strict=True):
                part.append((vectors[some], labels[some]))
        support, query = ((torch.cat([x for x, _ in p]), torch.cat([y for _, y in p])) for p in parts)
        yield support, query


def fit_tgraph(dataset: Dataset, lists: Sequence[Labelled], seed: int) -> TGraph:
    """A TGraph of the source devices."""
    with scoped_seed(seed), torch_threads(1):
        model = TGraph(dataset, np.unique(np.concatenate([one.rows for one in lists])))
        model.learn(_groups(dataset, lists), _EPOCHS, _RATE, seed)
    return model.eval()


def fit_metatune(dataset: Dataset, lists: Sequence[Labelled], seed: int) -> MetaTune:
    """A MetaTune of the source devices."""
    with scoped_seed(seed), torch_threads(1):
        model = MetaTune(dataset, np.unique(np.concatenate([one.rows for one in lists])))
        model.learn(_groups(dataset, lists), seed)
    return model.eval()


def adapted(model: TGraph | MetaTune, dataset: Dataset, few: Labelled | None, seed: int) -> TGraph | MetaTune:
    """The model after it learnt from the samples of a new device; itself where there is nothing to learn."""
    groups = [] if few is None else _groups(dataset, [few])
    if not groups:
        return model
    tuned = copy.deepcopy(model)
    with scoped_seed(seed), torch_threads(1):
        if isinstance(tuned, TGraph):
            tuned.learn(groups, _TUNING_EPOCHS, _TUNING_RATE, seed)
        else:
            tuned.tune(groups)
    return tuned.eval()


def scores_of(model: TGraph | MetaTune, dataset: Dataset, rows: Rows, device_id: str, seed: int) -> Scores:
    """(rows,) scores, comparable inside of a workload."""
    found = np.zeros(len(rows))
    with torch_threads(1):
        for workload in np.unique(dataset.group[rows]):
            mine = np.flatnonzero(dataset.group[rows] == workload)
            group = _Group(dataset, rows[mine], device_id, np.zeros(len(mine)))
            found[mine] = model.score(group, seed) if isinstance(model, TGraph) else model.score(group)
    return found
