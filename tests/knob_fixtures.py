"""Files of other tuners' configurations, made up in their documented forms."""

from __future__ import annotations

import json
from typing import Any

NAMES = ["block_size_x", "block_size_y", "tile_size_x", "use_shmem"]
#: What Kernel Tuner calls its failures.
FAILURES = ("InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig")
START = "2023-12-22 09:54:05.502007+00:00"


def configuration(number: int) -> dict[str, Any]:
    """Different numbers below 512 give different configurations."""
    values = (16 << number % 4, 1 << number // 4 % 4, 1 + number // 16 % 16, number // 256)
    return dict(zip(NAMES, values, strict=True))


def cached(number: int, **changes: Any) -> dict[str, Any]:
    """One result of a Kernel Tuner cache."""
    times = [3.5 + number / 7, 3.25 + number / 7, 3.75 + number / 7]
    spent = {"compile_time": 918.5, "verification_time": 0, "benchmark_time": 126.25}
    made = {**configuration(number), "time": sum(times) / 3, "times": times, **spent, "GFLOP/s": 1000.0}
    return {**made, "timestamp": START, **changes}


def cache_text(results: list[dict[str, Any]], **changes: Any) -> str:
    """A cache as Kernel Tuner writes it: a head, then a line a result."""
    head = {
        "device_name": "NVIDIA A100-PCIE-40GB",
        "kernel_name": "convolution_kernel",
        "problem_size": [4096, 4096],
        "tune_params_keys": NAMES,
        "tune_params": {name: sorted({one.get(name) for one in results}, key=str) for name in NAMES},
        "objective": "time",
        "cache": {},
    }
    lines = [json.dumps({",".join(str(one.get(name)) for name in NAMES): one})[1:-1] for one in results]
    return json.dumps({**head, **changes}, indent="")[:-3] + "\n" + ",\n".join(lines) + "}\n}"


def t4_text(results: list[dict[str, Any]], **more: Any) -> str:
    """The same results as a T4 file."""
    words = dict(zip(FAILURES, ("constraints", "compile", "runtime"), strict=True))
    listed = []
    for one in results:
        times = {"compilation": one["compile_time"], "benchmark": one["benchmark_time"], "validation": 0}
        if "times" in one:
            times["runtimes"] = one["times"]
        listed.append(
            {
                "timestamp": one["timestamp"],
                "configuration": {name: one[name] for name in NAMES},
                "times": times,
                "invalidity": words.get(one["time"], "correct"),
                "correctness": 1,
                "measurements": [
                    {"name": "GFLOP/s", "value": one["GFLOP/s"], "unit": "GFLOP/s"},
                    {"name": "time", "value": one["time"], "unit": "ms"},
                ],
                "objectives": ["time"],
            }
        )
    return json.dumps({**more, "results": listed, "schema_version": "1.0.0"}, indent=2)
