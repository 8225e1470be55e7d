"""One network of `benchmarks.networks`, on both sides: searched, compiled, and timed beside all rivals.

`fleet tune` comes first. If asked for, TVM's `tune_relax` then searches with our builder and runner for as
long, and with its own until its trials are done. All libraries and runtimes are timed in turn in one
process, on the same cores with as many threads.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import fleet
from agents.records import DeviceSpec, canonical_json
from benchmarks.harness import Figures, child_json, run_bounded, stopwatch
from benchmarks.search_sides import tuned
from fleet.json_types import Json
from fleet.tuning.database import read_database
from fleet.tuning.delivery import build_library, check_network, is_right, time_network

if TYPE_CHECKING:
    from benchmarks.networks import Options

_TVM = [sys.executable, "-m", "benchmarks.tvm_sides"]
#: Of a search that its time ends.
MOST_TRIALS = 100_000
#: Candidates of a round of `tune_relax`, whose own default is 64.
_PER_ROUND = 8
#: TVM writes a larger number for a candidate that failed.
_FAILED_SECS = 1e9
#: Runtimes of vendors that a user may have instead, for nothing.
VENDORS = ("onnxruntime", "openvino", "torch_compile")


def compare(settings: Json, spec: DeviceSpec, network: str, search: Options, folder: Path) -> Figures:
    """Search a network, and time everything in turn.

    Args:
        settings: That find the device, by dotted key.
        spec: The device.
        network: As `fleet tune` takes it.
        search: How: as the command line says.
        folder: An empty one, for stores and libraries.

    Returns:
        A row of `benchmarks.networks`; latencies in seconds, by side.
    """
    cores = os.sched_getaffinity(0)
    limits = child_json(
        ["-m", "benchmarks.networks_limit"],
        question={"network": network, "target": spec.target, "cores": list(spec.cores[: spec.threads])},
    )
    row: Figures = {"network": network, "threads": spec.threads, "minutes": search.search_minutes, **limits}
    libraries = folder / "libraries"
    libraries.mkdir(parents=True)
    if not search.search_minutes:
        check_network(network, spec, libraries)
        timed = time_network(network, spec, {"tvm_untuned": libraries / "untuned.so"}, libraries)
        return row | latencies(timed, limits)
    elapsed = stopwatch()
    options = fleet.EngineOptions(models=folder / "models", minutes=search.search_minutes, settings=settings)
    ours = tuned(folder, options, device=spec.device_id, networks=[network], trials=MOST_TRIALS)
    [timed] = ours["whole_networks"].values()
    if "why_not" in timed:
        return row | {"why_not": timed["why_not"]}
    # What follows the search is the same for both sides.
    search_secs = elapsed() - ours["seconds"].get("compile", 0.0)
    os.sched_setaffinity(0, cores)
    row |= {key: ours[key] for key in ("trials", "failed", "ended", "model")}
    row |= {"search_secs": search_secs, "scheduled_tvm_tuned": f"{timed['applied']} of {timed['workloads']}"}
    [curve] = [of_network["curve"] for of_network in ours["networks"].values()] or [[]]
    row["curve"] = curve
    if any(search.of_tvm):
        sides, stock_secs = _sides_of_tvm(
            spec, settings["devices.folder"], network, search, search_secs, folder
        )
        check_network(network, spec, libraries)
        sides = {"tvm_tuned": Path(timed["library"]), "tvm_untuned": libraries / "untuned.so", **sides}
        timed = time_network(network, spec, sides, libraries)
        row["wall_ratio_vs_stock"] = wall_ratio(timed["secs"], curve, stock_secs)
        row["stock_secs"] = stock_secs
    return row | latencies(timed, limits)


def _sides_of_tvm(
    spec: DeviceSpec, devices: str, network: str, search: Options, secs: float, folder: Path
) -> tuple[dict[str, Path], float | None]:
    """Libraries of TVM's searches by side, and the seconds of the one that is as shipped."""
    question = {
        "way": "network",
        "network": network,
        "target": spec.target,
        "per_round": _PER_ROUND,
        "seed": 0,
        "device": spec.device_id,
        "devices": devices,
    }
    libraries, stock_secs = {}, None
    for side, trials in zip(("tune_relax", "tune_relax_stock"), search.of_tvm, strict=True):
        if not trials:
            continue
        is_stock = side == "tune_relax_stock"
        (theirs := folder / side).mkdir()
        asked = question | {"trials": trials, "is_stock": is_stock, "work_dir": str(theirs / "work")}
        elapsed = stopwatch()
        records = search_with_tvm(asked, None if is_stock else secs)
        if is_stock:
            stock_secs = elapsed()
        libraries[side] = library_of_tvm(spec, asked, records, theirs)
    return libraries, stock_secs


def search_with_tvm(question: Json, secs: float | None) -> Path:
    """Run TVM's search, for so many seconds or to its end: the file of its records that did not fail."""
    folder = Path(question["work_dir"])
    folder.mkdir()
    run_bounded(_TVM, secs, question=json.dumps(question))
    records = folder / "database_tuning_record.json"
    text = records.read_text() if records.exists() else ""
    records.write_text("".join(f"{line}\n" for line in good_records(text)))
    return records


def good_records(text: str) -> list[str]:
    """Lines of candidates that ran; the last one may have been cut off when the search was ended."""
    lines = []
    for line in text.splitlines():
        with suppress(ValueError):
            if max(map(float, json.loads(line)[1][1])) < _FAILED_SECS:
                lines.append(line)
    return lines


def library_of_tvm(spec: DeviceSpec, question: Json, records: Path, folder: Path) -> Path:
    """Compile the network with TVM's schedules."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    # TVM writes its target with every default.
    target = canonical_json(spec.target)
    for line in lines:
        line[1][2] = json.loads(target)
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    traces = read_database(records.parent, target).traces() if lines else {}
    build_library(question["network"], spec, traces, folder)
    return folder / "tuned.so"


def wall_ratio(secs: Mapping[str, float], curve: list[list[float]], stock_secs: float | None) -> float | None:
    """How many times longer TVM as shipped took for its final latency than `fleet tune` until the same one.

    Args:
        secs: Latency of each library.
        curve: (seconds, latency of all programs) of our search. Programs are timed one by one; the library's
            own latency says by how much they are slower together.
        stock_secs: Of TVM's search.

    Returns:
        The ratio; None if TVM was not asked, or ours never was as fast.
    """
    if stock_secs is None or "tune_relax_stock" not in secs or not curve:
        return None
    together = secs["tvm_tuned"] / curve[-1][1]
    until = [at_secs for at_secs, latency in curve if latency * together <= secs["tune_relax_stock"]]
    return stock_secs / until[0] if until else None


def latencies(timed: Json, limits: Json) -> Figures:
    """Latencies of a row, and what follows from them.

    Args:
        timed: What `fleet tune` says of a whole network, or `fleet.tuning.delivery.time_network`.
        limits: What `benchmarks.networks_limit` gives; empty where the peak is unknown.
    """
    secs = timed["secs"]
    vendors = {side: secs[side] for side in VENDORS if side in secs}
    row = {
        "latency_secs": secs,
        "fastest": min(secs, key=secs.__getitem__),
        "spread": {
            side: (max(turns) - min(turns)) / statistics.median(turns)
            for side, turns in timed["turns"].items()
        },
        "absent": timed["absent"],
        "difference": timed["differences"],
    }
    if limits:
        least_secs = limits["flops"] / limits["peak_flops_per_s"]
        row["share_of_peak"] = {side: least_secs / latency for side, latency in secs.items()}
    if "tvm_tuned" not in secs:
        return row
    rivals = {"eager": "torch_eager", "tune_relax_equal_time": "tune_relax", "untuned": "tvm_untuned"}
    rivals |= {side: side for side in VENDORS}
    row["is_equal"] = is_right("tvm_tuned", timed, timed["tolerance"])
    row |= {
        f"speedup_vs_{name}": secs[side] / secs["tvm_tuned"] for name, side in rivals.items() if side in secs
    }
    if vendors:
        row["speedup_vs_best_vendor"] = min(vendors.values()) / secs["tvm_tuned"]
    return row
