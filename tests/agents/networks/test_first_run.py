"""What a network must show before a search: that TVM compiles it, and computes what torch does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.outputs import tolerance_of
from agents.records import Family
from tests.network_fixtures import save_program
from tests.table_fixtures import rows

#: torch warns of its own future.
pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore")]

_TINY = "n_embd=32,n_layer=1,n_head=2,vocab_size=50,tokens=8"


def first_answer(network: str, folder: Path) -> dict[str, Any]:
    """The answer of the first run, in this process."""
    from agents.networks.first_run import first_run

    question = {"network": network, "target": {"kind": "llvm"}, "folder": str(folder)}
    return first_run({**question, "threads": 1, "gpu_index": None}, Family.CPU)


def run_first(network: str, folder: Path) -> dict[str, Any]:
    """The same, of a network that passes."""
    from agents.networks.library import UNTUNED

    seen = first_answer(network, folder)
    assert seen["difference"] <= tolerance_of(seen["precision"])
    assert (folder / UNTUNED).exists()
    # The virtual machine reshapes by itself, so some programs may not run.
    assert 0 < len(seen["program_secs"]) <= seen["workloads"]
    assert all(secs > 0 for secs in seen["program_secs"].values())
    return seen


#: What small modules give for a square matrix x; others are a layer of it.
FORWARDS = {
    "highest": "(*torch.topk(x @ x, 3),)",
    "counted booleans": "x @ x * torch.cumsum(x > 0, 1)",
    "infinities": "(x @ x).masked_fill(torch.tril(torch.ones(8, 8)) == 0, -torch.inf)",
    "mostly roundings": "(x @ x + 300) - 300",
    "half within": "torch.softmax((x @ x).half() * 3, -1).float()",
    "large": "self.layer[0](x * 200).square().mean(-1).sqrt()",
    "drawn": "x @ x + torch.randn(8, 8)",
    "changes": "x @ x + self.seen.add_(x.mean(0))",
    "overflows": "(x @ x) * 1e30 * 1e30 - torch.inf",
    "no work": "x",
    "sampled": "F.grid_sample(x[:2].view(2, 1, 2, 4), F.affine_grid(x[:2, :6].view(2, 2, 3), [2, 1, 4, 8]))",
}


def module_of(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A small module, of a type that its name may end with, and what it is exported with."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    what, _, type_name = name.partition(" of ")
    inputs = torch.randn((1, 2, 8, 8) if what == "images" else (8, 8))
    words = {"torch": torch, "F": nn.functional}
    forward = compile(FORWARDS.get(what, "self.layer(x)"), what, "eval")

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
            if what == "images":
                self.layer = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> Any:
            return eval(forward, words | {"self": self, "x": x})

    dtype = getattr(torch, type_name or "float32")
    return Module().to(dtype), (inputs.to(dtype),)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("highest", "float32"),
        ("counted booleans", "float32"),
        ("infinities", "float32"),
        ("half within", "float16"),
        ("large of float16", "float16"),
        ("rows of bfloat16", "bfloat16"),
        ("images of bfloat16", "bfloat16"),
    ],
)
def test_what_tvm_imports_otherwise_becomes_a_library_with_the_right_output(
    name: str, precision: str, tmp_path: Path
) -> None:
    network = save_program(*module_of(name), tmp_path / "net.pt2")
    assert run_first(str(network), tmp_path)["precision"] == precision


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
        run_first(str(network), tmp_path)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def imports_as(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has TVM import another network than the one that it is given."""
    from agents.networks import graph
    from agents.networks.sources import load
    from agents.networks.torch_import import import_program

    def replaced(name: str) -> None:
        other = save_program(*module_of(name), tmp_path / "other.pt2")
        wrong = import_program(load(read_network_name(str(other))).program)
        monkeypatch.setattr(graph, "import_program", lambda _: wrong)

    return replaced


def test_a_network_that_tvm_imports_wrongly_is_refused_with_its_operators(
    tmp_path: Path, imports_as: Callable[[str], None]
) -> None:
    imports_as("mostly roundings")
    network = save_program(*module_of("rows"), tmp_path / "net.pt2")
    with pytest.raises(NetworkRefusedError, match=r"TVM computes another output: .*some of aten\.\w+"):
        run_first(str(network), tmp_path)


def test_roundings_of_half_precision_that_torch_has_too_are_no_wrong_import(
    tmp_path: Path, imports_as: Callable[[str], None]
) -> None:
    """TVM adds and subtracts in float32: its output is the exacter one, and a fifth away from torch's."""
    network = str(save_program(*module_of("mostly roundings of bfloat16"), tmp_path / "net.pt2"))
    assert tolerance_of("bfloat16") < first_answer(network, tmp_path)["difference"] < 0.25
    imports_as("rows of bfloat16")
    (tmp_path / "wrong").mkdir()
    with pytest.raises(NetworkRefusedError, match=r"and 2\.\de-01 is allowed for bfloat16"):
        first_answer(network, tmp_path / "wrong")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_decoder_becomes_a_library(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from agents.networks.library import TUNED, build

    network = f"transformers:gpt2,{_TINY}"
    seen = run_first(network, tmp_path)
    assert seen["workloads"] > 5
    # So is that of a search's end.
    question = {"network": network, "target": {"kind": "llvm"}, "folder": str(tmp_path)}
    question |= {"traces": {}, "lock": ""}
    assert build(question, Family.CPU)["workloads"] == seen["workloads"]
    assert (tmp_path / TUNED).exists()


#: Nodes of an ONNX network, its input and its output with their shapes, and why it is refused.
ONNX = """
    ConcatFromSequence s y    | s sequence | y [null]    -> input s is no tensor but a sequence; export
    Relu z y                  | z [0,8]    | y [0,8]     -> input z is empty (shape [0, 8])
    Relu x r; NonZero r y     | x [4,4]    | y [2,null]  -> the shape of what NonZero gives depends on values
"""


@pytest.mark.parametrize(("network", "why"), rows(ONNX))
def test_an_onnx_network_of_other_values_than_full_tensors_is_refused(
    network: str, why: str, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    make, (operators, *values) = onnx.helper, network.split("|")
    nodes = []
    for operator, source, result in map(str.split, operators.split(";")):
        options = {"axis": 0} if operator == "ConcatFromSequence" else {}
        nodes.append(make.make_node(operator, [source], [result], **options))
    ends = []
    for name, shape in map(str.split, values):
        if shape == "sequence":
            ends.append(make.make_tensor_sequence_value_info(name, 1, [2]))
        else:
            kind = 7 if "NonZero" in operators and name == "y" else 1
            ends.append(make.make_tensor_value_info(name, kind, json.loads(shape)))
    graph = make.make_graph(nodes, "net", ends[:1], ends[1:])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(tmp_path / "net.onnx"))
    with pytest.raises(NetworkRefusedError, match=re.escape(why)):
        run_first(str(tmp_path / "net.onnx"), tmp_path)
