"""Convolutions, means and attention as TVM computes them: what torch does, in few programs.

Convolutions with channels last and by Winograd's way; transposes, reshapes and paddings that cost nothing;
attention with a known mask, without its rows of nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.networks.graph import lowered, workloads_of
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family
from tests.network_fixtures import exported
from tests.tvm_fixtures import furthest, run_network

# torch warns about its own export.
pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS, COLUMNS = 37, 41


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The intrinsics of schedules, and the same weights each time."""
    import torch

    for family in Family:
        load_tensor_intrinsics(family)
    torch.manual_seed(0)


def right(network: Any, folder: Path, *inputs: Any) -> Any:
    """A network as it is lowered for a CPU, which gives what torch gives."""
    module = lowered(exported(network, inputs, folder), Family.CPU)
    assert furthest(run_network(module, *inputs), network(*inputs).detach().numpy()) < 5e-6
    return module


def operators(module: Any) -> list[str]:
    """Each program by its operators, without shape and id."""
    found = workloads_of(module, Family.CPU, "net")
    return sorted(workload.name.rsplit("_", 2)[0] for workload in found)


def images_network() -> Any:
    """Convolutions of few channels, depthwise, dense and strided ones; a padding apart, clips."""
    from torch import nn

    return nn.Sequential(
        nn.ZeroPad2d((0, 1, 1, 2)),
        nn.Conv2d(3, 40, 3),
        nn.ReLU6(),
        nn.Conv2d(40, 40, 3, padding=1, groups=40),
        nn.Hardtanh(-0.5, 2.0),
        nn.Conv2d(40, 48, 3, padding=(0, 1)),
        nn.GELU(),
        nn.Conv2d(48, 32, 3, stride=2, padding=1),
    )


def test_a_network_of_images_has_no_program_that_only_moves_them(tmp_path: Path) -> None:
    import torch

    module = right(images_network(), tmp_path, torch.randn(2, 3, 14, 17))
    # The first and the last order are the network's own.
    assert operators(module) == [
        "conv2d_nhwc_add",
        "conv2d_nhwc_add_clip",
        "conv2d_nhwc_add_clip",
        "conv2d_winograd_add_gelu",
        "transpose",
        "transpose",
    ]
    kinds = {workload.operator for workload in workloads_of(module, Family.CPU, "net")}
    assert kinds == {"conv2d", "depthwise_conv2d", "data_movement"}


@pytest.mark.parametrize("shape", [(1, 32, 7, 7), (2, 33, 5, 8)])
def test_winograd_gives_what_the_convolution_gives_at_any_size(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    import torch

    module = right(torch.nn.Conv2d(shape[1], 34, 3, padding=1), tmp_path, torch.randn(shape))
    assert "conv2d_winograd" in "".join(operators(module))


def test_an_activation_of_texts_is_computed_with_the_product_before_it(tmp_path: Path) -> None:
    import torch
    from torch import nn

    network = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))
    names = operators(right(network, tmp_path, torch.randn(2, 8, 24)))
    assert {"matmul_add_gelu", "matmul_add"} <= set(names)
    assert not [name for name in names if name.startswith("reshape_gelu")]


def test_gpus_keep_the_order_of_the_network(tmp_path: Path) -> None:
    import torch

    script = lowered(exported(images_network(), (torch.randn(1, 3, 14, 17),), tmp_path), Family.GPU).script()
    assert "winograd" not in script
    assert "transpose" not in script


def mean_network(pooling: str) -> Any:
    """A convolution, and a pooling of its images."""
    from torch import nn

    class Mean(nn.Module):
        def forward(self, images: Any) -> Any:
            return images.mean((2, 3), keepdim=True)

    poolings = {
        "mean": Mean(),
        "window of the image": nn.AvgPool2d((13, 9)),
        "larger window": nn.AvgPool2d(64, ceil_mode=True),
        "smaller window": nn.AvgPool2d(4),
    }
    return nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), poolings[pooling])


@pytest.mark.parametrize("pooling", ["mean", "window of the image", "larger window", "smaller window"])
def test_a_mean_over_whole_images_is_a_product(pooling: str, tmp_path: Path) -> None:
    import torch

    names = " ".join(operators(right(mean_network(pooling), tmp_path, torch.randn(2, 3, 13, 9))))
    assert ("pool" in names) == (pooling == "smaller window")
    assert ("matmul" in names) == (pooling != "smaller window")


def attend(mask: str) -> Any:
    """A module that attends from rows to columns by a kind of mask."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    class Attend(torch.nn.Module):
        def forward(self, query: Any, keys: Any) -> Any:
            choices = {}
            if mask == "causal":
                choices = {"is_causal": True}
            elif mask == "window":
                apart = torch.arange(ROWS).unsqueeze(1) - torch.arange(COLUMNS)
                choices = {"attn_mask": apart.abs() < 9}
            elif mask == "bias by head":
                bias = torch.arange(3 * COLUMNS).reshape(1, 3, 1, COLUMNS) * 0.01
                choices = {"attn_mask": bias.expand(1, 3, ROWS, COLUMNS), "scale": 0.3}
            elif mask == "nothing for some":
                choices = {"attn_mask": torch.arange(ROWS).unsqueeze(1).expand(ROWS, COLUMNS) > 1}
            elif mask == "of the input":
                choices = {"attn_mask": query.new_zeros(ROWS, COLUMNS) + keys[0, 0, :, 0]}
            elif mask == "shared keys":
                keys, choices = keys[:, :1], {"enable_gqa": True}
            return scaled_dot_product_attention(query, keys, keys * 0.5, **choices)

    return Attend()


@pytest.mark.parametrize(
    ("mask", "is_simple"),
    [
        *((mask, True) for mask in ("none", "causal", "window", "bias by head", "shared keys")),
        *((mask, False) for mask in ("nothing for some", "of the input")),
    ],
)
def test_attention_is_torch_s_with_every_mask(mask: str, is_simple: bool, tmp_path: Path) -> None:
    import torch

    module = right(attend(mask), tmp_path, torch.randn(2, 3, ROWS, 8), torch.randn(2, 3, COLUMNS, 8))
    assert ("where" not in " ".join(operators(module))) is is_simple
