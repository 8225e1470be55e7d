"""TVM's tensor intrinsics, family by family."""

from __future__ import annotations

import pytest

from tests.conftest import run_code

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
