"""Turn a candidate into machine code for one target. Runs in a worker process (`child.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from agents.programs.trace_rules import TraceRefusedError, read_trace

#: Passes of TVM that go over every statement, and after which LLVM makes the same code for a CPU as without
#: them: a sixth of what TVM takes before LLVM.
_LEFT_OUT = frozenset({"tirx.RemoveNoOp", "s_tir.RenormalizeSplitPattern"})
#: TVM's refusal of what its own pass made: it gave shared memory of float16 to sums of float32.
_REUSED = "tvm_access_ptr element type"

_Compiled = TypeVar("_Compiled")


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


@cache
def _leave_out() -> Any:
    """The `PassInstrument` by which TVM leaves out passes."""
    from tvm.ir.instrument import pass_instrument

    @pass_instrument
    class LeaveOut:
        """Asked before each pass."""

        def should_run(self, module: Any, info: Any) -> bool:
            """Whether TVM runs it."""
            return info.name not in _LEFT_OUT

    return LeaveOut()


def compiled(
    compile_it: Callable[[], _Compiled],
    instruments: Sequence[Any] = (),
    *,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> _Compiled:
    """Compile with TVM, and once more without reuse of buffers if that is what TVM refuses.

    Schedules of TVM's rules for tensor cores come to this if sums are of float32, as in networks of float16.

    Args:
        compile_it: Compiles.
        instruments: Of TVM's passes (`tvm.ir.instrument.PassInstrument`).
        config: Of TVM's passes.
    """
    import tvm

    def context(**more: Any) -> Any:
        return tvm.transform.PassContext(config={**config, **more}, instruments=list(instruments))

    try:
        with context():
            return compile_it()
    except Exception as error:
        if _REUSED not in str(error):
            raise
    with context(**{"tirx.disable_storage_rewrite": True}):
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
    program = scheduled(module, trace).mod
    try:
        instruments = [_leave_out()] if target.kind.name == "llvm" else []
        # CUDA's compiler learns the architecture from the target in scope only; else it asks this host's GPU.
        with target:
            runtime = compiled(
                lambda: tvm.tirx.build(program, target=target),
                instruments,
                config={"tirx.disable_assert": True},
            )
        runtime.get_function("main", query_imports=True)
    except Exception as error:
        raise CandidateRefused(f"TVM cannot compile the candidate: {error}") from error
    return Built(runtime, time.perf_counter() - started)
