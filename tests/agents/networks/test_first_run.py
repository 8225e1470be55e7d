"""What a network must show before a search: that TVM compiles it, and computes what torch does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agents.networks.network_name import NetworkRefusedError
from agents.networks.outputs import tolerance_of
from agents.records import Family
from tests.network_fixtures import exported, save_program
from tests.table_fixtures import rows

#: torch warns of its own future.
pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]


def answered(network: str | Path, folder: Path) -> dict[str, Any]:
    """The answer of the first run, in this process."""
    from agents.networks.first_run import first_run

    question = {"network": str(network), "target": {"kind": "llvm"}, "folder": str(folder)}
    return first_run({**question, "threads": 1, "gpu_index": None}, Family.CPU)


def module_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A small module, and what it is exported with."""
    import torch

    torch.manual_seed(0)
    rows = torch.randn(8, 8)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    conv = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))

    class Module(torch.nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> Any:
            if name == "highest, counts of booleans and infinities":
                masked = (x @ x).masked_fill(torch.tril(torch.ones(8, 8)) == 0, -torch.inf)
                return *torch.topk(x @ x, 3), x @ x * torch.cumsum(x > 0, 1), masked
            if name.startswith("mostly roundings"):
                return (x @ x + 300) - 300
            if name == "half within":
                return torch.softmax((x @ x).half() * 3, -1).float()
            if name == "large in half precision":
                return self.layer[0](x * 200).square().mean(-1).sqrt()
            if name == "drawn":
                return x @ x + torch.randn(8, 8)
            if name == "changes":
                self.seen.add_(x.mean(0))
                return x @ x + self.seen
            if name == "overflows":
                return (x @ x) * 1e30 * 1e30 - torch.inf
            if name == "no work":
                return x
            if name == "sampled":
                grid = torch.nn.functional.affine_grid(x[:2, :6].reshape(2, 2, 3), [2, 1, 4, 8])
                return torch.nn.functional.grid_sample(x[:2].reshape(2, 1, 2, 4), grid)
            return self.layer(x)

    if name.endswith("16"):
        dtype = getattr(torch, name.split()[-1])
        if name.startswith("images"):
            return conv.to(dtype), (torch.randn(1, 2, 8, 8, dtype=dtype),)
        return Module().to(dtype), (rows.to(dtype),)
    if name == "large in half precision":
        return Module().half(), (rows.half(),)
    return Module(), (rows,)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("highest, counts of booleans and infinities", "float32"),
        ("half within", "float16"),
        ("large in half precision", "float16"),
        ("rows of bfloat16", "bfloat16"),
        ("images of bfloat16", "bfloat16"),
    ],
)
def test_what_tvm_imports_otherwise_becomes_a_library_with_the_right_output(
    name: str, precision: str, tmp_path: Path
) -> None:
    from agents.networks.library import UNTUNED

    seen = answered(save_program(*module_of(name), tmp_path / "net.pt2"), tmp_path)
    assert seen["precision"] == precision
    assert seen["difference"] <= tolerance_of(precision)
    assert (tmp_path / UNTUNED).exists()
    # The virtual machine reshapes by itself, so some programs may not run.
    assert 0 < len(seen["program_secs"]) <= seen["workloads"]
    assert all(secs > 0 for secs in seen["program_secs"].values())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("drawn", "is no function of its inputs: a second run of torch gives another output"),
        ("changes", "is no function of its inputs: a second run of torch gives another output"),
        ("overflows", "holds no finite number, so no library can be compared"),
        ("no work", "computes nothing, so there is nothing to schedule"),
        ("sampled", "aten.grid_sampler_2d.default gives shape"),
    ],
)
def test_what_cannot_become_one_is_refused_in_one_line(name: str, why: str, tmp_path: Path) -> None:
    network = save_program(*module_of(name), tmp_path / "net.pt2")
    with pytest.raises(NetworkRefusedError) as refused:
        answered(network, tmp_path)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "imported", "words"),
    [
        ("rows", "half within", r"TVM computes another output: .*some of aten\.\w+"),
        ("mostly roundings of bfloat16", "rows of bfloat16", r"and 2\.\de-01 is allowed for bfloat16"),
    ],
)
def test_a_network_that_tvm_imports_as_another_is_refused_with_its_operators(
    name: str, imported: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.networks import graph
    from agents.networks.torch_import import import_program

    wrong = import_program(exported(*module_of(imported), tmp_path).program)
    monkeypatch.setattr(graph, "import_program", lambda _: wrong)
    with pytest.raises(NetworkRefusedError, match=words):
        answered(save_program(*module_of(name), tmp_path / "other.pt2"), tmp_path)


def test_roundings_of_half_precision_that_torch_has_too_are_no_wrong_import(tmp_path: Path) -> None:
    """TVM adds and subtracts in float32: its output is the exacter one, and a fifth away from torch's."""
    network = save_program(*module_of("mostly roundings of bfloat16"), tmp_path / "net.pt2")
    assert tolerance_of("bfloat16") < answered(network, tmp_path)["difference"] < 0.25


@pytest.mark.parametrize(
    ("graph", "words"),
    rows("""
        (seq(float[2]) s) => (float[N] y) { y = ConcatFromSequence <axis = 0> (s) } \
            -> input s is no tensor but a sequence; export
        (float[0, 8] z) => (float[0, 8] y) { y = Relu(z) } -> input z is empty (shape [0, 8])
        (float[4, 4] x) => (int64[2, N] y) { r = Relu(x) y = NonZero(r) } \
            -> the shape of what NonZero gives depends on values
    """),
)
def test_an_onnx_network_without_fixed_full_tensors_is_refused(
    graph: str, words: str, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> net {graph}')
    onnx.save(model, str(tmp_path / "net.onnx"))
    with pytest.raises(NetworkRefusedError, match=re.escape(words)):
        answered(tmp_path / "net.onnx", tmp_path)
