"""Arguments of workloads in a worker process."""

from __future__ import annotations

import numpy as np
import pytest

from agents.programs import loaded_workloads as programs
from agents.programs.loaded_workloads import Programs, elsewhere
from agents.records import Workload


def test_arguments_are_copied_to_another_place_unless_they_are_large(
    matmul: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm

    arguments = Programs().arguments(matmul, tvm.cpu(0))
    held = sum(one.numpy().nbytes for one in arguments)
    monkeypatch.setattr(programs, "_MOST_MOVED_BYTES", held)
    for before, after in zip(arguments, elsewhere(arguments, tvm.cpu(0)), strict=True):
        assert np.array_equal(before.numpy(), after.numpy())
        assert np.from_dlpack(before).ctypes.data != np.from_dlpack(after).ctypes.data
    monkeypatch.setattr(programs, "_MOST_MOVED_BYTES", held - 1)
    assert elsewhere(arguments, tvm.cpu(0)) is arguments
