from __future__ import annotations

import pytest

from agents.errors import AgentError
from agents.programs.networks import NETWORKS, layers
from agents.programs.workloads import network_workloads, operator_workload
from agents.records import Workload


def test_resnet_50_has_the_multiply_adds_of_its_paper() -> None:
    def multiply_adds(args: tuple[int, ...]) -> float:
        _, height, width, c_in, c_out, kernel, stride, _ = args
        return (height / stride) * (width / stride) * c_in * c_out * kernel * kernel

    total = sum(
        multiply_adds(layer.args) * layer.count for layer in layers("resnet-50") if layer.operator == "C2D"
    )
    # He et al. 2016 give 3.8e9 for the original strides; v1.5 moves the stride to the 3x3 layer: 4.1e9.
    assert total == pytest.approx(4.09e9, rel=0.01)


def test_networks_have_the_layer_counts_of_their_papers_each_layer_once() -> None:
    convolutions = {
        network: sum(layer.count for layer in layers(network) if layer.operator in {"C2D", "GRP", "DEP"})
        for network in NETWORKS
    }
    # 53 = 49 in the blocks' chains + 4 down-sampling ones; MobileNet-V2 has 52.
    assert convolutions["resnet-50"] == convolutions["resnext-50"] == 53
    assert convolutions["mobilenet-v2"] == 52
    assert sum(layer.count for layer in layers("bert-base") if layer.operator == "GMM") == 12 * 7
    for network in NETWORKS:
        keys = [(layer.operator, layer.args) for layer in layers(network)]
        assert len(keys) == len(set(keys))


@pytest.mark.tvm
def test_workloads_describe_their_program_with_the_same_ids_in_every_process(
    bert_workloads: list[Workload],
) -> None:
    by_name = {workload.name: workload for workload in bert_workloads}
    dense = by_name["GMM_1x128x128x128"]
    assert dense.arg_shapes == ((1, 128, 128), (1, 128, 128), (1, 128, 128))
    assert dense.flops == 2 * 128**3
    assert dense.bytes_moved == 3 * 128 * 128 * 4
    assert dense.networks == (("bert-tiny", 8),)
    assert len({workload.workload_id for workload in bert_workloads}) == len(bert_workloads)
    here = {workload.name: workload.workload_id for workload in network_workloads(["bert-tiny"])}
    assert here == {workload.name: workload.workload_id for workload in bert_workloads}


@pytest.mark.tvm
def test_unknown_networks_and_operators_are_refused() -> None:
    with pytest.raises(AgentError, match="resnet-51"):
        network_workloads(["resnet-51"])
    with pytest.raises(AgentError, match="known: C1D"):
        operator_workload("NOPE", (1,))
    with pytest.raises(AgentError, match="refuses the shape"):
        operator_workload("GMM", (1, 2))
