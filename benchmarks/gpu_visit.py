"""Minutes on an NVIDIA GPU, used well: `python -m benchmarks.gpu_visit --minutes 8 --keep FOLDER --json`.

Does on the host's first GPU what no table has yet, and prints one JSON for a page of results:

- `products`: `fleet tune` searches matrix products of float16, which tensor cores multiply, for two fifths of
  the time. Candidates that use tensor cores are counted, and the fastest one of each kind is compared with
  `torch.matmul` and with TVM's default schedule.
- `networks`: each is tuned for an equal share of the rest, and its library timed beside torch eager,
  `torch.compile` and TVM's default schedules.
- `gpu` of each: clocks, heat, power and what holds the clock down, before, while and after.

Without a GPU it is skipped. With `--keep FOLDER` each part is a file, and a visit that was
stopped goes on with the next one. `--quick` takes two minutes, two products and a small network. Needs the
extras `daemon,networks,cuda`, CUDA's toolkit, and torch built for CUDA.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import fleet
from agents.codec import workload_from_json
from agents.errors import first_line
from agents.host.cuda import compiler_fault, cuda_devices, gpu_state, reading_fault
from agents.programs.build import compiled
from agents.programs.check import argument_values
from agents.programs.trace_rules import read_trace
from agents.programs.workloads import own_module
from agents.records import DeviceKind, DeviceSpec, Outcome, Record, Workload, as_json_dict
from benchmarks.harness import Figures, benchmark, child_json, kept, option, working_folder
from benchmarks.networks import MOST_TRIALS, NETWORKS, latencies, settings_of
from benchmarks.search_sides import tuned
from benchmarks.tables import sections
from fleet.config.init import host_profiles
from fleet.json_types import Json
from fleet.store.store import Store

#: Batch, rows, columns and depth: two squares, the attention of BERT-base on 8 texts of 512 tokens, and its
#: widest linear layer on 8 of 128. Smaller ones end before a GPU's host has started the next.
PRODUCTS: Final = {
    "square-1024": (1, 1024, 1024, 1024),
    "square-4096": (1, 4096, 4096, 4096),
    "attention": (96, 512, 512, 64),
    "bert-linear": (1, 1024, 3072, 768),
}
_NETWORKS: Final = (f"{NETWORKS['bert-base']},dtype=float16", NETWORKS["bert-base"])
_QUICK: Final = (f"{NETWORKS['bert-tiny']},dtype=float16",)
#: Share of the minutes that the products take, and share of a part's that its search takes: compiling and
#: timing follow it.
_PRODUCTS_SHARE, _SEARCH_SHARE = 0.4, 0.6
_MOMENT_SECS: Final = 1.0
#: Operations of dense float16 products that a multiprocessor's tensor cores do per cycle, by architecture
#: (NVIDIA's white papers of V100, A100, GA102, Ada and H100).
_TENSOR_FLOPS: Final = {
    **{"sm_70": 1024, "sm_75": 1024, "sm_80": 2048, "sm_86": 1024, "sm_89": 1024, "sm_90": 4096}
}
#: Of `torch.matmul`: seconds of a turn, and turns, of which the fastest counts.
_TURN_SECS, _TURNS = 0.05, 7
_RIVALS: Final = "from benchmarks.gpu_visit import answer; answer()"


@dataclass(frozen=True, slots=True)
class Options:
    """How long the visit is, and what is tuned."""

    minutes: float = option(8.0, "of the whole visit, about", least=0.5, quick=2.0)
    product: tuple[str, ...] = option(
        tuple(PRODUCTS), "only this one", choices=list(PRODUCTS), quick=("square-1024", "bert-linear")
    )
    network: tuple[str, ...] = option(
        _NETWORKS, "as `fleet tune` takes it, in place of the usual ones", quick=_QUICK
    )
    keep: Path | None = option(None, "folder of finished parts; a stopped visit goes on")
    quick: bool = option(False, "two minutes, two products, a small network")


def measure(options: Options) -> Figures:
    """Do all parts; one that fails keeps no other from being done."""
    if why := why_skipped():
        return {"skipped": why}
    began, card = time.monotonic(), cuda_devices()[0]
    [spec, *_] = [one.spec for one in host_profiles() if one.spec.kind is DeviceKind.CUDA]
    with working_folder(options.keep) as folder:
        settings = settings_of(spec, folder / "devices")

        def part(name: str, secs: float, make: Callable[[Path, float], Figures]) -> Figures:
            def watched() -> Figures:
                shutil.rmtree(place := folder / name, ignore_errors=True)
                place.mkdir(parents=True)
                with watch(spec.index) as gpu:
                    return {**make(place, _SEARCH_SHARE * max(secs, 0.0) / 60), "gpu": gpu}

            try:
                return kept(folder / "parts" / f"{options.minutes:g}-minutes-{name}.json", watched)
            except Exception as error:
                return {"why_not": first_line(error)}

        secs, peak = 60 * options.minutes, tensor_peak(card)
        search = partial(_products, settings, spec, options.product, peak)
        products = part(f"products-{'-'.join(options.product)}", _PRODUCTS_SHARE * secs, search)
        networks: dict[str, Figures] = {}
        for number, text in enumerate(options.network):
            left = (began + secs - time.monotonic()) / (len(options.network) - number)
            label = re.sub(r"[^a-z0-9.]+", "-", text.lower())
            networks[text] = part(f"network-{label}", left, partial(_tuned, settings, spec, text))
    return {
        "gpu": card,
        "target": spec.target,
        "tensor_peak_flops": peak,
        "baseline": "torch.matmul, torch eager, torch.compile and TVM's default schedules, on the same GPU",
        "products": products,
        "networks": networks,
    }


def why_skipped() -> str:
    """Why there is nothing to visit here, or no way to compile for it; empty if there is."""
    if not any("arch" in card for card in cuda_devices()):
        return "this host shows no NVIDIA GPU: run it where nvidia-smi lists one"
    return compiler_fault() or reading_fault()


def tensor_peak(card: Mapping[str, str]) -> float | None:
    """Dense float16 operations per second at the highest clock; None if the card is not listed."""
    numbers = [card.get(name, "") for name in ("compute_units", "clock_max_mhz")]
    if card.get("arch") not in _TENSOR_FLOPS or not all(map(str.isdecimal, numbers)):
        return None
    units, clock_mhz = map(int, numbers)
    return float(_TENSOR_FLOPS[card["arch"]] * units * clock_mhz * 10**6)


@contextmanager
def watch(index: int) -> Iterator[Figures]:
    """What the driver shows of a GPU `before` a block, `while` it runs, and `after` it."""
    moments: list[Mapping[str, Any]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_MOMENT_SECS):
            moments.append(gpu_state(index))

    figures: Figures = {"before": gpu_state(index)}
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield figures
    finally:
        is_over.set()
        thread.join()
        figures |= {"while": of_moments(moments), "after": gpu_state(index)}


def of_moments(moments: Sequence[Mapping[str, Any]]) -> Figures:
    """Least, median and largest of each number, and in how many moments each reason held the clock down."""
    numbers: dict[str, list[float]] = {}
    reasons: Counter[str] = Counter()
    for moment in moments:
        reasons.update(moment.get("throttle_reasons", ()))
        for name, value in moment.items():
            if name != "throttle_reasons":
                numbers.setdefault(name, []).append(value)
    levels = {name: [min(values), statistics.median(values), max(values)] for name, values in numbers.items()}
    return {"moments": len(moments), **levels, "throttle_reasons": dict(reasons)}


def uses_tensor_cores(trace: str) -> bool:
    """Whether a trace puts instructions of tensor cores in place of loops."""
    steps, _ = read_trace(trace)
    return any(step[0] == "Tensorize" and step[2][0].startswith(("wmma_", "mma_")) for step in steps)


def save_products(names: Sequence[str], path: Path) -> Path:
    """Write products of float16 as one network (`.pt2`), which `fleet tune` searches program by program."""
    import torch

    class Products(torch.nn.Module):
        def forward(self, *sides: torch.Tensor) -> list[torch.Tensor]:
            return [left @ right for left, right in zip(sides[::2], sides[1::2], strict=True)]

    sides = []
    for batch, rows, columns, depth in map(PRODUCTS.__getitem__, names):
        for shape in ((rows, depth), (depth, columns)):
            sides.append(torch.zeros((batch, *shape) if batch > 1 else shape, dtype=torch.float16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        torch.export.save(torch.export.export(Products().eval(), tuple(sides)), str(path))
    return path


def _products(
    settings: Json,
    spec: DeviceSpec,
    names: Sequence[str],
    peak: float | None,
    folder: Path,
    minutes: float,
) -> Figures:
    """Search all products together, then time each one's rivals."""
    search = _tuned(settings, spec, str(save_products(names, folder / "products.pt2")), folder, minutes)
    store, rows = Store.read(folder / "store"), Figures()
    records, workloads = list(store.records(spec.device_id)), store.own_workloads()
    for program in search["programs"]:
        workload = workloads[program["workload_id"]]
        question = {"workload": as_json_dict(workload), "target": spec.target, "gpu_index": spec.index}
        rivals = child_json(["-c", _RIVALS], question=question)
        own = [record for record in records if record.workload_id == workload.workload_id]
        rows[name_of(workload.arg_shapes[-1])] = product_figures(own, rivals, workload.flops, peak)
    return {**search, "products": rows}


def name_of(output: Sequence[int]) -> str:
    """The product that has an output of this shape."""
    shapes: dict[tuple[int, ...], str] = {
        (batch, rows, columns): name for name, (batch, rows, columns, _) in PRODUCTS.items()
    }
    return shapes[(1, 1, *output)[-3:]]


def product_figures(
    records: Sequence[Record], rivals: Mapping[str, Any], flops: float, peak: float | None
) -> Figures:
    """What a product's search reached, with tensor cores and without, beside its rivals.

    Args:
        records: Of its candidates.
        rivals: What `time_rivals` gives.
        flops: Operations of the product.
        peak: Operations per second of the GPU's tensor cores; None if unknown.
    """
    candidates = {record.trace: uses_tensor_cores(record.trace) for record in records}
    secs: dict[str, float] = {}
    for record in records:
        if record.outcome is Outcome.OK:
            side = "tensor_cores" if candidates[record.trace] else "no_tensor_cores"
            secs[side] = min(record.latency_secs, secs.get(side, record.latency_secs))
    best = min(secs.values(), default=None)
    secs |= rivals["secs"]
    return {
        "candidates": len(candidates),
        "with_tensor_cores": sum(candidates.values()),
        "ran": len({record.trace for record in records if record.outcome is Outcome.OK}),
        "best_secs": secs,
        "absent": rivals["absent"],
        "default_uses_tensor_cores": rivals["default_uses_tensor_cores"],
        "share_of_peak": {side: flops / took / peak for side, took in secs.items()} if peak else {},
        **{f"speedup_vs_{side}": took / best for side, took in rivals["secs"].items() if best},
    }


def _tuned(settings: Json, spec: DeviceSpec, text: str, folder: Path, minutes: float) -> Figures:
    """What `fleet tune` found of a network; each way to run it takes until the host has the output."""
    options = fleet.EngineOptions(models=folder / "models", minutes=minutes, settings=settings)
    cores = os.sched_getaffinity(0)
    result = tuned(folder, options, device=spec.device_id, networks=[text], trials=MOST_TRIALS)
    os.sched_setaffinity(0, cores)  # its agent keeps to the cores that time
    [timed] = result["whole_networks"].values()
    row: Figures = {key: result[key] for key in ("trials", "failed", "ended", "seconds")}
    kept_keys = ("name", "workload_id", "weight", "flops", "trials", "failed", "before_secs", "best_secs")
    row["programs"] = [{key: program[key] for key in kept_keys} for program in result["workloads"]]
    row |= {"minutes": minutes, "curves": [found["curve"] for found in result["networks"].values()]}
    if "why_not" in timed:
        return row | {"why_not": timed["why_not"]}
    return row | {"scheduled": f"{timed['applied']} of {timed['workloads']}", **latencies(timed, {})}


def time_rivals(question: Mapping[str, Any]) -> Figures:
    """Time `torch.matmul` and TVM's default schedule.

    Args:
        question: `workload` (JSON; its first two arguments are multiplied), `target`, `gpu_index`.

    Returns:
        `secs` of the fastest turn by rival, `absent` (why one is missing), `default_uses_tensor_cores`.
    """
    import tvm

    workload, target = workload_from_json(question["workload"]), tvm.target.Target(question["target"])
    values = argument_values(workload.arg_shapes, workload.arg_dtypes, 1)
    secs, absent = dict[str, float](), dict[str, str]()
    try:
        secs["torch"] = _torch_secs(values[:2], question["gpu_index"])
    except Exception as error:
        absent["torch"] = first_line(error)
    module, device = default_module(workload, target), tvm.cuda(question["gpu_index"])
    arguments = [tvm.runtime.tensor(value, device) for value in values]
    evaluate = module.time_evaluator("main", device, repeat=_TURNS, min_repeat_ms=round(1e3 * _TURN_SECS))
    secs["tvm_default"] = min(map(float, evaluate(*arguments).results))
    source = module.imports[0].inspect_source()
    return {"secs": secs, "absent": absent, "default_uses_tensor_cores": has_tensor_cores(source)}


def default_module(workload: Workload, target: Any) -> Any:
    """A workload compiled with the schedule that `relax.build` gives programs of GPUs that have none."""
    import tvm
    from tvm.s_tir import dlight
    from tvm.s_tir.dlight import gpu

    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target:
        module = dlight.ApplyDefaultSchedule(*rules)(own_module(workload))
        return compiled(lambda: tvm.tirx.build(module, target=target))


def has_tensor_cores(source: str) -> bool:
    """Whether CUDA source multiplies with tensor cores."""
    return re.search(r"\bmma_sync\b|\bmma\.sync\b|\bwgmma\b", source) is not None


def _torch_secs(values: Sequence[Any], index: int) -> float:
    import torch
    from torch.utils.benchmark import Timer

    left, right = (torch.from_numpy(value).to(f"cuda:{index}") for value in values)
    timer = Timer("matmul(left, right)", globals={"matmul": torch.matmul, "left": left, "right": right})
    return float(min(timer.blocked_autorange(min_run_time=_TURN_SECS * _TURNS).times))


def answer() -> None:
    """Answer one question of `time_rivals`, as a process of its own."""
    print(json.dumps(time_rivals(json.load(sys.stdin))))


main = benchmark("gpu_visit", __doc__, Options, measure, table=sections)

if __name__ == "__main__":
    main()
