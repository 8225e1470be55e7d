"""FleetTLP: a shared backbone over schedule sequences and one small head for each device.

Trained by `transfer.train.training`, stored by `transfer.model.checkpoint`, asked by
`transfer.evaluate.cross_validation` and the cost model of a search. It must not know where features or
labels come from: it sees a `FeatureBlock`.

What differs from the published model (TLP, ASPLOS'23, section 4): padding is masked in attention and
in pooling, steps have positions, categories are embedded, numbers are standardised, a summary of the whole
candidate is an input, the score is bounded, and boosted trees on flat features form an ensemble with the
network.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots,
E step width, T trunk width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transfer.errors import TransferError
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import FeatureSpec
from transfer.features.flat import flat_inputs
from transfer.model.encoder import (
    ModelConfig,
    ModelSizes,
    PiecewiseLinear,
    Residual,
    Standardise,
    StepEncoder,
    config_from,
)
from transfer.model.inputs import SCORE_BATCH, block_tensors, check_sizes, scoring, used_lengths
from transfer.model.kinds import FLEET_TLP
from transfer.model.tlp_model import TlpModel
from transfer.model.trees import HardwareOf, Trees, joint_scores

#: Sequences of a pass of `score` are rounded up to a multiple of so many steps (see `SCORE_BATCH`).
_SCORE_STEPS = 8
#: Candidates of a forward pass of `represent`.
_REPRESENTED = 512


class FleetTLP(TlpModel):
    """Shared backbone and a head for each device.

    Args:
        config: Sizes of the features and of the network.
        device_ids: Devices to give a freshly initialised head; more may follow by `add_head`.
    """

    kind: ClassVar[str] = FLEET_TLP

    def __init__(self, config: ModelConfig, device_ids: Sequence[str] = ()) -> None:
        super().__init__()
        sizes = config.sizes
        self.config = config
        self.layout = None
        self.encoder = StepEncoder(config)
        self.workload = Standardise(config.workload_size)
        self.summary = Standardise(config.summary_size)
        self.ramps = PiecewiseLinear(config.summary_size, sizes.summary_ramps)
        joined = 2 * sizes.step_width + config.summary_size * (1 + sizes.summary_ramps)
        joined += config.workload_size * sizes.use_workload
        self.join = nn.Linear(joined, sizes.trunk_width)
        self.trunk = Residual(sizes.trunk_width, sizes.dropout)
        self.dropout = nn.Dropout(sizes.dropout)
        self.norm = nn.LayerNorm(sizes.trunk_width)
        self.heads = nn.ModuleDict()
        #: Outputs of `validity`, for the devices that failures are known of (`transfer.train.training`).
        self.validity_outputs = nn.ModuleDict()
        #: Of the ensemble with the network; None where none were fitted (`transfer.train.tree_fit`).
        self.trees = None
        #: Hardware vector that they are given for each device.
        self.hardware = nn.ModuleDict()
        for device_id in device_ids:
            self.add_head(device_id)

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values."""
        return asdict(self.config)

    @classmethod
    def features_hash(cls, settings: Mapping[str, Any], spec: FeatureSpec | None) -> str | None:
        """That of what an extractor makes."""
        return None if spec is None else spec.hash

    @classmethod
    def untrained(cls, settings: Mapping[str, Any], device_ids: Sequence[str], tensors: int) -> Self:
        """As of any model; sizes that no model has, or more layers than tensors, are a `ValueError`."""
        return cls(config_from(settings, tensors), device_ids)

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Devices with a head, in the order in which the heads were added."""
        return tuple(_device_id(key) for key in self.heads)

    def head(self, device_id: str) -> nn.Module:
        """The head of one device.

        Raises:
            TransferError: There is no such head.
        """
        key = _head_key(device_id)
        if key not in self.heads:
            names = ", ".join(self.device_ids) or "none"
            raise TransferError(
                f"model has no head for device {device_id!r}; it has: {names}. Adapt it first."
            )
        return self.heads[key]

    def add_head(self, device_id: str, like: Sequence[str] = ()) -> None:
        """Add a head, fresh or as the mean of other heads.

        Args:
            device_id: New device.
            like: Devices whose heads are averaged into the new one; random if there are none.

        Raises:
            TransferError: The device already has a head, or one in `like` has none.
        """
        key = _head_key(device_id)
        if key in self.heads:
            raise TransferError(f"model already has a head for device {device_id!r}")
        sizes = self.config.sizes
        head = nn.Sequential(
            nn.Linear(sizes.trunk_width, sizes.head_width), nn.GELU(), nn.Linear(sizes.head_width, 1)
        )
        if like:
            states = [self.head(name).state_dict() for name in like]
            head.load_state_dict({k: torch.stack([s[k] for s in states]).mean(dim=0) for k in states[0]})
        self.heads[key] = head.to(self.join.weight.device)
        outputs = [self.validity_outputs[_head_key(name)] for name in like if self.tells_validity(name)]
        if outputs:
            flat = [torch.cat([p.detach().flatten() for p in output.parameters()]) for output in outputs]
            self.set_validity(device_id, torch.stack(flat).mean(dim=0))
        vectors = [vector for name in like if (vector := self._hardware_of(name)) is not None]
        if vectors:
            # Devices without measured numbers have fewer.
            width = min(len(vector) for vector in vectors)
            self.set_hardware(device_id, torch.stack([vector[:width] for vector in vectors]).mean(dim=0))

    def drop_head(self, device_id: str) -> None:
        """Take a head away: one that is not trained any more while the backbone changes would only mislead.

        Raises:
            TransferError: There is no such head.
        """
        self.head(device_id)
        del self.heads[_head_key(device_id)]
        for beside in (self.validity_outputs, self.hardware):
            if _head_key(device_id) in beside:
                del beside[_head_key(device_id)]

    def rename_head(self, device_id: str, name: str) -> None:
        """Give a head a name that none has: what it says is of the same device at another time."""
        for part in (self.heads, self.validity_outputs, self.hardware):
            if _head_key(device_id) in part:
                part[_head_key(name)] = part.pop(_head_key(device_id))

    def tells_validity(self, device_id: str) -> bool:
        """Whether anything was learnt about failures on a device."""
        return _head_key(device_id) in self.validity_outputs

    def set_validity(self, device_id: str, values: Tensor) -> None:
        """Set what `validity` computes for a device: (T + 1,) weights and, last, bias of the logit."""
        width = self.config.sizes.trunk_width
        output = nn.Linear(width, 1, device="meta")  # draws nothing
        values = values.detach().to(self.join.weight)
        output.weight = nn.Parameter(values[None, :-1].clone())
        output.bias = nn.Parameter(values[-1:].clone())
        self.validity_outputs[_head_key(device_id)] = output

    def set_hardware(self, device_id: str, values: Tensor) -> None:
        """Set the (H,) hardware vector that the trees are told for a device."""
        self.hardware[_head_key(device_id)] = HardwareOf(values.clone())

    def _hardware_of(self, device_id: str) -> Tensor | None:
        key = _head_key(device_id)
        return cast(Tensor, self.hardware[key].values) if key in self.hardware else None

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As of any module; trees and outputs of `validity` come and go with the tensors."""
        self.validity_outputs.clear()
        self.hardware.clear()
        self.trees = Trees(bytes(len(state_dict["trees.raw"]))) if "trees.raw" in state_dict else None
        for name, value in state_dict.items():
            module, _, rest = name.partition(".")
            if module == "validity_outputs" and rest.endswith(".weight"):
                device_id = _device_id(rest.removesuffix(".weight"))
                self.set_validity(device_id, torch.zeros(self.config.sizes.trunk_width + 1))
            elif module == "hardware":
                self.set_hardware(_device_id(rest.removesuffix(".values")), torch.zeros_like(value))
        return super().load_state_dict(state_dict, *args, **kwargs)

    def copy(self) -> FleetTLP:
        """An equal model that shares no tensor with this one."""
        return copy.deepcopy(self)

    def fit_scaler(self, block: FeatureBlock) -> None:
        """Take the input scaling from the rows of `block`, which must be training rows only."""
        self.encoder.numbers.fit(block.step_numbers, block.step_counts())
        self.workload.fit(
            block.workload_vectors, np.bincount(block.workload_rows, minlength=len(block.workload_vectors))
        )
        self.summary.fit(block.summary)
        self.ramps.fit(block.summary)

    def backbone(
        self, categories: Tensor, numbers: Tensor, mask: Tensor, workload: Tensor, summary: Tensor
    ) -> Tensor:
        """Represent candidates without regard to a device.

        Args:
            categories: (N, L, C) integers.
            numbers: (N, L, F) float.
            mask: (N, L) bool, true at real steps.
            workload: (N, V) float.
            summary: (N, S) float.

        Returns:
            (N, T).
        """
        steps = self.encoder(categories, numbers, mask)
        parts = [steps, self.summary(summary), self.ramps(summary)]
        if self.config.sizes.use_workload:
            parts.append(self.workload(workload))
        joined = torch.cat(parts, dim=1)
        x = self.trunk(F.gelu(self.join(self.dropout(joined))))
        return cast(Tensor, self.dropout(self.norm(x)))

    def represent(self, block: FeatureBlock) -> Tensor:
        """(N, T) what `backbone` gives of candidates, without gradients and dropout."""
        with scoring(self):
            parts = [
                self.backbone(*block_tensors(block, np.arange(start, min(start + _REPRESENTED, len(block)))))
                for start in range(0, len(block), _REPRESENTED)
            ]
        return torch.cat(parts) if parts else torch.zeros(0, self.config.sizes.trunk_width)

    def logits(self, representation: Tensor, device_id: str) -> Tensor:
        """Score (N, T) representations for one device as (N,) logits."""
        return cast(Tensor, self.head(device_id)(representation)).squeeze(-1)

    def score(self, block: FeatureBlock, device_id: str) -> np.ndarray:
        """Score candidates of any workloads for one device.

        Returns:
            (N,) float64 in (0, 1], an estimate of best latency / latency within the workload: higher
            is better. Scores of different workloads are not comparable as speeds. A candidate's score
            does not depend on what is scored beside it.

        Raises:
            TransferError: No head for the device, or the block has other sizes than the model.
        """
        self.head(device_id)
        hardware = self._hardware_of(device_id)
        if self.trees is None or hardware is None:
            # In float64: in float32 all logits above 17 would tie at 1.
            return self._each(block, lambda x: torch.sigmoid(self.logits(x, device_id).double()))
        network = self._each(block, lambda x: F.logsigmoid(self.logits(x, device_id).double()))
        log_speeds = self.trees.log_speeds(self.flat(block), hardware.numpy())
        return joint_scores(network, log_speeds, float(self.trees.weight))

    def flat(self, block: FeatureBlock, rows: np.ndarray | None = None) -> np.ndarray:
        """(n, P) what the trees read of candidates, all or some rows of them."""
        return flat_inputs(block, self.config.category_sizes, rows)

    def draft(self, flat: np.ndarray, device_id: str) -> np.ndarray | None:
        """What the trees alone say of `flat` features, in a tenth of the time of `score`: drafts of many.

        Returns:
            (N,) estimated logarithms of best latency / latency; None where the trees know no such device.

        Raises:
            TransferError: No head for the device, or the trees read other inputs.
        """
        self.head(device_id)
        hardware = self._hardware_of(device_id)
        if self.trees is None or hardware is None:
            return None
        return self.trees.log_speeds(flat, hardware.numpy())

    def validity(self, block: FeatureBlock, device_id: str) -> np.ndarray:
        """(N,) probability that a candidate builds and runs on a device; 1 without failures to learn from.

        Raises:
            TransferError: As of `score`.
        """
        self.head(device_id)
        if not self.tells_validity(device_id):
            self.check_block(block)
            return np.ones(len(block))
        output = self.validity_outputs[_head_key(device_id)]
        return self._each(block, lambda x: torch.sigmoid(output(x).squeeze(-1).double()))

    def _each(self, block: FeatureBlock, output: Callable[[Tensor], Tensor]) -> np.ndarray:
        """(N,) what an output says of representations, each in a pass of one size."""
        self.check_block(block)
        values = np.zeros(len(block))
        steps = np.minimum(-(-used_lengths(block) // _SCORE_STEPS) * _SCORE_STEPS, self.config.max_steps)
        with scoring(self):
            for length in np.unique(steps).tolist():
                of_length = np.flatnonzero(steps == length)
                for start in range(0, len(of_length), SCORE_BATCH):
                    rows = of_length[start : start + SCORE_BATCH]
                    x = self.backbone(*block_tensors(block, np.resize(rows, SCORE_BATCH), length))
                    values[rows] = output(x)[: len(rows)].numpy()
        return values

    def check_block(self, block: FeatureBlock) -> None:
        """Refuse features of another shape.

        Raises:
            TransferError: Naming each size that differs.
        """
        check_sizes(block, self.config)


def model_config(spec: FeatureSpec, sizes: ModelSizes | None = None) -> ModelConfig:
    """Configuration of a model that reads features of `spec`, by default with the sizes of `ModelSizes`."""
    return ModelConfig(
        category_sizes=spec.category_sizes,
        number_size=len(spec.number_names),
        workload_size=len(spec.workload_names),
        summary_size=len(spec.summary_names),
        max_steps=spec.max_steps,
        spec_hash=spec.hash,
        sizes=sizes or ModelSizes(),
    )


@contextmanager
def scoped_seed(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block and put its state back afterwards.

    Layers and dropout draw from the global generator; this keeps that out of everybody else's way.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _head_key(device_id: str) -> str:
    """Name of a head inside ModuleDict, which refuses dots and names of its own methods."""
    return "head:" + device_id.replace("%", "%25").replace(".", "%2E")


def _device_id(head_key: str) -> str:
    """Inverse of `_head_key`."""
    return head_key.removeprefix("head:").replace("%2E", ".").replace("%25", "%")
