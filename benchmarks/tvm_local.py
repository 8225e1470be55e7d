"""TVM's own way to measure candidates: `LocalBuilder` and `LocalRunner`, the baseline of `collection.py`.

Run as a process of its own, `python -m benchmarks.tvm_local`, with one JSON object on stdin and one on
stdout, so that neither side inherits the other's pinning or memory.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

#: TVM's default of 30 s would fail all candidates where its processes take longer than that to start.
_TIMEOUT_SECS = 180.0


def measure(question: dict[str, Any]) -> dict[str, Any]:
    """Build and run candidates in one batch, as TVM's measuring loop does.

    Args:
        question: `target`, `workers`, `evaluator` (number, repeat, min_repeat_ms), `candidates` as a list of
            [module JSON, trace JSON].

    Returns:
        Wall seconds of building and of running, the mean seconds of each candidate (None: failed), errors.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.programs.build import replay

    target = tvm.target.Target(question["target"])
    # Replayed before the clock starts: in its measuring loop TVM holds the schedules already.
    scheduled = [
        (replay(tvm.ir.load_json(module), trace), tvm.ir.load_json(module))
        for module, trace in question["candidates"]
    ]
    builder = ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS)
    runner = ms.runner.LocalRunner(
        timeout_sec=_TIMEOUT_SECS,
        evaluator_config=ms.runner.EvaluatorConfig(**question["evaluator"], enable_cpu_cache_flush=False),
    )
    started = time.perf_counter()
    built = builder.build([ms.builder.BuilderInput(module, target) for module, _ in scheduled])
    between = time.perf_counter()
    inputs = [
        ms.runner.RunnerInput(
            result.artifact_path, "cpu", ms.arg_info.ArgInfo.from_prim_func(original["main"])
        )
        for result, (_, original) in zip(built, scheduled, strict=True)
        if result.artifact_path is not None
    ]
    latencies: list[float | None] = []
    errors = [str(result.error_msg) for result in built if result.error_msg]
    for future in runner.run(inputs):
        result = future.result()
        errors += [str(result.error_msg)] if result.error_msg else []
        seconds = result.run_secs
        latencies.append(sum(map(float, seconds)) / len(seconds) if seconds else None)
    ended = time.perf_counter()
    return {
        "build_secs": between - started,
        "run_secs": ended - between,
        "latencies": latencies,
        "built": len(inputs),
        "errors": errors,
    }


def main() -> None:
    """Answer one question."""
    answer = measure(json.load(sys.stdin))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
