"""A compiled network in a Python program: what it gives, and what it says of inputs that do not fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fleet
from agents.networks.graph import lowered
from agents.networks.library import compile_library
from agents.networks.network_name import read_network_name
from agents.networks.sources import load
from agents.records import Family
from tests.network_fixtures import save_program

pytestmark = [
    pytest.mark.tvm,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),  # of torch about itself
]

CORES = os.sched_getaffinity(0)


@pytest.fixture(scope="module")
def network() -> Any:
    """Two inputs, two outputs."""
    import torch

    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x @ y), x + 1

    return Two()


@pytest.fixture(scope="module")
def library(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[fleet.NetworkLibrary]:
    import torch
    import tvm

    folder = tmp_path_factory.mktemp("library")
    file = save_program(network, (torch.zeros(4, 8), torch.zeros(8, 3)), folder / "two.pt2")
    module = lowered(load(read_network_name(str(file))), Family.CPU)
    compile_library(module, tvm.target.Target({"kind": "llvm"}), folder / "two.so", "two")
    cores = os.sched_getaffinity(0)
    yield fleet.load_library(folder / "two.so", threads=1)
    tvm.get_global_func("runtime.config_threadpool")(1, 0)  # as it was: a thread per core
    os.sched_setaffinity(0, cores)


def test_numpy_arrays_and_torch_tensors_give_their_own_kind(
    library: fleet.NetworkLibrary, network: Any
) -> None:
    import torch
    import tvm

    assert tvm.get_global_func("runtime.NumThreads")() == 1
    assert len(os.sched_getaffinity(0)) == len(CORES), "the caller's thread stays where it was"
    torch.manual_seed(0)
    # Neither contiguous nor at an address that compiled code may read vectors from.
    x, y = torch.randn(33)[1:].reshape(8, 4).T, torch.randn(8, 3, requires_grad=True)
    expected = [each.detach().numpy() for each in network(x, y)]
    of_torch, of_numpy = library(x, y), library(x.numpy(), y.detach().numpy())
    assert all(isinstance(output, torch.Tensor) for output in of_torch)
    for outputs in (of_torch, of_numpy):
        for output, right in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(np.asarray(output), right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "dtype", "fault"),
    [
        ([(4, 8), (8, 2)], "float32", r"input 1 \(\w+\) is float32 \(8, 2\), expected float32 \(8, 3\)"),
        ([(4, 1), (8, 3)], "float32", r"input 0 \(\w+\) is float32 \(4, 1\), expected float32 \(4, 8\)"),
        ([(4,), (8, 3)], "float32", r"input 0 \(\w+\) is float32 \(4\), expected float32 \(4, 8\)"),
        ([(4, 8), (8, 3)], "float64", r"input 0 \(\w+\) is float64 \(4, 8\), expected float32 \(4, 8\)"),
        ([(4, 8)], "float32", r"got 1 inputs, expected 2: \w+, \w+"),
    ],
    ids=["last shape", "first shape", "dimensions", "type", "count"],
)
def test_inputs_that_do_not_fit_are_named(
    library: fleet.NetworkLibrary, shapes: list[tuple[int, ...]], dtype: str, fault: str
) -> None:
    with pytest.raises(fleet.FleetError, match=r"two\.so: " + fault):
        library(*[np.zeros(shape, dtype) for shape in shapes])


def test_plain_lists_are_arrays(library: fleet.NetworkLibrary) -> None:
    fault = r"input 0 \(\w+\) is float64 \(2\), expected float32 \(4, 8\)"
    with pytest.raises(fleet.FleetError, match=fault):
        library([1.0, 2.0], [3.0])  # type: ignore[arg-type]


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fleet.FleetError, match=r"none\.so: there is no such library"):
        fleet.load_library(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("no machine code")
    with pytest.raises(fleet.FleetError, match=r"text\.so: is no library of a network for this host"):
        fleet.load_library(tmp_path / "text.so")
