"""TVM's own searches with our builder, our runner and a head: the lines of the documents, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.records import DeviceId, DeviceKind, DeviceSpec, Family

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.tvm, pytest.mark.slow]


@pytest.mark.timeout(120)
def test_a_program_that_does_not_compile_fails_alone(tmp_path: Path) -> None:
    import tvm
    from tvm import te, tirx
    from tvm.s_tir import meta_schedule as ms

    from agents.device.tvm_measure import tvm_measure
    from agents.programs.workloads import operator_workload

    def program(extern: str) -> Any:
        a = te.placeholder((4,), name="a")
        call = lambda i: tirx.call_extern("float32", extern, a[i])  # noqa: E731
        return tvm.IRModule({"main": te.create_prim_func([a, te.compute((4,), call, name="b")])})

    good = tvm.ir.load_json(operator_workload("GMM", (1, 16, 16, 16)).module_json)
    spec = DeviceSpec(
        device_id=DeviceId("generic"),
        kind=DeviceKind.LOCAL,
        family=Family.CPU,
        target_json='{"kind":"llvm","num-cores":1}',
        cores=(0,),
    )
    with tvm_measure(spec) as ours:
        target = tvm.target.Target(spec.target)
        inputs = [ms.builder.BuilderInput(one, target) for one in (good, program("no_such_function"), good)]
        built = ours.builder.build(inputs)
        args = ms.arg_info.ArgInfo.from_prim_func(good["main"])
        runs = [ms.runner.RunnerInput(one.artifact_path, "cpu", args) for one in built]
        first, broken, same = [future.result() for future in ours.runner.run(runs)]
    assert [float(one) for one in first.run_secs] == [float(one) for one in same.run_secs]
    assert broken.run_secs is None
    assert str(broken.error_msg)
