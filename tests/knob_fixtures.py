"""Files of other tuners' configurations, made up in their documented forms."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
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


def failed(number: int, word: str) -> dict[str, Any]:
    """A result of a Kernel Tuner cache that has no time, and the word for why."""
    made = cached(number, time=word)
    del made["times"]
    return made


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


def triton_text(times: list[Any]) -> str:
    """A file of Triton's cache with a configuration a time."""
    unset = {"maxnreg": None, "pre_hook": None, "ir_override": None}
    pairs = []
    for place, one in enumerate(times):
        blocks = {"BLOCK_M": 32 << place % 3, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 8}
        config = {"kwargs": blocks, "num_warps": 4, "num_ctas": 1, "num_stages": 2 + place // 3, **unset}
        pairs.append([config, one])
    return json.dumps({"key": ["1024", "1024", "512", "torch.float16"], "configs_timings": pairs})


HELION_HEAD = [
    *("run_id", "timestamp_s", "config_id", "generation", "status", "perf_ms", "compile_time_s", "config")
]


def helion_row(status: str, perf: str, config: str, run: str = "run-1") -> list[str]:
    """One line of Helion's table."""
    return [run, "1.25", "cfg", "0", status, perf, "0.50", config]


def write_helion(folder: Path, rows: list[list[str]], name: str = "tune") -> Path:
    """Table and file beside it; returns the table."""
    text = io.StringIO()
    csv.writer(text).writerows([HELION_HEAD, *rows])
    table = folder / f"{name}.csv"
    table.write_text(text.getvalue(), newline="")
    run = {
        "run_id": "run-1",
        "kernel_name": "_softmax",
        "kernel_source": "def _softmax(x): ...",
        "input_shapes": "[(4096, 4096)]",
        "dtypes": "['torch.float32']",
        "hardware_info": {
            "device_kind": "cuda",
            "device_name": "NVIDIA H100 80GB HBM3",
            "device_props": {"multi_processor_count": 132},
        },
        "settings": {},
    }
    (folder / f"{name}.meta.jsonl").write_text(json.dumps(run) + "\n")
    return table
