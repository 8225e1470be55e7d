"""Our builder and our runner for TVM's own searches; `test_tutorials.py` runs a whole search."""

from __future__ import annotations

import pytest

from agents.records import DeviceSpec
from benchmarks.bad_programs import calling

pytestmark = [pytest.mark.tvm, pytest.mark.slow]


@pytest.mark.timeout(120)
def test_a_program_that_does_not_compile_fails_alone(generic_spec: DeviceSpec) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.device.tvm_measure import tvm_measure
    from agents.programs.workloads import operator_workload

    bad = tvm.ir.load_json(calling("broken", "no_such_function")[0].module_json)
    good = tvm.ir.load_json(operator_workload("GMM", (1, 16, 16, 16)).module_json)
    with tvm_measure(generic_spec) as ours:
        target = tvm.target.Target(generic_spec.target)
        inputs = [ms.builder.BuilderInput(one, target) for one in (good, bad, good)]
        built = ours.builder.build(inputs)
        args = ms.arg_info.ArgInfo.from_prim_func(good["main"])
        runs = [ms.runner.RunnerInput(one.artifact_path, "cpu", args) for one in built]
        first, broken, same = [future.result() for future in ours.runner.run(runs)]
    assert [float(one) for one in first.run_secs] == [float(one) for one in same.run_secs]
    assert broken.run_secs is None
    assert str(broken.error_msg)
