"""Convolutions with channels last and by Winograd's way; transposes, reshapes and paddings cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.networks.graph import lowered, workloads_of
from agents.networks.network_name import read_network_name
from agents.networks.sources import load
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family
from tests.network_fixtures import save_program
from tests.tvm_fixtures import furthest, run_network

# torch warns about its own export.
pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore::FutureWarning")]


def exported(module: Any, inputs: Any, folder: Path) -> Any:
    return load(read_network_name(str(save_program(module.eval(), (inputs,), folder / "net.pt2"))))


def operators(module: Any) -> list[str]:
    """Each program by its operators, without shape and id."""
    found = workloads_of(module, Family.CPU, "net")
    return sorted(workload.name.rsplit("_", 2)[0] for workload in found)


def largest_difference(module: Any, right: Any, inputs: Any) -> float:
    return furthest(run_network(module, inputs), right(inputs).detach().numpy())


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

    load_tensor_intrinsics(Family.CPU)
    torch.manual_seed(0)
    network, images = images_network(), torch.randn(2, 3, 14, 17)
    module = lowered(exported(network, images, tmp_path), Family.CPU)
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
    assert largest_difference(module, network, images) < 5e-6


@pytest.mark.parametrize("shape", [(1, 32, 7, 7), (2, 33, 5, 8)])
def test_winograd_gives_what_the_convolution_gives_at_any_size(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    import torch

    load_tensor_intrinsics(Family.CPU)
    torch.manual_seed(0)
    network, images = torch.nn.Conv2d(shape[1], 34, 3, padding=1), torch.randn(shape)
    module = lowered(exported(network, images, tmp_path), Family.CPU)
    assert "conv2d_winograd" in "".join(operators(module))
    assert largest_difference(module, network, images) < 5e-6


def test_an_activation_of_texts_is_computed_with_the_product_before_it(tmp_path: Path) -> None:
    import torch
    from torch import nn

    load_tensor_intrinsics(Family.CPU)
    torch.manual_seed(0)
    network, texts = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24)), torch.randn(2, 8, 24)
    module = lowered(exported(network, texts, tmp_path), Family.CPU)
    assert {"matmul_add_gelu", "matmul_add"} <= set(operators(module))
    assert not [name for name in operators(module) if name.startswith("reshape_gelu")]
    assert largest_difference(module, network, texts) < 5e-6


def test_gpus_keep_the_order_of_the_network(tmp_path: Path) -> None:
    import torch

    load_tensor_intrinsics(Family.GPU)
    network, images = images_network(), torch.randn(1, 3, 14, 17)
    module = lowered(exported(network, images, tmp_path), Family.GPU)
    assert "winograd" not in module.script()
    assert "transpose" not in module.script()


def mean_network(pooling: str) -> Any:
    """A convolution, and a pooling of its images."""
    import torch
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
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), poolings[pooling])


@pytest.mark.parametrize("pooling", ["mean", "window of the image", "larger window", "smaller window"])
def test_a_mean_over_whole_images_is_a_product(pooling: str, tmp_path: Path) -> None:
    import torch

    load_tensor_intrinsics(Family.CPU)
    network, images = mean_network(pooling), torch.randn(2, 3, 13, 9)
    module = lowered(exported(network, images, tmp_path), Family.CPU)
    names = operators(module)
    assert any("pool" in name for name in names) == (pooling == "smaller window")
    assert any("matmul" in name for name in names) == (pooling != "smaller window")
    assert largest_difference(module, network, images) < 5e-6
