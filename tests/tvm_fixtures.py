"""Programs and networks that are compiled and run in the test's own process, and what they compute."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from agents.programs.check import argument_values, difference, poisoned, reference_outputs, tolerance_of
from agents.programs.workloads import own_module
from agents.records import Workload


def wrong_outputs(workload: Workload, trace: str) -> str:
    """How the outputs of a scheduled program differ from those of its plain loops; empty if they agree."""
    import tvm

    from agents.programs.build import build

    module = own_module(workload)
    values = argument_values(workload.arg_shapes, workload.arg_dtypes, 1)
    right = reference_outputs(module, values)
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in poisoned(values, right)]
    build(module, trace, tvm.target.Target({"kind": "llvm", "num-cores": 1})).module["main"](*arguments)
    outputs = {index: arguments[index].numpy() for index in right}
    return difference(right, outputs, tolerance=tolerance_of(module))


def replayed(module: Any, trace: str) -> Any:
    """A schedule of TVM that is made from a trace."""
    from tvm.s_tir.schedule import Schedule, Trace

    schedule = Schedule(module)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule


def run_network(module: Any, *inputs: Any) -> Any:
    """What a lowered network gives for tensors of torch."""
    import tvm
    from tvm import relax

    target = tvm.target.Target({"kind": "llvm", "num-cores": 1, "opt-level": 1})
    machine = relax.VirtualMachine(relax.build(module, target), tvm.cpu())
    return machine["main"](*[tvm.runtime.tensor(tensor.numpy()) for tensor in inputs])


def furthest(output: Any, expected: np.ndarray) -> float:
    """The largest difference from the right output, relative to its largest value."""
    [output] = output if not hasattr(output, "numpy") else [output]
    return float(np.abs(output.numpy() - expected).max() / np.abs(expected).max())
