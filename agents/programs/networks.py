"""Operators of well-known networks: which tensor programs they run, with which shapes, how often.

Shapes follow the papers' tables (batch 1; images 224 x 224, text of 128 tokens): ResNet-50 (He et al.
2016, v1.5 strides), MobileNet-V2 (Sandler et al. 2018), ResNeXt-50 32x4d (Xie et al. 2017), BERT-base
and BERT-tiny (Devlin et al. 2019, Turc et al. 2019). These five are the hold-out networks of TenSet and
TLP. Operator names and argument orders are those of TVM's operator suite
(`tvm.s_tir.meta_schedule.testing.te_workload`). Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator of a network with its shape, and how often the network runs it."""

    operator: str
    args: tuple[int, ...]
    count: int


def _conv(size: int, c_in: int, c_out: int, kernel: int, stride: int, count: int, groups: int = 1) -> Layer:
    """Square NHWC convolution with "same" padding; grouped ones are TVM's `GRP`."""
    args = (1, size, size, c_in, c_out, kernel, stride, kernel // 2)
    return Layer("GRP", (*args, 1, groups), count) if groups > 1 else Layer("C2D", args, count)


def _depthwise(size: int, channels: int, stride: int, count: int) -> Layer:
    return Layer("DEP", (1, size, size, channels, 3, stride, 1), count)


def _bottlenecks(width: int, groups: int) -> Iterator[Layer]:
    """The four stages of a 50-layer bottleneck network; `width` is the inner width of the first stage."""
    c_in, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, c_out, stride = width << stage, 256 << stage, 1 if stage == 0 else 2
        yield _conv(size, c_in, inner, 1, 1, 1)
        yield _conv(size, inner, inner, 3, stride, 1, groups)
        yield _conv(size, c_in, c_out, 1, stride, 1)
        size //= stride
        yield _conv(size, inner, c_out, 1, 1, blocks)
        yield _conv(size, c_out, inner, 1, 1, blocks - 1)
        yield _conv(size, inner, inner, 3, 1, blocks - 1, groups)
        c_in = c_out


def _image_head(features: int) -> Iterator[Layer]:
    yield Layer("GMM", (1, 1, 1000, features), 1)
    yield Layer("SFM", (1, 1000), 1)


def _residual_50(width: int, groups: int) -> Iterator[Layer]:
    yield Layer("C2D", (1, 224, 224, 3, 64, 7, 2, 3), 1)
    yield from _bottlenecks(width, groups)
    yield from _image_head(2048)


def _mobilenet_v2() -> Iterator[Layer]:
    yield _conv(224, 3, 32, 3, 2, 1)
    c_in, size = 32, 112
    for expansion, c_out, repeats, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for block in range(repeats):
            stride = first_stride if block == 0 else 1
            hidden = c_in * expansion
            if expansion > 1:
                yield _conv(size, c_in, hidden, 1, 1, 1)
            yield _depthwise(size, hidden, stride, 1)
            size //= stride
            yield _conv(size, hidden, c_out, 1, 1, 1)
            c_in = c_out
    yield _conv(size, c_in, 1280, 1, 1, 1)
    yield from _image_head(1280)


def _bert(hidden: int, layers: int, heads: int, tokens: int = 128) -> Iterator[Layer]:
    per_head = hidden // heads
    yield Layer("GMM", (1, tokens, hidden, hidden), 4 * layers)
    yield Layer("GMM", (1, tokens, 4 * hidden, hidden), layers)
    yield Layer("GMM", (1, tokens, hidden, 4 * hidden), layers)
    yield Layer("TBG", (1, tokens, heads, per_head), layers)
    yield Layer("GMM", (heads, tokens, per_head, tokens), layers)
    yield Layer("SFM", (heads * tokens, tokens), layers)


_BUILDERS: dict[str, Callable[[], Iterator[Layer]]] = {
    "resnet-50": lambda: _residual_50(64, 1),
    "mobilenet-v2": _mobilenet_v2,
    "resnext-50": lambda: _residual_50(128, 32),
    "bert-tiny": lambda: _bert(128, 2, 2),
    "bert-base": lambda: _bert(768, 12, 12),
}

#: Names that `layers` accepts.
NETWORKS = tuple(_BUILDERS)


def layers(network: str) -> tuple[Layer, ...]:
    """List the operators of one network, equal ones merged, in order of first use.

    Raises:
        KeyError: `network` is not in `NETWORKS`.
    """
    counts = Counter[tuple[str, tuple[int, ...]]]()
    for layer in _BUILDERS[network]():
        counts[layer.operator, layer.args] += layer.count
    return tuple(Layer(operator, args, count) for (operator, args), count in counts.items())
