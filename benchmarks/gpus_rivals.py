"""Ways to choose what a new GPU measures: ours, orders by other devices, and XGBoost.

Each is a generator: it yields a row of the space, is sent what was measured, and goes on. Nothing of the new
device's times reaches it otherwise. Kernel Tuner's own strategies run on a recorded space in its simulation
mode, in a process of their own; it (Apache-2.0) is no part of this project. Where the Python that is named
cannot import it, its rows are left out and the reason is told. Legend as in `benchmarks.gpus_spaces`.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from agents.host.gpu_sheets import gpu_sheet
from benchmarks.gpus_spaces import Floats, Space
from transfer.adapt.space_search import SpaceSearch

#: The last three are those of version 1.5 that need the fewest evaluations; a version without one reports so.
STRATEGIES = (
    "genetic_algorithm",
    "simulated_annealing",
    "pso",
    "basinhopping",
    "bayes_opt",
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "diff_evo",
)

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


Rows = NDArray[np.int64]
#: Yields rows, receives their measured seconds (NaN: it fails).
Chooser = Generator[int, float, None]

#: After so many measurements a model learns anew.
_ROUNDS = (8, 16, 32, 64, 128)
#: Rows of each source that a model learns from, at most.
_SOURCE_ROWS = 2000
_TREES = {"max_depth": 6, "eta": 0.1, "subsample": 0.8, "colsample_bytree": 0.8, "nthread": 1}
_TREE_ROUNDS = 100
#: Weight of a row of the new device over one of a source, at most.
_MOST_WEIGHT = 8.0
#: A failure counts as this much slower than the slowest.
_FAILED = 2.0


def search(space: Space, target: int, seed: int) -> Chooser:
    """`transfer.adapt.space_search`, as `fleet onboard` uses it."""
    others = _others(space, target)
    secs = np.where(np.isnan(space.secs[:, others]), np.inf, space.secs[:, others])
    found = SpaceSearch(secs, space.numbers, seed=seed)
    while len(found.measured) < len(secs):
        row = int(found.choose(1)[0])
        found.observe(row, (yield row))


def random_order(space: Space, target: int, seed: int) -> Chooser:
    """All in random order."""
    yield from _in_order(np.random.default_rng(seed).permutation(len(space.traces)))


def nearest_gpu(space: Space, target: int, seed: int) -> Chooser:
    """In the order of the GPU whose data sheet is the most alike."""
    others = _others(space, target)
    spread = np.maximum(space.hardware.std(axis=0), 1e-6)
    scaled = space.hardware / spread
    apart = [float(((scaled[one] - scaled[target]) ** 2).sum()) for one in others]
    nearest = others[int(np.argmin(apart))]
    yield from _in_order(np.argsort(_filled(space.secs[:, nearest]), kind="stable"))


def mean_rank(space: Space, target: int, seed: int) -> Chooser:
    """In the order of the mean rank on the other GPUs."""
    ranks = [rankdata(_filled(space.secs[:, one])) for one in _others(space, target)]
    yield from _in_order(np.argsort(np.mean(ranks, axis=0), kind="stable"))


def portfolio(space: Space, target: int, seed: int) -> Chooser:
    """The configurations that are together best over the other GPUs, in the order of their choice.

    The next one is that with which the fastest chosen one of each GPU keeps most speed; behind all that add
    something go the others by their mean speed.
    """
    speed = np.column_stack([space.speed(one) for one in _others(space, target)])
    reached = np.zeros(speed.shape[1])
    chosen: list[int] = []
    while len(chosen) < len(speed):
        gains = np.maximum(speed, reached).sum(axis=1) - reached.sum()
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        chosen.append(best)
        reached = np.maximum(reached, speed[best])
    rest = np.argsort(-speed.mean(axis=1), kind="stable")
    yield from _in_order(np.array([*chosen, *rest[~np.isin(rest, chosen)]], dtype=np.int64))


def fall_back(space: Space, target: int, seed: int) -> Chooser:
    """In the mean order of the GPUs of the same architecture; without one of the same maker, else of all."""
    arches = [gpu_sheet(name).get("arch", "") for name in space.devices]
    others = _others(space, target)
    alike = [one for one in others if arches[one] and arches[one] == arches[target]]
    maker = arches[target].rstrip("0123456789abcdef")
    alike = alike or [one for one in others if maker and arches[one].startswith(maker)] or others
    means = np.mean([_relative(space.secs[:, one]) for one in alike], axis=0)
    yield from _in_order(np.argsort(means, kind="stable"))


def change_of_label(space: Space, target: int, seed: int) -> Chooser:
    """XGBoost on the change of the label from one GPU to another, averaged over the GPUs to start from."""
    others = _others(space, target)
    random = np.random.default_rng(seed)
    labels = {one: _relative(space.secs[:, one]) for one in others}

    def inputs(rows: Rows, start: int, end: int) -> Floats:
        hardware = np.concatenate([space.hardware[start], space.hardware[end] - space.hardware[start]])
        beside = np.tile(hardware.astype(np.float64), (len(rows), 1))
        return np.column_stack([labels[start][rows], space.numbers[rows], beside])

    pairs = []
    for start in others:
        for end in others:
            if start != end:
                rows = random.permutation(len(space.traces))[:_SOURCE_ROWS]
                pairs.append((inputs(rows, start, end), (labels[end] - labels[start])[rows]))
    x, y = np.concatenate([part for part, _ in pairs]), np.concatenate([part for _, part in pairs])
    every = np.arange(len(space.traces))
    own = {start: inputs(every, start, target) for start in others}

    def predict(rows: Rows, secs: Floats) -> Floats:
        weight = np.full(len(rows) * len(others), _weight(len(y), len(rows) * len(others)))
        model = _fit(
            np.concatenate([x, *(own[start][rows] for start in others)]),
            np.concatenate([y, *(secs - labels[start][rows] for start in others)]),
            np.concatenate([np.ones(len(y)), weight]),
            seed,
        )
        return np.asarray(np.mean([labels[start] + model(own[start]) for start in others], axis=0))

    yield from _by_model(space, predict, np.argsort(predict(np.zeros(0, np.int64), np.zeros(0))))


CHOOSERS: dict[str, Callable[[Space, int, int], Chooser]] = {
    "search (ours)": search,
    "random": random_order,
    "nearest GPU": nearest_gpu,
    "mean rank": mean_rank,
    "portfolio": portfolio,
    "fall back": fall_back,
    "XGBoost change of label": change_of_label,
}


def _by_model(space: Space, predict: Callable[[Rows, Floats], Floats], first: NDArray[np.int64]) -> Chooser:
    """Measure in the order of `first`, then of what a model expects, which learns in rounds."""
    order: Iterator[int] = iter(first.tolist())
    rows: list[int] = []
    secs: list[float] = []
    while len(rows) < len(space.traces):
        row = next(one for one in order if one not in rows)
        secs.append((yield row))
        rows.append(row)
        if len(rows) in _ROUNDS:
            found = predict(np.array(rows), _relative(np.array(secs)))
            order = iter(np.argsort(found, kind="stable").tolist())


def _in_order(rows: Rows) -> Chooser:
    # A list's iterator cannot be sent what was measured.
    yield from (row for row in rows.tolist())


def _others(space: Space, target: int) -> list[int]:
    return [place for place in range(len(space.devices)) if place != target]


def _filled(secs: Floats) -> Floats:
    return np.where(np.isnan(secs), np.inf, secs)


def _relative(secs: Floats) -> Floats:
    """Logarithm of the time over the fastest; failures are slower than all."""
    if not np.isfinite(secs).any():
        return np.zeros(len(secs))
    found = np.log(secs / np.nanmin(secs))
    return np.where(np.isnan(found), np.nanmax(found) + np.log(_FAILED), found)


def _weight(sources: int, own: int) -> float:
    return min(_MOST_WEIGHT, sources / max(1, own))


def _fit(x: Floats, y: Floats, weight: Floats, seed: int) -> Callable[[Floats], Floats]:
    import xgboost

    data = xgboost.DMatrix(x, y, weight=weight)
    model = xgboost.train({**_TREES, "seed": seed, "tree_method": "hist"}, data, _TREE_ROUNDS)
    return lambda rows: np.asarray(model.predict(xgboost.DMatrix(rows)), dtype=np.float64)
