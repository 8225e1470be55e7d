"""Whole networks: how they are named, which files are refused, and which workloads they have."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from agents.networks.network_name import (
    NetworkRefusedError,
    networks_here,
    read_network_name,
    with_absolute_path,
)
from agents.networks.reader import ask, network_workloads
from agents.records import Family
from tests.network_fixtures import rewritten, save_network, save_program, small_network
from tests.table_fixtures import rows


def test_a_network_is_one_of_ours_a_file_or_an_architecture(tmp_path: Path) -> None:
    assert (read_network_name("bert-tiny").source, read_network_name("bert-tiny").is_graph) == ("ours", False)
    path = tmp_path / "mine.PT2"
    path.write_bytes(b"one")
    mine = read_network_name(str(path))
    assert (mine.source, mine.path, mine.is_graph) == ("pt2", path, True)
    label = mine.label()
    assert label.startswith("mine.PT2-")
    path.write_bytes(b"two")
    assert mine.label() != label, "another content is another network"
    text = "transformers:mobilenet_v2,image_size=128,tf_padding=false,batch=4,dtype=float16"
    one = read_network_name(text)
    assert (one.source, one.name, one.batch, one.dtype) == ("transformers", "mobilenet_v2", 4, "float16")
    assert dict(one.options) == {"image_size": 128, "tf_padding": False}
    assert one.label() == text
    stages = read_network_name("transformers:resnet,depths=1/1/2/1,dates=1/x")
    assert dict(stages.options) == {"depths": [1, 1, 2, 1], "dates": "1/x"}
    assert read_network_name("torchvision:resnet18").source == "torchvision"


#: What is no network, and what would be one.
NO_NETWORKS = """
    bert-tinny                   -> did you mean 'bert-tiny'
    mynet                        -> others are a .pt2 or .onnx file, transformers:NAME
    transformers:                -> expected the name of an architecture behind transformers:
    transformers:../x            -> expected the name
    transformers:bert,batch      -> expected KEY=VALUE once a key, got 'batch'
    transformers:bert,a=1,a=2    -> expected KEY=VALUE once
    transformers:bert,batch=0    -> batch is a number from 1, got 0
    transformers:bert,batch=true -> batch is a number from 1, got True
    transformers:bert,dtype=int4 -> dtype is one of float32, float16, bfloat16
"""


@pytest.mark.parametrize(("text", "message"), rows(NO_NETWORKS))
def test_what_is_no_network_is_refused_with_what_would_be_one(text: str, message: str) -> None:
    with pytest.raises(NetworkRefusedError, match=re.escape(message)) as refused:
        read_network_name(text)
    assert "\n" not in str(refused.value)


def test_paths_are_absolute_for_who_does_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_absolute_path("nets/mine.onnx") == str(tmp_path / "nets/mine.onnx")
    assert with_absolute_path("bert-tiny") == "bert-tiny"
    with pytest.raises(NetworkRefusedError, match=r"nets/mine.onnx: cannot be read on host .*No such file"):
        networks_here(["bert-tiny", "nets/mine.onnx"])
    assert networks_here(None) is None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_network(tmp_path_factory.mktemp("networks") / "small.pt2")


class Payload:
    """Pickled, it makes a folder where it is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self._folder,)


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_networks_are_read_in_a_confined_process_that_unpickles_nothing(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One process: what a small network gives, and what becomes of a pickle and of an unknown operator."""
    import torch

    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvalsh(x @ x.mT)

    odd = save_program(Odd(), (torch.randn(4, 4),), tmp_path / "odd.pt2")
    planted = tmp_path / "planted"
    carried = io.BytesIO()
    torch.save({"example": Payload(planted)}, carried)

    def plant(name: str, content: bytes) -> bytes:
        return carried.getvalue() if name.startswith("data/sample_inputs/") else content

    pickled = rewritten(saved, tmp_path / "pickle.pt2", plant)
    bad = [str(pickled), str(odd)]
    found = network_workloads([str(saved), *bad], Family.CPU, optional=bad)
    assert not planted.exists()
    reasons = [one.getMessage() for one in caplog.records if "is left out" in one.getMessage()]
    assert len(reasons) == 2
    assert "pickle.pt2" in reasons[0]
    assert "which is never unpickled" in reasons[0]
    assert re.search(r"odd\.pt2: TVM cannot import it: .*eig", reasons[1])

    label = read_network_name(str(saved)).label()
    uses = sorted((one.name.rpartition("_")[0], dict(one.networks)[label]) for one in found)
    # Normalisations are in the weights; bias and activation are fused; the twins are one workload.
    assert [one for one in uses if "conv2d" in one[0]] == [
        ("conv2d_nhwc_add_clip_2x16x16x16", 1),
        ("conv2d_nhwc_add_relu_2x16x16x16", 1),
        ("conv2d_nhwc_add_relu_2x16x16x16", 2),
    ]
    assert not [name for name, _ in uses if "sqrt" in name or "divide_multiply" in name]
    assert {one.operator for one in found if "conv2d" in one.name} == {"conv2d", "depthwise_conv2d"}
    assert all(one.flops >= 0 for one in found)
    assert len({one.workload_id for one in found}) == len(found)


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_onnx_file_and_an_architecture_have_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("transformers")
    import torch

    path, dynamic = tmp_path / "small.onnx", tmp_path / "dynamic.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        given = (torch.randn(2, 3, 16, 16),)
        exported = torch.onnx.export(small_network(), given, dynamo=True, verbose=False)
    onnx.save(exported.model_proto, str(path))
    changed = onnx.load(str(path))
    changed.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(changed, str(dynamic))
    bert = "transformers:bert,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64"
    text = f"{bert},tokens=16,vocab_size=100,batch=2"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # A decoder makes its mask with a cumulative sum, which has no tensor program of its own in Relax.
    decoder = "transformers:gpt2,n_embd=32,n_head=2,n_layer=1,vocab_size=100,tokens=16"
    bad = ["transformers:bert,hidden_size=31,num_attention_heads=2", str(dynamic)]
    # Of a set, members that cannot be read are left out.
    found = network_workloads([str(path), text, decoder, *bad], Family.CPU, optional=bad)
    reasons = [one.getMessage() for one in caplog.records if "is left out" in one.getMessage()]
    assert len(reasons) == 2
    assert re.search(r"hidden_size=31.* cannot build it", reasons[0])
    assert "dynamic shape ['batch', 3, 16, 16]" in reasons[1]
    assert any(one.operator == "batch_matmul" and decoder in dict(one.networks) for one in found)
    convolutions = [one for one in found if "conv2d" in one.name]
    assert sum(dict(one.networks)[read_network_name(str(path)).label()] for one in convolutions) == 4
    assert any("matmul" in one.name and text in dict(one.networks) for one in found)


def test_a_process_answers_only_for_what_it_was_asked_and_a_file_has_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "strange.onnx"
    path.write_bytes(b"something")
    file, architectures = str(path), ["transformers:bert", "transformers:gpt2"]
    asked = []

    def taken_over(question: dict[str, Any], **_: Any) -> dict[str, Any]:
        asked.append(question["networks"])
        return {"workloads": {name: [] for name in (file, *architectures)}, "refused": {}}

    monkeypatch.setattr("agents.networks.reader.ask", taken_over)
    network_workloads([file], Family.CPU)
    network_workloads([file, *architectures], Family.CPU)
    # What the file's process said of the others was not kept; what their own said is.
    assert asked == [[file], [file], architectures]
    network_workloads(architectures, Family.CPU)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "answer", [{}, {"workloads": {}, "refused": {}}, {"workloads": {"bert-tiny": [1]}, "refused": {}}]
)
def test_another_answer_than_workloads_is_refused(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.networks.reader.ask", lambda *_, **__: answer)
    with pytest.raises(NetworkRefusedError, match="bert-tiny: its process gave another answer"):
        network_workloads(["bert-tiny"], Family.CPU)


def test_a_process_that_dies_is_one_line() -> None:
    with pytest.raises(NetworkRefusedError, match="bert-tiny: no answer to 'nothing': its") as refused:
        ask({"op": "nothing", "network": "bert-tiny"}, timeout_secs=60)
    assert "\n" not in str(refused.value)
