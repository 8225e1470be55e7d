"""Whole networks, tuned and timed: `python -m benchmarks.networks --json --device DEVICE`.

MobileNet-V2 (128 x 128) and BERT-tiny with random weights are tuned by `fleet tune` in an empty store for
some minutes. Then TVM's `tune_relax` gets the same wall time, tensor programs, builder and runner; with
`--own-programs` those that TVM's pipeline makes. The libraries of both, TVM's without schedules, torch eager,
`torch.compile` and ONNX Runtime are timed in turn in one process, on the device's cores. The head is the
shipped model's, without a sample, unless `--models` names a folder with one for the device. Needs the extra
`networks`, two cores and some 55 minutes; `--quick` some 5.

`tune_relax` commits results only after a round of each task: 33 rounds for MobileNet-V2. A shorter search
ends without a schedule. So its rounds are small here and the searches long; `--quick` is too short for it.

`--check corpus` searches nothing: it compiles every architecture of the corpus (`networks_corpus.py`).
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agents.records import DeviceId, DeviceSpec, canonical_json
from benchmarks.harness import Figures, Option, benchmark, child_json, run_bounded, working_folder
from benchmarks.networks_corpus import check_corpus, table, tiny_names
from benchmarks.search_sides import tuned
from fleet.config.settings import FleetConfig, load_fleet, select_devices
from fleet.tuning.database import read_database
from fleet.tuning.delivery import build_library, check_network, is_right, time_network
from fleet.tuning.tuning import TuneOptions

#: The networks, as `fleet tune` takes them.
NETWORKS = {
    "mobilenet-v2-128": "transformers:mobilenet_v2,image_size=128,tf_padding=false",
    "bert-tiny": (
        "transformers:bert,hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"
    ),
}
_TVM = [sys.executable, "-m", "benchmarks.tvm_sides"]
_MOST_TRIALS = 100_000
_SIDES = ("untuned", "torch_eager", "torch_compile", "onnxruntime")
#: TVM writes a larger number for a candidate that failed.
_FAILED_SECS = 1e9
#: Outputs may differ by this much from torch's, relative to the largest value.
_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Options:
    """What is tuned, for how long, or what is checked instead."""

    device: Annotated[str, Option("local device of this host, by its id")] = "x86-64-v4"
    models: Annotated[Path | None, Option("folder with a head of the device")] = None
    minutes: Annotated[float, Option("of each search of each side")] = 12.0
    trials: Annotated[int, Option("candidates of a search, if minutes allow", least=1)] = 4096
    per_round: Annotated[
        int, Option("candidates of a round of `tune_relax`; its own default is 64", least=1)
    ] = 8
    network: Annotated[
        tuple[str, ...], Option("only this one", choices=sorted(NETWORKS), is_repeated=True)
    ] = ()
    own_programs: Annotated[
        bool, Option("`tune_relax` gets programs as TVM's pipeline makes them, not those of `fleet tune`")
    ] = False
    quick: Annotated[bool, Option("searches of three quarters of a minute")] = False
    check: Annotated[
        str | None,
        Option("instead compile every architecture of the corpus at a tiny size", choices=["corpus"]),
    ] = None
    jobs: Annotated[int, Option("checked at once", least=1)] = os.cpu_count() or 1
    architecture: Annotated[tuple[str, ...], Option("check only this one", is_repeated=True)] = ()


def search_with_tvm(question: dict[str, Any], secs: float) -> Path:
    """Run TVM's search for so many seconds, and return the file of its records, less those that failed."""
    folder = Path(question["work_dir"])
    folder.mkdir()
    run_bounded(_TVM, secs, question=json.dumps(question))
    records = folder / "database_tuning_record.json"
    text = records.read_text() if records.exists() else ""
    records.write_text("".join(f"{line}\n" for line in good_records(text)))
    return records


def good_records(text: str) -> list[str]:
    """Lines of candidates that ran; the last one may have been cut off when the search was ended."""
    kept = []
    for line in text.splitlines():
        with suppress(ValueError):
            if max(map(float, json.loads(line)[1][1])) < _FAILED_SECS:
                kept.append(line)
    return kept


def library_of_tvm(
    spec: DeviceSpec, question: dict[str, Any], records: Path, folder: Path
) -> tuple[Path, str]:
    """Compile the network with TVM's schedules: the library, and how many of its programs have one."""
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    if question["own_programs"]:
        library = folder / "own_programs.so"
        child_json(_TVM[1:], question=question | {"way": "library", "library": str(library)})
        return library, f"{len({place for place, _ in lines})}, programs of its own"
    # TVM writes its target with every default.
    target = canonical_json(spec.target)
    for line in lines:
        line[1][2] = json.loads(target)
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    traces = read_database(records.parent, target).best_traces() if lines else {}
    built = build_library(question["network"], spec, traces, folder)
    return folder / "tuned.so", f"{built['applied']} of {built['workloads']}"


def compare(settings: FleetConfig, spec: DeviceSpec, name: str, options: Options) -> Figures:
    """Tune a network on both sides and time everything in turn."""
    text, cores = NETWORKS[name], os.sched_getaffinity(0)
    minutes = 0.75 if options.quick else options.minutes
    question = {
        "way": "network",
        "network": text,
        "target": spec.target,
        "own_programs": options.own_programs,
        "trials": _MOST_TRIALS,
        "per_round": options.per_round,
        "seed": 0,
        "device": spec.device_id,
    }
    with working_folder() as folder:
        ours_in = folder / "ours"
        models = options.models or ours_in / "models"
        asked = TuneOptions(trials=options.trials, models=models, out=ours_in / "tuned", minutes=minutes)
        began = time.perf_counter()
        found = tuned(settings, spec, asked, ours_in, (text,))
        # What follows the search is the same for both sides.
        search_secs = time.perf_counter() - began - found["seconds"].get("compile", 0.0)
        os.sched_setaffinity(0, cores)
        question["work_dir"] = str(folder / "tvm")
        records = search_with_tvm(question, search_secs)
        ours = read_database(ours_in / "tuned", canonical_json(spec.target)).best_traces()
        (built_in := folder / "built").mkdir()
        (theirs_in := folder / "theirs").mkdir()
        check_network(text, spec, built_in)
        built = build_library(text, spec, ours, built_in)
        libraries = {"tvm_tuned": built_in / "tuned.so", "tvm_untuned": built_in / "untuned.so"}
        libraries["tune_relax"], scheduled = library_of_tvm(spec, question, records, theirs_in)
        timed = time_network(text, spec, libraries, built_in)
    secs = timed["secs"]
    return {
        "network": text,
        "scheduled_tvm_tuned": f"{built['applied']} of {built['workloads']}",
        "scheduled_tune_relax": scheduled,
        "trials": found["trials"],
        "failed": found["failed"],
        "model": found["model"],
        "search_secs": search_secs,
        "latency_secs": secs,
        "spread": {
            side: (max(turns) - min(turns)) / statistics.median(turns)
            for side, turns in timed["turns"].items()
        },
        "absent": timed["absent"],
        "difference": timed["differences"],
        "is_equal": is_right("tvm_tuned", timed, _TOLERANCE),
        **{
            f"speedup_vs_{side.removeprefix('tvm_')}": secs[side] / secs["tvm_tuned"]
            for side in secs
            if side != "tvm_tuned"
        },
    }


def summary(spec: DeviceSpec, rows: dict[str, dict[str, Any]], own_programs: bool) -> dict[str, Any]:
    """All networks together."""
    programs = "its pipeline's programs" if own_programs else "the same programs"
    return {
        "benchmark": "networks",
        "device": spec.device_id,
        "target": spec.target,
        "threads": spec.threads,
        "baseline": f"tune_relax with XGBoost, {programs}, our builder and runner, equal wall time",
        "networks": rows,
        "is_equal": all(row["is_equal"] for row in rows.values()),
        # Above 1: the library of `fleet tune` is faster. Geometric means over the networks.
        "speedup_vs_tune_relax_equal_time": _mean(rows, "speedup_vs_tune_relax"),
        **{name: _mean(rows, name) for name in (f"speedup_vs_{side}" for side in _SIDES)},
    }


def _mean(rows: dict[str, dict[str, Any]], key: str) -> float | None:
    if not all(key in row for row in rows.values()):
        return None
    return round(math.exp(statistics.fmean(math.log(row[key]) for row in rows.values())), 3)


def measure(options: Options) -> Figures:
    """Tune and compare, or check the corpus."""
    if options.check:
        return check_corpus(options.architecture or list(tiny_names()), options.jobs)
    settings = load_fleet(None, {}).config
    spec = select_devices(settings)[DeviceId(options.device)]
    rows = {name: compare(settings, spec, name, options) for name in options.network or NETWORKS}
    return summary(spec, rows, options.own_programs)


main = benchmark(
    "networks", __doc__, Options, measure, fails=lambda result: result.get("failed_late"), table=table
)

if __name__ == "__main__":
    main()
