"""Meta-learning: a start from which a few labelled candidates of a workload teach much.

MetaTune (arXiv 2102.04199) pretrains a cost model by ordinary supervision, then by MAML (Finn et al., ICML
2017): one meta-task is one workload on one source device, parted into a few candidates to learn from and
others to be judged on. The start is moved so that a few steps on the first rank the second. As a new device
begins with the head of another one, so does each meta-task: a start belongs to a source model and to no
target. Rates of the inner steps are learnt too, one for each tensor (Meta-SGD). Its first-order form and ANIL
(Raghu et al., ICLR 2020), where only the head moves in the inner steps, ranked worse (`docs/decisions/0045`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from agents.files import write_durably
from agents.records import canonical_json, content_hash
from transfer.adapt.base import Adapted, FewShotTask
from transfer.adapt.heads import choose_rate, with_target_head
from transfer.arrays import Ints
from transfer.checked_folder import read_file
from transfer.data.dataset import Dataset
from transfer.errors import TransferError
from transfer.model.fleet_tlp import FleetTLP, scoped_seed
from transfer.model.inputs import block_tensors, torch_threads
from transfer.train.losses import head_loss
from transfer.train.rows import TrainConfig, TrainingRows, gather_rows, lay_out, trainable_devices
from transfer.train.state import digest

Parameters = dict[str, Tensor]

#: Candidates of a meta-task that the inner steps learn from, and that the result is judged on.
_LEARNT, _JUDGED = 8, 24
#: Names of heads' parameters in a `_Scorer`: `model.heads.KEY.LAYER.NAME`.
_HEADS = "model.heads."
#: Inner rates start here.
_FIRST_RATE = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class MetaStart:
    """What meta-training gives: where to start, and how far to step."""

    #: With the heads of the source devices.
    model: FleetTLP
    #: By role of a parameter.
    rates: Parameters

    def tensors(self) -> Parameters:
        """All that was learnt, ready for safetensors."""
        learnt = {f"model.{name}": value.detach() for name, value in self.model.named_parameters()}
        return learnt | {f"rates.{name}": rate for name, rate in self.rates.items()}

    @classmethod
    def restored(cls, tensors: Parameters, source: FleetTLP) -> MetaStart:
        """Inverse of `tensors`, for the model that the start was made from.

        Raises:
            KeyError, RuntimeError: It was made from another one.
        """
        model = source.copy()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(tensors[f"model.{name}"])
        roles = map(_role, _Scorer(model, model.device_ids[0]).learnt())
        return cls(model, {role: tensors[f"rates.{role}"] for role in roles})


class _Scorer(nn.Module):
    """Backbone and one head as one module, which `functional_call` asks for."""

    def __init__(self, model: FleetTLP, device_id: str) -> None:
        super().__init__()
        self.model = model
        self.device_id = device_id

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits (N,)."""
        return self.model.logits(self.model.backbone(*inputs), self.device_id)

    def learnt(self) -> Parameters:
        """Parameters of the backbone and the head, by name."""
        head = {id(parameter) for parameter in self.model.head(self.device_id).parameters()}
        others = (_HEADS, "model.validity_outputs.")
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if id(parameter) in head or not name.startswith(others)
        }


def _role(name: str) -> str:
    """The name of a parameter of a `_Scorer`, the same for the heads of all devices."""
    return f"head.{name.split('.', 3)[3]}" if name.startswith(_HEADS) else name


@dataclass(frozen=True, slots=True)
class _Task:
    """Candidates of one or more workloads, with their labels on one device."""

    inputs: tuple[Tensor, ...]
    #: (G, n) places and labels, and which are filled.
    place: Tensor
    labels: Tensor
    filled: Tensor

    def loss(self, logits: Tensor) -> Tensor | None:
        return head_loss(logits[self.place], self.labels, self.filled)


@dataclass(frozen=True, slots=True)
class Maml:
    """Meta-train a start on the sources, then take learnt steps on the few-shot set.

    Meta-training is done once for a source model and kept, for it takes most of the time. What its devices
    measure later changes little in a start.

    Args:
        starts: Folder of the source model's version, where the start is kept for the next device; None for
            nowhere.
        inner_steps: Steps on a meta-task.
        outer_steps: Updates of the start.
        tasks: Meta-tasks of an update.
        rate_share: Learning rate of the start, as a share of the configuration's.
        steps: Numbers of steps on the few-shot set to choose from.
    """

    name: str = "maml"
    inner_steps: int = 3
    outer_steps: int = 150
    tasks: int = 4
    rate_share: float = 0.1
    steps: tuple[int, ...] = (3, 10, 30)
    least_samples: int = 2
    starts: Path | None = field(default=None, compare=False, repr=False)
    _starts: dict[str, MetaStart] = field(default_factory=dict, compare=False, repr=False)

    def adapt(self, task: FewShotTask) -> Adapted:
        """Meta-train unless done before, choose the number of steps on the few-shot set, take them."""
        part, target, config, seed = task.samples(), task.target, task.config, task.seed
        source_part = replace(task, few_shot=task.few_shot[:0]).visible(need_few_shot=False)
        start = self.start(task.need_source(self.name), source_part, config, seed)
        first = with_target_head(start.model, part, target, seed=seed)

        def fit(visible: Dataset, steps: float) -> FleetTLP:
            return _stepped(first, start.rates, visible, target, config, int(steps))

        steps, tried = choose_rate(first, part, target, [float(count) for count in self.steps], seed, fit)
        model = fit(part, steps) if steps else first
        notes = {"steps": int(steps), "agreement": {str(int(count)): tau for count, tau in tried.items()}}
        return Adapted(device_id=target, model=model, notes=notes)

    def has_start(self, source: FleetTLP, config: TrainConfig, seed: int) -> bool:
        """Whether the start for a source model is there; without a folder it is made when it is needed."""
        key = self._key(source, config, seed)
        return key in self._starts or self.starts is None or self._path(self.starts, key).exists()

    def start(self, source: FleetTLP, source_part: Dataset, config: TrainConfig, seed: int) -> MetaStart:
        """The meta-trained start for a source model; of the target nothing is present in `source_part`."""
        key = self._key(source, config, seed)
        if key not in self._starts:
            path = None if self.starts is None else self._path(self.starts, key)
            start = None if path is None else _read(path, source)
            if start is None:
                start = self._meta_train(source, source_part, config, seed)
                # A folder that cannot be written keeps none.
                with suppress(OSError):
                    if path is not None:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        write_durably(path, save_tensors(start.tensors()))
            # One at a time: a start is as large as a model.
            self._starts.clear()
            self._starts[key] = start
        return self._starts[key]

    def _key(self, source: FleetTLP, config: TrainConfig, seed: int) -> str:
        settings = [*source.device_ids, repr(self), repr(config), seed]
        return content_hash(canonical_json(settings), digest(*source.state_dict().values()))

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / f"maml-start-{key}.safetensors"

    def _meta_train(
        self, source: FleetTLP, source_part: Dataset, config: TrainConfig, seed: int
    ) -> MetaStart:
        model = source.copy().eval()
        rows = np.arange(len(source_part))
        devices = [d for d in trainable_devices(source_part, rows) if d in source.device_ids]
        tasks = [
            (device_id, data, group)
            for device_id in devices
            for data in [gather_rows(source_part, rows, (device_id,))]
            for group in data.groups
            if len(group) >= 4
        ]
        scorers = {device_id: _Scorer(model, device_id) for device_id in source.device_ids}
        roles = map(_role, scorers[source.device_ids[0]].learnt())
        log_rates = {role: torch.full((), math.log(_FIRST_RATE), requires_grad=True) for role in roles}
        if tasks:
            random = np.random.default_rng(seed)
            both = [*model.parameters(), *log_rates.values()]
            with scoped_seed(seed), torch_threads(config.threads), sdpa_kernel([SDPBackend.MATH]):
                optimizer = torch.optim.Adam(
                    [
                        {"params": list(model.parameters()), "lr": config.learning_rate * self.rate_share},
                        {"params": list(log_rates.values()), "lr": 0.02},
                    ]
                )
                for _ in range(self.outer_steps):
                    optimizer.zero_grad(set_to_none=True)
                    for pick in random.integers(len(tasks), size=self.tasks):
                        device_id, data, group = tasks[pick]
                        others = [head for head in devices if head != device_id] or [device_id]
                        scorer = scorers[others[random.integers(len(others))]]
                        loss = self._meta_loss(scorer, log_rates, data, group, config, random)
                        if loss is not None and bool(loss.isfinite()):
                            (loss / self.tasks).backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(both, config.gradient_clip)
                    optimizer.step()
        model.zero_grad()
        return MetaStart(model, {name: rate.detach().exp() for name, rate in log_rates.items()})

    def _meta_loss(
        self,
        scorer: _Scorer,
        log_rates: Parameters,
        data: TrainingRows,
        group: Ints,
        config: TrainConfig,
        random: np.random.Generator,
    ) -> Tensor | None:
        """Loss on some candidates of a workload after inner steps on others."""
        order = random.permutation(group)
        few = min(_LEARNT, len(order) // 2)
        learnt, judged = _task(data, [order[:few]]), _task(data, [order[few : few + _JUDGED]])
        rates = {name: rate.exp() for name, rate in log_rates.items()}
        stepped = _inner(scorer, rates, learnt, config, self.inner_steps, second_order=True)
        return judged.loss(functional_call(scorer, stepped, judged.inputs))


def _read(path: Path, source: FleetTLP) -> MetaStart | None:
    """A start that was kept; None where it is missing or damaged: it is made again then."""
    try:
        return MetaStart.restored(load_tensors(read_file(path.parent, path.name)), source)
    except (TransferError, SafetensorError, KeyError, RuntimeError):
        return None


def _stepped(
    first: FleetTLP, rates: Parameters, visible: Dataset, target_device: str, config: TrainConfig, steps: int
) -> FleetTLP:
    """A copy of a model after some steps on all labels shown of the target."""
    model = first.copy().eval()
    data = gather_rows(visible, np.arange(len(visible)), (target_device,))
    scorer = _Scorer(model, target_device)
    task = _task(data, data.groups)
    with torch_threads(config.threads), sdpa_kernel([SDPBackend.MATH]):
        stepped = _inner(scorer, rates, task, config, steps, second_order=False)
    with torch.no_grad():
        for name, parameter in scorer.learnt().items():
            parameter.copy_(stepped[name])
    return model


def _task(data: TrainingRows, groups: Sequence[Ints]) -> _Task:
    """Positions of some workloads as one batch."""
    batch = lay_out(groups)
    labels = torch.from_numpy(data.labels[batch.rows][:, 0])[batch.place]
    inputs = block_tensors(data.dataset.features, data.rows[batch.rows])
    return _Task(inputs, batch.place, labels, labels.isfinite() & batch.filled)


def _inner(
    scorer: _Scorer,
    rates: Parameters,
    task: _Task,
    config: TrainConfig,
    steps: int,
    *,
    second_order: bool,
) -> Parameters:
    """Gradient steps on one batch, each parameter with its own rate; differentiable where asked for."""
    current = scorer.learnt()
    for _ in range(steps):
        loss = task.loss(functional_call(scorer, current, task.inputs))
        if loss is None:
            break
        gradients = torch.autograd.grad(
            loss, list(current.values()), create_graph=second_order, allow_unused=True
        )
        norm = torch.sqrt(
            sum((g.detach().square().sum() for g in gradients if g is not None), torch.zeros(()))
        )
        scale = torch.clamp(config.gradient_clip / (norm + 1e-12), max=1.0)
        current = {
            name: value if gradient is None else value - rates[_role(name)] * scale * gradient
            for (name, value), gradient in zip(current.items(), gradients, strict=True)
        }
    return current
