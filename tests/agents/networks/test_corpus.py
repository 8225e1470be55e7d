"""The corpus of architectures, the kinds of their workloads, and what is kept of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agents.networks import cache
from agents.networks.corpus import CORPUS
from agents.networks.network_name import NetworkRefusedError, members, networks_here, read_network_name
from agents.networks.operator_kind import operator_kind
from agents.networks.reader import network_workloads
from agents.records import Family, as_json_dict
from tests.record_fixtures import make_workload
from tests.table_fixtures import rows


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tensor-fleet/networks"


def test_the_corpus_stands_for_its_members_and_another_list_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = [read_network_name(one) for one in CORPUS]
    assert len(set(CORPUS)) == len(CORPUS)
    assert len({one.name for one in named}) >= 25, "architectures"
    assert all(one.is_graph and one.path is None for one in named)
    assert members(["bert-tiny", "corpus", CORPUS[3]]) == ["bert-tiny", *CORPUS]
    corpus = read_network_name("corpus")
    assert (corpus.source, corpus.is_graph) == ("corpus", False)
    assert networks_here(["corpus"]) == ["corpus"]
    label = corpus.label()
    assert label == corpus.label()
    monkeypatch.setattr("agents.networks.network_name.CORPUS", CORPUS[1:])
    assert corpus.label() != label


#: Name and shapes of a workload, and its kind.
KINDS = """
    fused_conv2d_add_relu [1,64,8,8] [32,64,3,3] [1,32,1,1] [1,32,8,8] -> conv2d
    fused_conv2d1_add2 [1,64,8,8] [64,1,3,3] [1,64,1,1] [1,64,8,8] -> depthwise_conv2d
    conv2d [1,64,8,8] [64,16,3,3] [1,64,8,8]                -> group_conv2d
    fused_conv2d_nhwc1_add [1,8,8,64] [3,3,1,64] [1,8,8,64] -> depthwise_conv2d
    conv2d_nhwc [1,8,8,64] [3,3,16,64] [1,8,8,64]           -> group_conv2d
    fused_conv2d_winograd_add [1,8,8,64] [4,4,64,32] [1,8,8,32] -> conv2d
    conv2d [1,1,8,8] [4,1,3,3] [1,4,8,8]                    -> conv2d
    fused_conv2d_transpose_add [1,64,8,8] [64,32,2,2] [1,32,16,16] -> conv_transpose
    fused_conv3d_add [1,3,4,8,8] [8,3,2,2,2] [1,8,2,4,4]    -> conv3d
    fused_conv1d_add [1,8,32] [8,2,1] [1,8,32]              -> group_conv1d
    fused_matmul_add [64,256] [256,8] [8] [64,8]            -> dense
    fused_matmul1_divide [4,16,8] [4,8,16] [4,16,16]        -> batch_matmul
    matmul [4,16,8] [8,16] [4,16,16]                        -> dense
    fused_softmax_reshape [64,256] [64,256]                 -> softmax
    layer_norm2 [64,256] [256] [256] [64,256]               -> norm
    fused_avg_pool2d_add [1,64,8,8] [1,64,8,8]              -> pool
    fused_mean_add [64,256] [64,1]                          -> reduce
    take [8192,256] [64] [64,256]                           -> gather
    fused_reshape3_transpose1_reshape [64,256] [64,256]     -> data_movement
    fused_reshape_gelu_reshape [64,256] [64,256]            -> elementwise
    maximum_add [64,256] [64,256]                           -> elementwise
"""


@pytest.mark.parametrize(("workload", "kind"), rows(KINDS))
def test_a_workload_has_the_kind_of_its_weightiest_part(workload: str, kind: str) -> None:
    name, *shapes = workload.split()
    assert operator_kind(name, [tuple(json.loads(shape)) for shape in shapes]) == kind


def test_what_was_read_is_kept_by_name_and_versions(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, made = read_network_name("transformers:bert"), [make_workload(1), make_workload(2)]
    assert cache.kept_workloads(network, Family.CPU) is None
    cache.keep(network, Family.CPU, made)
    assert cache.kept_workloads(network, Family.CPU) == made
    assert network_workloads([network.text], Family.CPU) == sorted(
        made, key=lambda one: (-one.weight * one.flops, one.workload_id)
    )
    assert cache.kept_workloads(network, Family.GPU) is None
    assert cache.kept_workloads(read_network_name("transformers:bert,batch=2"), Family.CPU) is None
    (path,) = kept.iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    # Other code, and other packages, may make other workloads.
    for name in ("agents.networks.cache.code_hash", "importlib.metadata.version"):
        with monkeypatch.context() as patch:
            patch.setattr(name, lambda named: f"other {named}")
            assert cache.kept_workloads(network, Family.CPU) is None


def test_a_damaged_file_of_the_cache_counts_as_none(kept: Path) -> None:
    network = read_network_name("transformers:bert")
    cache.keep(network, Family.CPU, [make_workload(1)])
    (path,) = kept.iterdir()
    for content in (b"", b"no gzip", gzip.compress(b"{"), gzip.compress(b'[{"name": 1}]')):
        path.write_bytes(content)
        assert cache.kept_workloads(network, Family.CPU) is None


def test_files_are_never_kept_and_a_home_that_cannot_be_written_is_no_error(kept: Path) -> None:
    cache.keep(read_network_name("/nets/net.pt2"), Family.CPU, [make_workload(1)])
    assert not kept.parent.exists()
    kept.parent.write_text("no folder")
    cache.keep(read_network_name("transformers:bert"), Family.CPU, [make_workload(1)])


@pytest.mark.usefixtures("kept")
def test_a_process_that_one_network_ends_reads_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def ask(question: dict[str, Any], *, timeout_secs: float) -> dict[str, Any]:
        asked.append(question["networks"])
        if "transformers:crash" in question["networks"]:
            raise NetworkRefusedError("network transformers:crash: died of signal 9")
        found = {text: [as_json_dict(make_workload(1))] for text in question["networks"]}
        return {"workloads": found, "refused": {}}

    monkeypatch.setattr("agents.networks.reader.ask", ask)
    texts = ["transformers:a", "transformers:crash", "transformers:b"]
    found = network_workloads(texts, Family.CPU, optional=texts)
    assert [one.workload_id for one in found] == [make_workload(1).workload_id]
    assert asked == [texts, *([one] for one in texts)]
    assert "network transformers:crash is left out: " in caplog.text
    with pytest.raises(NetworkRefusedError, match="signal 9"):
        network_workloads(texts, Family.CPU)
    assert asked[4:] == [["transformers:crash"]], "the others are kept"
    with pytest.raises(NetworkRefusedError, match="signal 9"):
        network_workloads(["transformers:crash"], Family.CPU, optional=texts)
