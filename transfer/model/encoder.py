"""The blocks of the backbone: from a sequence of schedule steps to one vector.

Called by `transfer.model.fleet_tlp` only. Knows nothing of devices, workloads or training.

Legend: N candidates, L steps, C category slots, F number slots, E step width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn import functional as F

#: Standardised inputs are cut here: a value so far outside the training data says "large", not how large.
_INPUT_LIMIT = 6.0
#: A slot whose standard deviation is below this is constant in the training data and only centred.
_MIN_STD = 1e-4
#: Least width of a piece.
_MIN_WIDTH = 1e-6
#: Rows taken at a time where constants of many are computed.
_FIT_ROWS = 65536
#: Finite stand-in for minus infinity, so that a sequence without any step gives no NaN in attention.
_MASKED = -1e9
#: Numbers of a configuration are below this: none of a model that anybody trained is near it.
_MOST_SIZE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The part of the architecture that is free to choose."""

    #: Width of one embedded category slot.
    category_width: int = 8
    #: Width of a step in attention and the residual blocks.
    step_width: int = 48
    attention_heads: int = 4
    #: Self-attention layers over the steps.
    attention_layers: int = 1
    #: Residual blocks between attention and pooling.
    residual_blocks: int = 2
    #: Width of the joined representation that every head reads.
    trunk_width: int = 256
    #: Hidden width of a head.
    head_width: int = 64
    #: Ramps that each summary slot is cut into, beside its standardised value.
    summary_ramps: int = 0
    #: Let the trunk see the workload vector beside the summary. Losses compare candidates of one workload
    #: only, so with few workloads the vector serves to learn them by heart: with 29 training workloads,
    #: on one split, it cost 0.02 of Kendall's tau on the held-out ones. Worth trying with hundreds.
    use_workload: bool = False
    #: Dropout in front of the trunk and inside it.
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.step_width % self.attention_heads:
            raise ValueError(
                f"step_width must be a multiple of attention_heads, "
                f"got {self.step_width} and {self.attention_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything needed to build a `FleetTLP` without its weights."""

    #: Values of each category slot, 0 (padding) and 1 (unknown) included.
    category_sizes: tuple[int, ...]
    number_size: int
    workload_size: int
    summary_size: int
    #: Most steps of a sequence.
    max_steps: int
    #: Hash of the feature spec the sizes come from.
    spec_hash: str
    sizes: ModelSizes = field(default_factory=ModelSizes)


_CONFIG = TypeAdapter(ModelConfig)


def config_from(settings: Mapping[str, Any], tensors: int) -> ModelConfig:
    """The configuration that a manifest says, of a model of so many tensors.

    Raises:
        KeyError, TypeError, ValueError: It is none, a size is of no model, or there are more layers than
            tensors.
    """
    config = _CONFIG.validate_json(json.dumps(settings), strict=True)
    sizes, fields = config.sizes, asdict(config)
    if fields.keys() != settings.keys() or fields["sizes"].keys() != settings["sizes"].keys():
        raise ValueError("it lacks keys of a configuration, or has others")
    numbers = [*config.category_sizes, *fields["sizes"].values(), *fields.values()]
    widths = (sizes.category_width, sizes.step_width, sizes.trunk_width, sizes.head_width)
    is_possible = all(0 <= number < _MOST_SIZE for number in numbers if isinstance(number, int))
    if not is_possible or min(*widths, sizes.attention_heads, *config.category_sizes) < 1:
        raise ValueError("a size is out of range")
    if max(sizes.attention_layers, sizes.residual_blocks, len(config.category_sizes)) > tensors:
        raise ValueError(f"more layers than tensors, which are {tensors}")
    return config


class Standardise(nn.Module):
    """Centre and scale each slot by constants of the training rows, kept as buffers."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, values: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Take the constants from rows, in float64 so that many rows do not cancel, and a part at a time.

        Args:
            values: (rows, size) values.
            counts: (rows,) how often each row counts; once where None.
        """
        weights = np.ones(len(values)) if counts is None else counts.astype(np.float64)
        total = weights.sum()
        if not total:
            return

        def average(of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
            parts = range(0, len(values), _FIT_ROWS)
            sums = [weights[i : i + _FIT_ROWS] @ of(values[i : i + _FIT_ROWS]) for i in parts]
            return np.asarray(np.sum(sums, axis=0) / total)

        mean = average(lambda part: part.astype(np.float64))
        std = np.sqrt(average(lambda part: (part - mean) ** 2))
        std[std < _MIN_STD] = 1.0
        self.mean.copy_(torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))

    def forward(self, values: Tensor) -> Tensor:
        """Scale (..., size) to about unit variance, cut at the limit."""
        return ((values - self.mean) / self.std).clamp(-_INPUT_LIMIT, _INPUT_LIMIT)


class PiecewiseLinear(nn.Module):
    """Piecewise-linear encoding: pieces between quantiles of the training rows, kept as buffers.

    A straight layer on a number can only say "more is better"; on pieces it can say "up to here", as trees
    do.

    Source: Gorishniy et al., "On embeddings for numerical features in tabular deep learning" (NeurIPS 2022),
    section 3.2, piecewise linear encoding.

    Args:
        size: Slots.
        count: Ramps of a slot; 0 for none.
    """

    edges: Tensor

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        # Without ramps there are no edges to keep.
        self.register_buffer("edges", torch.zeros(size, count + 1), persistent=count > 0)

    def fit(self, values: np.ndarray) -> None:
        """Take the edges from (rows, size) values, or from an even choice of them where they are many."""
        few = values[:: max(1, len(values) // _FIT_ROWS)].astype(np.float64)
        if len(few) and self.edges.shape[1] > 1:
            shares = np.linspace(0, 1, self.edges.shape[1])
            self.edges.copy_(torch.from_numpy(np.quantile(few, shares, axis=0).T))

    def forward(self, values: Tensor) -> Tensor:
        """(N, size) to (N, size * count), each in [-0.5, 0.5]."""
        low, high = self.edges[:, :-1], self.edges[:, 1:]
        # Equal edges make a step: slots with few values have many of them.
        pieces = (values.unsqueeze(-1) - low) / (high - low).clamp(min=_MIN_WIDTH)
        return pieces.clamp(0, 1).flatten(1) - 0.5


class _Attention(nn.Module):
    """Multi-head self-attention over the steps of each sequence, padding masked, with residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """Mix steps: x (N, L, E), bias (N, 1, 1, L) with a large negative value at padding."""
        n, steps, width = x.shape
        mixed = self.mix(self.norm(x)).view(n, steps, 3, self.heads, width // self.heads)
        q, k, v = mixed.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + cast(Tensor, self.out(attended.transpose(1, 2).reshape(n, steps, width)))


class Residual(nn.Module):
    """x + GELU(Linear(LayerNorm(x)))."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., E) to (..., E)."""
        return x + cast(Tensor, self.dropout(F.gelu(self.linear(self.norm(x)))))


class StepEncoder(nn.Module):
    """A sequence of primitives to one vector: embed, mix by attention, refine, pool over true steps."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = config.sizes
        width = sizes.step_width
        self.numbers = Standardise(config.number_size)
        self.categories = nn.ModuleList(
            nn.Embedding(size, sizes.category_width) for size in config.category_sizes
        )
        joined = sizes.category_width * len(config.category_sizes) + config.number_size
        self.embed = nn.Linear(joined, width)
        self.position = nn.Embedding(config.max_steps, width)
        self.mlp = nn.Linear(width, width)
        self.attention = nn.ModuleList(
            _Attention(width, sizes.attention_heads) for _ in range(sizes.attention_layers)
        )
        self.residual = nn.ModuleList(Residual(width) for _ in range(sizes.residual_blocks))
        self.norm = nn.LayerNorm(width)
        for table in (*self.categories, self.position):
            nn.init.normal_(cast(nn.Embedding, table).weight, std=0.1)
        for table in self.categories:
            # The unknown value is rare or absent in training: its row must be neutral, not random.
            nn.init.zeros_(cast(nn.Embedding, table).weight[1:2])

    def forward(self, categories: Tensor, numbers: Tensor, mask: Tensor) -> Tensor:
        """Encode (N, L, C), (N, L, F), (N, L) to (N, 2E): mean and maximum over the true steps."""
        slots = [table(categories[..., i]) for i, table in enumerate(self.categories)]
        x = self.embed(torch.cat([*slots, self.numbers(numbers)], dim=-1))
        x = x + self.position.weight[: x.shape[1]]
        x = x + self.mlp(F.gelu(x))
        bias = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(~mask, _MASKED)
        for layer in self.attention:
            x = layer(x, bias[:, None, None, :])
        for block in self.residual:
            x = block(x)
        x = self.norm(x)
        present = mask.unsqueeze(-1)
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (x * present).sum(dim=1) / count
        largest = x.masked_fill(~present, _MASKED).amax(dim=1).masked_fill(~mask.any(dim=1, keepdim=True), 0)
        return torch.cat([mean, largest], dim=1)
