"""Turn a candidate into machine code for one target. Runs in a worker process (`child.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from agents.programs.trace_rules import TraceRefusedError, read_trace

_Compiled = TypeVar("_Compiled")

#: TVM's refusal of what its own pass made: it gave shared memory of float16 to sums of float32.
_REUSED = "tvm_access_ptr element type"


class CandidateRefused(Exception):  # noqa: N818  # a fate of a candidate, not a fault of the program
    """TVM cannot replay or compile this candidate; the message is TVM's own."""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled candidate, ready to be called in this process."""

    #: `tvm.runtime.Module` with the function `main`, machine code already generated.
    module: Any
    #: Seconds from the trace to callable machine code.
    build_secs: float


def scheduled(module: Any, trace: str) -> Any:
    """Apply a trace (JSON text) to an unscheduled `tvm.IRModule` and return the `tvm.s_tir.Schedule`.

    Raises:
        CandidateRefused: The trace says what no trace may say (`agents.programs.trace_rules`), or does not
            fit.
    """
    from tvm.s_tir.schedule import Schedule, Trace

    try:
        checked = read_trace(trace)
    except TraceRefusedError as error:
        raise CandidateRefused(f"the trace is refused: {error}") from error
    schedule = Schedule(module, error_render_level="none")
    try:
        Trace.apply_json_to_schedule(checked, schedule)
    except Exception as error:
        raise CandidateRefused(f"the trace does not replay on its workload: {error}") from error
    return schedule


def replay(module: Any, trace: str) -> Any:
    """Apply a trace (JSON text) to an unscheduled `tvm.IRModule` and return the scheduled one.

    Raises:
        CandidateRefused: As of `scheduled`.
    """
    return scheduled(module, trace).mod


def compiled(compile_it: Callable[[], _Compiled], **config: Any) -> _Compiled:
    """Compile with TVM, and once more without reuse of buffers if that is what TVM refuses.

    Schedules of TVM's rules for tensor cores come to this if sums are of float32, as in networks of float16.

    Args:
        compile_it: Compiles.
        config: Of TVM's passes.
    """
    import tvm

    try:
        with tvm.transform.PassContext(config=config):
            return compile_it()
    except Exception as error:
        if _REUSED not in str(error):
            raise
    with tvm.transform.PassContext(config={**config, "tirx.disable_storage_rewrite": True}):
        return compile_it()


def build(module: Any, trace: str, target: Any) -> Built:
    """Schedule and compile one candidate: a trace (JSON text) of an unscheduled `tvm.IRModule`.

    No file is written and nothing is linked: for a CPU target LLVM's JIT makes the code in place. It is
    asked for `main` here, since it compiles lazily and code generation must not fall into the timing.

    The call is compiled without TVM's checks of its arguments: a tenth of the compiler's time, and the
    program's own code is the same. `agents.programs.loaded_workloads` looks at them once a workload instead.

    Raises:
        CandidateRefused: TVM refuses the trace or the program.
    """
    import tvm

    started = time.perf_counter()
    scheduled = replay(module, trace)
    try:
        # CUDA's compiler learns the architecture from the target in scope only; else it asks this host's GPU.
        with target:
            config = {"tirx.disable_assert": True}
            runtime = compiled(lambda: tvm.tirx.build(scheduled, target=target), **config)
        runtime.get_function("main", query_imports=True)
    except Exception as error:
        raise CandidateRefused(f"TVM cannot compile the candidate: {error}") from error
    return Built(runtime, time.perf_counter() - started)
