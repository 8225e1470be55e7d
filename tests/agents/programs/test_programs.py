"""Workloads of our own networks, their arguments, and the intrinsics of their schedules."""

from __future__ import annotations

import numpy as np
import pytest

from agents.errors import AgentError
from agents.programs import timing
from agents.programs.loaded_workloads import Programs
from agents.programs.timing import elsewhere
from agents.programs.workloads import network_workloads, operator_workload
from agents.records import Workload
from tests.conftest import run_code


def test_arguments_are_copied_to_another_place_unless_they_are_large(
    matmul: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm

    arguments = Programs().arguments(matmul, tvm.cpu(0))
    held = sum(one.numpy().nbytes for one in arguments)
    monkeypatch.setattr(timing, "_MOST_MOVED_BYTES", held)
    for before, after in zip(arguments, elsewhere(arguments, tvm.cpu(0)), strict=True):
        assert np.array_equal(before.numpy(), after.numpy())
        assert np.from_dlpack(before).ctypes.data != np.from_dlpack(after).ctypes.data
    monkeypatch.setattr(timing, "_MOST_MOVED_BYTES", held - 1)
    assert elsewhere(arguments, tvm.cpu(0)) is arguments


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
def test_unknown_operators_and_shapes_are_refused() -> None:
    with pytest.raises(AgentError, match="known: C1D"):
        operator_workload("NOPE", (1,))
    with pytest.raises(AgentError, match="refuses the shape"):
        operator_workload("GMM", (1, 2))


#: Runs in a process of its own: what is imported stays imported.
_PROGRAM = """
import inspect
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family
before = inspect.stack
load_tensor_intrinsics(Family.CPU)
from tvm.s_tir import TensorIntrin
assert inspect.stack is before
dot_product = "dot_16x4_vnni"
tensor_core = "wmma_sync_16x16x16_f16f16f32"
assert TensorIntrin.get(dot_product) is not None
assert TensorIntrin.get(tensor_core, allow_missing=True) is None, "nothing of a GPU was parsed"
import tvm.s_tir.tensor_intrin
load_tensor_intrinsics(Family.GPU)
assert TensorIntrin.get(tensor_core) is not None
from tvm.s_tir.tensor_intrin import metal
assert metal.__name__ == "tvm.s_tir.tensor_intrin.metal"
"""


@pytest.mark.tvm
def test_a_family_has_its_own_intrinsics_and_the_others_stay_in_reach() -> None:
    run_code(_PROGRAM)
