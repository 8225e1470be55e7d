"""Ways to choose what a new GPU measures: ours, orders by other devices, and XGBoost.

Each is a generator: it yields a row of the space, is sent what was measured, and goes on. Nothing of the new
device's times reaches it otherwise. Kernel Tuner's own strategies run on a recorded space in its simulation
mode, in a process of their own; it (Apache-2.0) is no part of this project. Where the Python that is named
cannot import it, its rows are left out and the reason is told.
"""

from __future__ import annotations

import gzip
import json
import math
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from agents.host.gpu_sheets import gpu_sheet
from agents.records import DeviceId, Outcome
from benchmarks.harness import Figures, kept, run_bounded
from benchmarks.rivals.trees import by_changes
from benchmarks.unlike_ways import together_best
from fleet.interchange.dialects import kernel_tuner
from fleet.interchange.logs.catalog import Catalog
from fleet.interchange.logs.json_items import JsonItems
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import LogLines
from fleet.interchange.logs.targets import device_from_log
from transfer.adapt.space_search import SpaceSearch
from transfer.arrays import Floats, Rows, Singles
from transfer.features.hardware import hardware_table, hardware_vector, kinship_steps, vector_distances


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """One kernel: the configurations that every device has tried.

    Legend: N configurations, D devices, F knobs that vary.
    """

    kernel: str
    devices: tuple[str, ...]
    #: (N,) texts of the configurations, equal on all devices, and how Kernel Tuner writes their knobs.
    traces: tuple[str, ...]
    keys: tuple[str, ...]
    #: (N, F) knobs as numbers, sizes as logarithms.
    numbers: Floats
    #: (N, D) mean seconds; NaN where the configuration fails.
    secs: Floats
    #: Seconds of the repeats, by device and configuration.
    repeats: tuple[tuple[tuple[float, ...], ...], ...]
    #: (D, H) hardware vectors.
    hardware: Singles
    #: File of each device.
    files: tuple[Path, ...]

    def speed(self, device: int) -> Floats:
        """(N,) speed of each configuration over the fastest one's; 0 where it fails."""
        secs = self.secs[:, device]
        return np.nan_to_num(np.nanmin(secs) / secs)

    def measure(self, device: int, row: int, random: np.random.Generator) -> float:
        """One measurement: mean of as many repeats as there are, drawn with replacement; NaN if it fails."""
        seen = np.array(self.repeats[device][row])
        return float(random.choice(seen, len(seen)).mean()) if len(seen) else float("nan")


def find_spaces(folder: Path) -> list[Space]:
    """The spaces of a folder that at least three devices have measured."""
    found = []
    for kernel in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = {
            path.name.split(".")[0]: path
            for path in sorted(kernel.iterdir())
            if path.name.endswith((".json", ".json.gz")) and "_T4." not in path.name
        }
        read = {name: cache for name, path in files.items() if (cache := _read(name, path))[0]}
        if len(read) >= 3:
            found.append(_space(kernel.name, files, read))
    return found


def _read(name: str, path: Path) -> tuple[dict[str, tuple[float, ...]], Any]:
    """Repeats by configuration, and the hardware vector of the device."""
    found: dict[str, tuple[float, ...]] = {}
    vector = None
    for one in kernel_tuner.FORMATS[0].read(LogLines(path), Catalog()):
        if isinstance(one, Rejected):
            continue
        if vector is None:
            device = DeviceId(name.lower())
            vector = hardware_vector(*device_from_log(device, one.environment.machine))
        found[one.trace] = one.result.run_secs if one.result.outcome is Outcome.OK else ()
    return found, vector


def _space(kernel: str, files: dict[str, Path], read: dict[str, tuple[dict[str, Any], Any]]) -> Space:
    devices = tuple(read)
    common = set.intersection(*(set(cache) for cache, _ in read.values()))
    traces = tuple(sorted(common))
    knobs = [json.loads(trace) for trace in traces]
    names = list(_names(files[devices[0]]))
    repeats = tuple(tuple(read[name][0][trace] for trace in traces) for name in devices)
    means = [[float(np.mean(secs)) if secs else np.nan for secs in one] for one in repeats]
    return Space(
        kernel=kernel,
        devices=devices,
        traces=traces,
        keys=tuple(",".join(str(one[name]) for name in names) for one in knobs),
        numbers=_numbers([[one[name] for name in names] for one in knobs]),
        secs=np.array(means).T,
        repeats=repeats,
        hardware=hardware_table([read[name][1] for name in devices]),
        files=tuple(files[name] for name in devices),
    )


def _names(path: Path) -> list[str]:
    items = JsonItems(LogLines(path).chunks(), {"cache"}, open_end=True)
    next(iter(items))
    return list(items.head["tune_params_keys"])


def _numbers(rows: list[list[Any]]) -> Floats:
    """Knobs that vary: two values and words as places in their order, other numbers as logarithms."""
    columns = []
    for values in zip(*rows, strict=True):
        distinct = sorted(set(values), key=lambda one: (str(type(one)), one))
        if len(distinct) < 2:
            continue
        plain = len(distinct) > 2 and all(type(one) in (int, float) and one >= 0 for one in distinct)
        places = {one: float(place) for place, one in enumerate(distinct)}
        columns.append([np.log2(1 + one) if plain else places[one] for one in values])
    return np.array(columns, dtype=np.float64).T


#: Of Kernel Tuner 1.5; a version without one of them reports so. Left out are bayes_opt, which takes minutes
#: per run and found least, searches for several aims, and what needs further packages.
STRATEGIES = (
    "hybrid_vndx",
    "adaptive_tabu_greywolf",
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "simulated_annealing",
    "basinhopping",
    "greedy_ils",
    "mls",
    "firefly_algorithm",
    "dual_annealing",
    "greedy_mls",
    "ordered_greedy_mls",
    "minimize",
)

#: Different configurations that a strategy evaluates at most; some end before.
EVALUATIONS = 257

#: Arguments: file of a closed cache, strategies, seeds, evaluations. Prints a line per strategy: its name,
#: keys in order by seed, and the error that ended it. The list of allowed configurations is built once: that
#: takes longer than most strategies.
_CHILD = """
import contextlib, copy, io, json, random, sys, warnings
warnings.filterwarnings("ignore")
import numpy, kernel_tuner.interface
path, strategies, seeds = sys.argv[1], sys.argv[2].split(","), json.loads(sys.argv[3])
evaluations = int(sys.argv[4])
head = json.load(open(path))
params, known = head["tune_params"], head["cache"]
names = list(params)
def allowed(p):
    return ",".join(str(p[name]) for name in names) in known
build, spaces = kernel_tuner.interface.Searchspace, []
def shared(*values, **options):
    if not spaces:
        spaces.append(build(*values, **options))
    return copy.copy(spaces[0])
kernel_tuner.interface.Searchspace = shared
for strategy in strategies:
    orders, failure = [], ""
    for seed in seeds:
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                results, _ = kernel_tuner.interface.tune_kernel(
                    head["kernel_name"], "__global__ void kernel() {}", head["problem_size"], [], params,
                    restrictions=allowed,
                    lang="CUDA", simulation_mode=True, cache=path, strategy=strategy,
                    strategy_options={"max_fevals": evaluations}, quiet=True)
        except Exception as error:
            failure = repr(error)[:200]
            break
        orders.append(list(dict.fromkeys(",".join(str(one[name]) for name in names) for one in results)))
    print(json.dumps([strategy, orders, failure]), flush=True)
"""
#: Of a cached configuration, what Kernel Tuner's simulation reads beside the knobs.
_READ = ("time", "compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")


def why_absent(python: str) -> str:
    """Why Kernel Tuner cannot be asked; empty where it can."""
    try:
        ended = run_bounded([python, "-c", "import kernel_tuner"], 120)
    except OSError as error:
        return f"{python}: {error}"
    if ended.code == 0:
        return ""
    last = (ended.errors.strip().splitlines() or ["it gave no reason"])[-1]
    return f"{python}: {last}; pip install kernel_tuner, or name a Python that has it with --kernel-tuner"


def orders(
    python: str, space: Space, device: int, seeds: list[int], folder: Path
) -> tuple[dict[str, list[list[int]]], dict[str, str]]:
    """Rows in the order in which each strategy evaluates them, by strategy and seed; and what failed.

    Args:
        python: Interpreter that has Kernel Tuner.
        space: The recorded space: strategies see the configurations that all devices have, as every way does.
        device: Place of the device.
        seeds: Of the strategies, from 0 on.
        folder: Where the orders stay; what it has for so many seeds is not run again.
    """

    def run() -> Figures:
        (cache := folder / "cache.json").write_text(_closed_cache(space, device))
        values = [str(cache), ",".join(STRATEGIES), json.dumps(seeds), str(EVALUATIONS)]
        done = subprocess.run([python, "-c", _CHILD, *values], check=True, capture_output=True, text=True)
        return {name: [several, why] for name, several, why in map(json.loads, done.stdout.splitlines())}

    ran = kept(folder / f"{space.kernel}-{space.devices[device]}-{len(seeds)}-seeds.json", run)
    rows = {key: row for row, key in enumerate(space.keys)}
    found = {
        name: [[rows[key] for key in keys] for keys in several]
        for name, (several, why) in ran.items()
        if not why
    }
    return found, {name: why for name, (_, why) in ran.items() if why}


def _closed_cache(space: Space, device: int) -> str:
    """Kernel Tuner's cache of the configurations that all devices have."""
    path = space.files[device]
    head = json.loads(gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes())
    read = (*head["tune_params_keys"], *_READ)
    cached = {key: head["cache"][key] for key in space.keys}
    head["cache"] = {
        key: {name: values[name] for name in read if name in values} for key, values in cached.items()
    }
    # Kernel Tuner takes a cache for closed only where it ends as it writes it itself.
    return json.dumps(head, indent="")


#: Yields rows, receives their measured seconds (NaN: it fails).
Chooser = Generator[int, float, None]

#: After so many measurements a model learns anew.
_ROUNDS = (8, 16, 32, 64, 128)
#: What the roofline reads of a data sheet; registers of a thread beside its outputs, threads that a unit
#: holds, and the share of them that hides latencies.
_SHEET = ("thread_warp_size", "register_bytes_per_unit", "peak_flops", "memory_bytes_per_sec")
_REGISTERS, _RESIDENT, _ENOUGH = 24, 2048, 0.25
#: A failure counts as this much slower than the slowest.
_FAILED = 2.0


def search(space: Space, target: int, seed: int) -> Chooser:
    """`transfer.adapt.space_search`, as `fleet onboard` uses it."""
    others = _others(space, target)
    secs = np.where(np.isnan(space.secs[:, others]), np.inf, space.secs[:, others])
    found = SpaceSearch(secs, space.numbers, seed, kinship_steps(space.hardware[[*others, target]]))
    while len(found.measured) < len(secs):
        row = int(found.choose(1)[0])
        found.observe(row, (yield row))


def _nearest(space: Space, target: int, seed: int) -> Floats:
    distances = vector_distances(space.hardware, target)
    return _filled(space.secs[:, min(_others(space, target), key=distances.__getitem__)])


def _fall_back(space: Space, target: int, seed: int) -> Floats:
    """The mean order of the GPUs of the same architecture; without one of the same maker, else of all."""
    arches = [gpu_sheet(name).get("arch", "") for name in space.devices]
    others = _others(space, target)
    alike = [one for one in others if arches[one] and arches[one] == arches[target]]
    maker = arches[target].rstrip("0123456789abcdef")
    alike = alike or [one for one in others if maker and arches[one].startswith(maker)] or others
    return np.asarray(np.mean([_relative(space.secs[:, one]) for one in alike], axis=0))


def _portfolio(space: Space, target: int, seed: int) -> Floats:
    """The configurations that are together best over the other GPUs, then the others by their mean speed."""
    speed = np.column_stack([space.speed(other) for other in _others(space, target)])
    costs, chosen = -speed.mean(axis=1), together_best(speed)
    costs[chosen] = np.arange(len(chosen)) - len(costs)
    return np.asarray(costs)


def _roofline(space: Space, target: int, seed: int) -> Floats:
    """What knobs and data sheet say without a measurement: a roofline with occupancy.

    A block's tile of outputs has a side; every value that is read serves as many of them, so side / 4 is the
    arithmetic per byte of a filter or a matrix product. Lanes that no thread fills and units whose registers
    hold too few threads take their share of the peak. Among equals the occupancy decides.
    """
    card = {name: float(value) for name, value in gpu_sheet(space.devices[target]).items() if name in _SHEET}
    knobs = [json.loads(trace) for trace in space.traces]
    threads = np.array([_product(each, "block_size", "MDIMC", "NDIMC") for each in knobs])
    outputs = np.array([_product(each, "tile_size", "MWG", "NWG") for each in knobs])
    outputs = outputs / np.where(["MWG" in each for each in knobs], threads, 1.0)
    warp = card["thread_warp_size"]
    warps = np.ceil(threads / warp)
    registers = 4 * warps * warp * (_REGISTERS + outputs)
    occupancy = np.floor(card["register_bytes_per_unit"] / registers) * warps * warp / _RESIDENT
    used = threads / (warps * warp) * np.minimum(1.0, occupancy / _ENOUGH)
    per_byte = np.sqrt(threads * outputs) / 4
    rate = np.minimum(card["peak_flops"] * used, card["memory_bytes_per_sec"] * per_byte)
    order = np.lexsort((-np.minimum(1.0, occupancy), -rate))
    return np.argsort(order, kind="stable").astype(np.float64)


def _product(knobs: dict[str, Any], *starts: str) -> float:
    return math.prod(float(value) for name, value in knobs.items() if name.startswith(starts))


#: Costs of all configurations, from what is known before the first measurement: the least is the first.
_COSTS: dict[str, Callable[[Space, int, int], Floats]] = {
    "random": lambda space, target, seed: np.random.default_rng(seed).random(len(space.traces)),
    # Of the GPU whose data sheet is the most alike.
    "nearest GPU": _nearest,
    "mean rank": lambda space, target, seed: np.mean(
        [rankdata(_filled(space.secs[:, one])) for one in _others(space, target)], axis=0
    ),
    "portfolio": _portfolio,
    "fall back": _fall_back,
    "roofline": _roofline,
}


def _in_order(costs: Callable[[Space, int, int], Floats], space: Space, target: int, seed: int) -> Chooser:
    # A list's iterator cannot be sent what was measured.
    yield from (row for row in np.argsort(costs(space, target, seed), kind="stable").tolist())


def change_of_label(space: Space, target: int, seed: int) -> Chooser:
    """XGBoost on the change of the label from one GPU to another, averaged over the GPUs to start from."""
    others, group = _others(space, target), np.zeros(len(space.traces), dtype=np.int32)
    labels = np.column_stack(
        [*(_relative(space.secs[:, one]) for one in others), np.full(len(group), np.nan)]
    )
    hardware = space.hardware[[*others, target]]

    def order() -> Rows:
        costs = by_changes(labels, np.zeros(len(group)), group, hardware, space.numbers, seed)
        return np.argsort(costs if costs is not None else group, kind="stable")

    rows: list[int] = []
    secs: list[float] = []
    left = iter(order().tolist())
    while len(rows) < len(group):
        row = next(one for one in left if one not in rows)
        secs.append((yield row))
        rows.append(row)
        if len(rows) in _ROUNDS:
            labels[rows, -1] = _relative(np.array(secs))
            left = iter(order().tolist())


OURS = "search (ours)"
CHOOSERS: dict[str, Callable[[Space, int, int], Chooser]] = {
    OURS: search,
    **{name: partial(_in_order, costs) for name, costs in _COSTS.items()},
    "XGBoost change of label": change_of_label,
}


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
