"""What each benchmark needs beside the standard library, looked at before it imports or measures anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise

#: Modules that each extra of the distribution brings, and the extras that it includes.
_MODULES: dict[str, tuple[str, ...]] = {
    "store": ("deltalake", "filelock", "numpy", "orjson", "psutil", "pyarrow", "scipy", "threadpoolctl"),
    "measure": ("tvm", "tvm_ffi"),
    "train": ("safetensors", "torch", "xgboost"),
    "daemon": ("fastapi", "jinja2", "markupsafe", "prometheus_client", "ray", "starlette", "uvicorn"),
    "networks": ("onnx", "onnxruntime", "onnxscript", "transformers"),
    "tensorboard": ("tensorboard",),
    "dev": ("playwright",),
}
_INCLUDED: dict[str, tuple[str, ...]] = {
    "measure": ("store",),
    "train": ("store",),
    "daemon": ("measure", "train"),
    "networks": ("measure", "train"),
    "dev": ("daemon", "networks", "tensorboard"),
}
#: Benchmarks, and the programs that they start, by the extras that they need.
_NEEDED = {
    "daemon": (
        "arrival chaos_real collection compare hostile hostile_child hostile_live hosts learning "
        "onboarding scale"
    ),
    "daemon networks": "freshness gpu_visit networks pretrained search",
    "measure train": "scoring training tvm_sides unlike",
    "daemon tensorboard": "chaos",
    "dev": "dashboard pictures",
    "": "disturbing_load",
    "train": "gpus",
    "measure": "imports",
    "measure networks": "networks_limit",
    "store": "store",
}
EXTRAS: dict[str, tuple[str, ...]] = {
    name: tuple(extras.split()) for extras, names in _NEEDED.items() for name in names.split()
}


def needed_modules(benchmark: str) -> dict[str, str]:
    """Modules that a benchmark needs, and for each the extra that brings it."""
    modules: dict[str, str] = {}
    extras = list(EXTRAS.get(benchmark, ()))
    for extra in extras:
        modules |= {name: extra for name in _MODULES[extra] if name not in modules}
        extras += [name for name in _INCLUDED.get(extra, ()) if name not in extras]
    return modules


def refuse_if_incomplete(arguments: Sequence[str]) -> None:
    """End the program with one line if the benchmark that it runs lacks a package.

    Args:
        arguments: Of the interpreter, as `sys.orig_argv`: `python -m benchmarks.NAME ...`.

    Raises:
        SystemExit: With the line, and so with exit code 1.
    """
    names = [after for before, after in pairwise(arguments) if before == "-m"]
    package, _, benchmark = names[0].partition(".") if names else ("", "", "")
    if package != "benchmarks":
        return
    missing = [name for name in needed_modules(benchmark) if not _is_there(name)]
    if missing:
        extras = ",".join(EXTRAS[benchmark])
        sys.exit(
            f"benchmarks.{benchmark} needs {', '.join(missing)}, not installed here: "
            f"pip install 'tensor-fleet[{extras}]'"
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False
