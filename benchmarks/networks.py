"""Ten whole networks against what a user would pick instead: `python -m benchmarks.networks --json`.

`fleet tune` searches each network in an empty store for ten minutes, with the shipped model's head and no
sample. Its library is timed in turn, on the same cores, beside ONNX Runtime, OpenVINO, `torch.compile`, torch
eager and TVM without schedules, each at its best settings in float32. `--rivals-only` searches nothing.
`--tune-relax` lets TVM's `tune_relax` search for as long with our builder and runner, and `--stock-trials`
as it is shipped, until its trials are done. Networks are architectures of real size with random weights, at
batch 1. Needs the extra `networks`; OpenVINO is timed where it is installed. Ten networks take some three
hours on two idle cores, twice as long with `--tune-relax`; `--quick` takes two networks and ten minutes.

With `--keep FOLDER` each network's row is a file, and a stopped run goes on with the next network.

`tune_relax` commits results only after a round of each task, so its rounds are small here. `--check corpus`
searches nothing: it compiles every architecture of the corpus (`networks_corpus.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

import fleet
from agents.records import DeviceId, DeviceSpec, canonical_json
from benchmarks.harness import (
    Figures,
    benchmark,
    child_json,
    kept,
    option,
    run_bounded,
    stopwatch,
    working_folder,
)
from benchmarks.networks_corpus import check_corpus, tiny_names
from benchmarks.search_sides import tuned
from benchmarks.tables import sections
from fleet.config.init import Profile, write_profiles
from fleet.config.settings import load_fleet, select_devices
from fleet.json_types import Json, JsonDict
from fleet.tuning.database import read_database
from fleet.tuning.delivery import build_library, check_network, is_right, time_network

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


_TINY_BERT: Final = (
    "transformers:bert,hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"
)
_SMALL_LLAMA: Final = (
    "transformers:llama,hidden_size=576,num_hidden_layers=30,num_attention_heads=9,num_key_value_heads=3,"
    "intermediate_size=1536,vocab_size=49152,tokens=64"
)
#: The networks, as `fleet tune` takes them: images of 224 x 224, texts of 128 tokens, prefills of 64.
NETWORKS: Final = {
    "mobilenet-v2": "transformers:mobilenet_v2,image_size=224,tf_padding=false",
    "efficientnet-b0": (
        "transformers:efficientnet,image_size=224,width_coefficient=1.0,depth_coefficient=1.0,hidden_dim=1280"
    ),
    "resnet-18": "transformers:resnet,depths=2/2/2/2,hidden_sizes=64/128/256/512,layer_type=basic",
    "resnet-50": "transformers:resnet",
    "convnext-tiny": "transformers:convnext",
    "vit-tiny": "transformers:vit,hidden_size=192,num_attention_heads=3,intermediate_size=768",
    "bert-tiny": _TINY_BERT,
    "bert-base": "transformers:bert",
    "gpt2": "transformers:gpt2,tokens=64",
    "llama-135m": _SMALL_LLAMA,
}
_QUICK: Final = ("mobilenet-v2", "bert-tiny")
#: Ratios that are averaged over the networks; above 1 the library of `fleet tune` is faster, or sooner there.
_RATIOS: Final = (
    *("speedup_vs_onnxruntime", "speedup_vs_openvino", "speedup_vs_torch_compile"),
    *("speedup_vs_best_vendor", "speedup_vs_eager", "speedup_vs_untuned"),
    *("speedup_vs_tune_relax_equal_time", "wall_ratio_vs_stock"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What is tuned, for how long, or what is checked instead."""

    device: str = option("x86-64-v4", "local device of this host, by its id")
    threads: str = option("1", "one, or as many as this process has cores", choices=["1", "all"])
    network: tuple[str, ...] = option((), "only this one", choices=list(NETWORKS))
    minutes: float = option(10.0, "of each search", least=0.1, quick=1.0)
    keep: Path | None = option(None, "folder of finished networks; a stopped run goes on")
    rivals_only: bool = option(False, "search nothing, and time TVM without schedules")
    tune_relax: bool = option(False, "TVM's `tune_relax` searches for as long")
    stock_trials: int = option(
        0, "candidates of `tune_relax` as it is shipped; 0: it does not search", least=0
    )
    quick: bool = option(False, "two networks, and searches of a minute")
    check: str | None = option(
        None, "instead compile every architecture of the corpus at a tiny size", choices=["corpus"]
    )

    @property
    def search_minutes(self) -> float:
        """Of our search, and of `tune_relax` beside it; 0: nothing is searched, only rivals are timed."""
        return 0.0 if self.rivals_only else self.minutes

    @property
    def of_tvm(self) -> tuple[int, int]:
        """Candidates of `tune_relax` for as long, which its time ends, and as it is shipped; 0: no search."""
        return MOST_TRIALS * self.tune_relax, self.stock_trials


def device_on_all_cores(spec: DeviceSpec, cores: Iterable[int]) -> DeviceSpec:
    """The same device with a thread on each of some cores."""
    all_cores = tuple(sorted(cores))
    target = {**spec.target, "num-cores": len(all_cores)}
    return replace(spec, threads=len(all_cores), cores=all_cores, target_json=canonical_json(target))


def settings_of(spec: DeviceSpec, folder: Path) -> JsonDict:
    """Settings of a fleet whose only device file, in a folder of its own, is that of a device."""
    write_profiles(folder, [Profile(spec=spec, header=())], force=True)
    return {"devices.folder": str(folder)}


def summary(spec: DeviceSpec, rows: dict[str, Figures]) -> Figures:
    """All networks together: geometric means, and the network that is worst by each ratio."""
    worst, means = {}, {}
    for key in _RATIOS:
        values = {name: row[key] for name, row in rows.items() if row.get(key) is not None}
        is_whole = len(values) == len(rows) or key == "wall_ratio_vs_stock"
        means[key] = statistics.geometric_mean(values.values()) if values and is_whole else None
        if values:
            name = min(values, key=values.__getitem__)
            worst[key] = {"network": name, "value": values[name]}
    searched = [row for row in rows.values() if "is_equal" in row]
    return {
        "device": spec.device_id,
        "target": spec.target,
        "threads": spec.threads,
        "baseline": "runtimes at their best settings, in turn on the same cores; tune_relax with XGBoost",
        "networks": rows,
        "is_equal": all(row["is_equal"] for row in searched) if searched else None,
        **means,
        "worst": worst,
    }


def measure(options: Options) -> Figures:
    """Tune and compare, or check the corpus."""
    if options.check:
        return check_corpus(list(tiny_names()))
    spec = select_devices(load_fleet().config)[DeviceId(options.device)]
    if options.threads == "all":
        spec = device_on_all_cores(spec, os.sched_getaffinity(0))
    names = options.network or (_QUICK if options.quick else tuple(NETWORKS))
    rows = {}
    with working_folder(options.keep) as folder:
        settings = settings_of(spec, folder / "devices")
        for name in names:
            # Of another search is another row of the same folder.
            place = "-".join([name, *map(str, (spec.threads, options.search_minutes, *options.of_tvm))])

            def row(name: str = name, place: str = place) -> Figures:
                shutil.rmtree(folder / place, ignore_errors=True)
                return compare(settings, spec, NETWORKS[name], options, folder / place)

            rows[name] = kept(folder / "rows" / f"{place}.json", row)
    return summary(spec, rows)


main = benchmark(
    "networks", __doc__, Options, measure, fails=lambda result: result.get("failed_late"), table=sections
)

if __name__ == "__main__":
    main()
