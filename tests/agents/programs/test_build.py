"""The machine code of candidates: what is left out of the build changes none of it."""

from __future__ import annotations

import re

import pytest

from agents.host.device_kinds import compiled_target
from agents.programs import build as building
from agents.programs.build import build
from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload, own_module
from agents.records import Family


def instructions(module: object) -> list[str]:
    """The machine instructions of a compiled module, without what a debugger reads."""
    text = module.inspect_source("s")  # type: ignore[attr-defined]  # tvm publishes no types
    return [line.split("#")[0].rstrip() for line in text.splitlines() if re.match(r"\t[a-z]", line)]


@pytest.mark.tvm
@pytest.mark.parametrize("shape", [("C2D", (1, 14, 14, 32, 32, 3, 1, 1)), ("DEP", (1, 14, 14, 32, 3, 1, 1))])
def test_the_passes_that_are_left_out_change_no_instruction(
    shape: tuple[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm

    workload = operator_workload(*shape)
    module = own_module(workload)
    target = tvm.target.Target(compiled_target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}))
    candidates = DesignSpace(workload, Family.CPU).sample(3, seed=2, exclude=frozenset()).candidates
    left_out = building._LEFT_OUT
    for candidate in candidates:
        monkeypatch.setattr(building, "_LEFT_OUT", left_out)
        short = instructions(build(module, candidate.trace, target).module)
        monkeypatch.setattr(building, "_LEFT_OUT", frozenset())
        full = instructions(build(module, candidate.trace, target).module)
        assert len(full) > 50
        assert short == full


@pytest.mark.tvm
def test_the_passes_that_are_left_out_are_passes_of_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm
    from tvm.ir.instrument import pass_instrument

    workload = operator_workload("GMM", (1, 16, 16, 16))
    [candidate] = DesignSpace(workload, Family.CPU).sample(1, seed=2, exclude=frozenset()).candidates
    asked = []

    @pass_instrument
    class Listen:
        """Notes what is asked, and leaves nothing out."""

        def should_run(self, module: object, info: object) -> bool:
            asked.append(info.name)  # type: ignore[attr-defined]  # tvm publishes no types
            return True

    monkeypatch.setattr(building, "_leave_out", Listen)
    build(own_module(workload), candidate.trace, tvm.target.Target({"kind": "llvm", "num-cores": 1}))
    assert set(asked) >= building._LEFT_OUT
