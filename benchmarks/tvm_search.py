"""TVM's own search of one workload: `tune_tir` with its XGBoost model, the baseline of `search.py`.

Run as a process of its own, `python -m benchmarks.tvm_search`, with one JSON object on stdin and one on
stdout, so that neither side inherits the other's pinning or memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any

from agents.records import canonical_json

#: TVM's default of 30 s would fail all candidates where its processes take longer than that to start.
_TIMEOUT_SECS = 180.0


def search(question: dict[str, Any]) -> dict[str, Any]:
    """Search one workload.

    Args:
        question: `target`, `module` (JSON), `trials`, `per_round`, `workers`, `seed`, `evaluator` (number,
            repeat, min_repeat_ms).

    Returns:
        Wall seconds, candidates that ran, and the trace of the best one (None: none ran).
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.programs.design_space import plain_json

    module = tvm.ir.load_json(question["module"])
    evaluator = ms.runner.EvaluatorConfig(**question["evaluator"], enable_cpu_cache_flush=False)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        database = ms.tune_tir(
            mod=module,
            target=tvm.target.Target(question["target"]),
            work_dir=folder,
            max_trials_global=question["trials"],
            num_trials_per_iter=question["per_round"],
            builder=ms.builder.LocalBuilder(max_workers=question["workers"], timeout_sec=_TIMEOUT_SECS),
            runner=ms.runner.LocalRunner(timeout_sec=_TIMEOUT_SECS, evaluator_config=evaluator),
            cost_model="xgb",
            num_tuning_cores=question["workers"],
            seed=question["seed"],
        )
        secs = time.perf_counter() - started
        records = database.get_all_tuning_records()
        best = min(records, key=lambda record: min(map(float, record.run_secs)), default=None)
        trace = None if best is None else canonical_json(plain_json(best.trace.as_json()))
    return {"secs": secs, "ran": len(records), "trace": trace}


def main() -> None:
    """Answer one question. TVM's own words go to stderr."""
    question = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    with contextlib.redirect_stdout(sys.stderr):
        answer = search(question)
    with os.fdopen(answers, "w") as stdout:
        print(json.dumps(answer), file=stdout)


if __name__ == "__main__":
    main()
