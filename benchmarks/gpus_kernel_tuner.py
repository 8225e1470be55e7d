"""Kernel Tuner's own strategies on a recorded space: its simulation mode, in a process of its own.

Kernel Tuner (Apache-2.0) is no part of this project. Where the Python that is named cannot import it, its
rows are left out and the reason is told.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpus_spaces import Space

STRATEGIES = ("genetic_algorithm", "simulated_annealing", "pso", "basinhopping", "bayes_opt")

#: Arguments: file of a closed cache, strategies, seeds, evaluations. Prints {strategy: [keys in order, ...]}.
_CHILD = """
import contextlib, io, json, random, sys, warnings
warnings.filterwarnings("ignore")
import numpy, kernel_tuner
path, strategies, seeds = sys.argv[1], sys.argv[2].split(","), json.loads(sys.argv[3])
evaluations = int(sys.argv[4])
head = json.load(open(path))
params, known = head["tune_params"], head["cache"]
names = list(params)
def allowed(p):
    return ",".join(str(p[name]) for name in names) in known
found, failed = {}, {}
for strategy in strategies:
    for seed in seeds:
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                results, _ = kernel_tuner.tune_kernel(
                    head["kernel_name"], "__global__ void kernel() {}", head["problem_size"], [], params,
                    restrictions=allowed,
                    lang="CUDA", simulation_mode=True, cache=path, strategy=strategy,
                    strategy_options={"max_fevals": evaluations}, quiet=True)
        except Exception as error:
            failed[strategy] = repr(error)[:200]
            break
        keys = dict.fromkeys(",".join(str(one[name]) for name in names) for one in results)
        found.setdefault(strategy, []).append(list(keys))
print(json.dumps({"found": found, "failed": failed}))
"""


def why_absent(python: str) -> str:
    """Why Kernel Tuner cannot be asked; empty where it can."""
    try:
        command = [python, "-c", "import kernel_tuner"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{python}: {error}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    return f"{python}: {last}; pip install kernel_tuner, or name a Python that has it with --kernel-tuner"


def orders(
    python: str, space: Space, device: int, seeds: list[int], evaluations: int
) -> tuple[dict[str, list[list[int]]], dict[str, str]]:
    """Rows in the order in which each strategy evaluates them, by strategy and seed; and what failed.

    Args:
        python: Interpreter that has Kernel Tuner.
        space: The recorded space.
        device: Place of the device.
        seeds: Of the strategies.
        evaluations: Different configurations at most; some strategies end before.
    """
    rows = {key: row for row, key in enumerate(space.keys)}
    path = space.files[device]
    raw = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache.json"
        # Kernel Tuner takes a cache for closed only where it ends as it writes it itself.
        cache.write_text(json.dumps(json.loads(raw), indent=""))
        command = [
            python,
            "-c",
            _CHILD,
            str(cache),
            ",".join(STRATEGIES),
            json.dumps(seeds),
            str(evaluations),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    found = {
        name: [[rows[key] for key in keys if key in rows] for keys in several]
        for name, several in told["found"].items()
    }
    return found, told["failed"]


def default_python() -> str:
    """The Python that runs the benchmark."""
    return sys.executable
