"""Whole networks, tuned and timed: `python -m benchmarks.networks --json --device DEVICE`.

MobileNet-V2 (128 x 128) and BERT-tiny with random weights are tuned by `fleet tune` in an empty store for
some minutes. Then TVM's `tune_relax` gets the same wall time, tensor programs, builder and runner. The
libraries of both, TVM's without schedules, torch eager, `torch.compile` and ONNX Runtime are timed in turn in
one process, on the device's cores. The head is the shipped model's, without a sample, unless `--models` names
a folder with one for the device. Needs the extra `networks`, two cores and some 55 minutes; `--quick` some 5.

`tune_relax` commits results only after a round of each task: 33 rounds for MobileNet-V2. A shorter search
ends without a schedule. So its rounds are small here and the searches long; `--quick` is too short for it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from agents.host.own_program import environment
from agents.records import DeviceId, DeviceSpec, WorkloadId, canonical_json
from fleet.collection.progress import TerminalDisplay
from fleet.config.settings import FleetConfig, load_fleet, select_devices
from fleet.core.request_words import RequestKind
from fleet.daemon.daemon import UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.requests.session import EngineSession
from fleet.tuning.database import read_database
from fleet.tuning.delivery import build_libraries, is_right, time_network
from fleet.tuning.tuning import TuneOptions, tune_device

#: The networks, as `fleet tune` takes them.
NETWORKS = {
    "mobilenet-v2-128": "transformers:mobilenet_v2,image_size=128,tf_padding=false",
    "bert-tiny": (
        "transformers:bert,hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512"
    ),
}
_MOST_TRIALS = 100_000
#: Outputs may differ by this much from torch's, relative to the largest value.
_TOLERANCE = 1e-4


def tune(
    spec: DeviceSpec,
    settings: FleetConfig,
    text: str,
    models: Path | None,
    folder: Path,
    minutes: float,
    trials: int,
) -> tuple[dict[str, Any], float]:
    """What `fleet tune` finds in an empty store, and the wall seconds of its search."""
    store = folder / "store"
    models = models or folder / "models"
    settings = settings.model_copy(
        update={
            "store": settings.store.model_copy(update={"path": str(store)}),
            "daemon": settings.daemon.model_copy(update={"root": str(folder / "fleet")}),
            "workloads": settings.workloads.model_copy(update={"networks": (text,)}),
        }
    ).with_devices(spec.device_id)
    options = TuneOptions(trials=trials, models=models, out=folder / "tuned", minutes=minutes)
    console = Console(stderr=True)

    def work(session: EngineSession) -> dict[str, Any]:
        session.ready([spec.device_id])
        return tune_device(session, settings, spec, options, TerminalDisplay(console))

    began = time.perf_counter()
    found = run_embedded(
        settings,
        RequestKind.TUNING,
        {"device": spec.device_id, "trials": trials},
        UpOptions(models=models),
        console,
        work,
    )
    # What follows the search is the same for both sides.
    return found, time.perf_counter() - began - found["seconds"].get("compile", 0.0)


def tune_relax(
    spec: DeviceSpec, text: str, folder: Path, *, secs: float, per_round: int
) -> dict[WorkloadId, str]:
    """The fastest schedule of each workload that TVM's search finds in so many seconds."""
    folder.mkdir()
    question = {
        "network": text,
        "target": spec.target,
        "work_dir": str(folder),
        "trials": _MOST_TRIALS,
        "per_round": per_round,
        "seed": 0,
        "device": spec.device_id,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.tvm_network"],
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        env=environment(),
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(question).encode(), timeout=secs)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    records = folder / "database_tuning_record.json"
    if not records.exists():
        return {}
    # The last line may have been cut off, and TVM writes its target with every default.
    lines = records.read_text().splitlines(keepends=True)
    kept, target = [], canonical_json(spec.target)
    for line in lines:
        with suppress(ValueError):
            place, [trace, run_secs, _, arguments] = json.loads(line)
            if max(map(float, run_secs)) < 1e9:  # TVM's number for a failure
                kept.append(json.dumps([place, [trace, run_secs, json.loads(target), arguments]]))
    records.write_text("".join(f"{line}\n" for line in kept))
    return read_database(folder, target).best_traces()


def measure(
    settings: FleetConfig,
    device: str,
    models: Path | None,
    *,
    minutes: float,
    trials: int,
    per_round: int,
    names: list[str],
) -> dict[str, Any]:
    """Tune each network on both sides and time everything in turn."""
    spec = select_devices(settings)[DeviceId(device)]
    cores = os.sched_getaffinity(0)
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        text = NETWORKS[name]
        with tempfile.TemporaryDirectory(prefix="tensor-fleet-networks-") as made:
            folder = Path(made)
            found, search_secs = tune(spec, settings, text, models, folder / "ours", minutes, trials)
            os.sched_setaffinity(0, cores)
            theirs = tune_relax(spec, text, folder / "tvm", secs=search_secs, per_round=per_round)
            ours = read_database(folder / "ours" / "tuned", canonical_json(spec.target)).best_traces()
            libraries = {}
            for side, traces in {"tvm_tuned": ours, "tune_relax": theirs}.items():
                (folder / side).mkdir()
                built = build_libraries(text, spec, traces, folder / side)
                libraries[side] = folder / side / "tuned.so"
                libraries.setdefault("tvm_untuned", folder / side / "untuned.so")
                rows.setdefault(name, {})[f"scheduled_{side}"] = f"{built['applied']} of {built['workloads']}"
            timed = time_network(text, spec, libraries, folder / "tvm_tuned")
        secs = timed["secs"]
        rows[name] |= {
            "network": text,
            "trials": found["trials"],
            "failed": found["failed"],
            "model": found["model"],
            "search_secs": round(search_secs, 1),
            "latency_secs": {side: round(value, 7) for side, value in secs.items()},
            "spread": {
                side: round((max(turns) - min(turns)) / statistics.median(turns), 3)
                for side, turns in timed["turns"].items()
            },
            "absent": timed["absent"],
            "difference": timed["differences"],
            "is_equal": is_right("tvm_tuned", timed, _TOLERANCE),
            **{
                f"speedup_vs_{side.removeprefix('tvm_')}": round(secs[side] / secs["tvm_tuned"], 3)
                for side in secs
                if side != "tvm_tuned"
            },
        }
    return {
        "benchmark": "networks",
        "device": device,
        "target": spec.target,
        "threads": spec.threads,
        "baseline": "TVM without schedules; tune_relax with XGBoost, our builder and runner, equal wall time",
        "networks": rows,
        "is_equal": all(row["is_equal"] for row in rows.values()),
        # Above 1: the library of `fleet tune` is faster. Geometric means over the networks.
        "speedup_vs_untuned": _mean(rows, "speedup_vs_untuned"),
        "speedup_vs_tune_relax_equal_time": _mean(rows, "speedup_vs_tune_relax"),
        "speedup_vs_torch_eager": _mean(rows, "speedup_vs_torch_eager"),
        "speedup_vs_torch_compile": _mean(rows, "speedup_vs_torch_compile"),
        "speedup_vs_onnxruntime": _mean(rows, "speedup_vs_onnxruntime"),
    }


def _mean(rows: dict[str, dict[str, Any]], key: str) -> float | None:
    if not all(key in row for row in rows.values()):
        return None
    return round(math.exp(statistics.fmean(math.log(row[key]) for row in rows.values())), 3)


def main() -> None:
    """Parse the command line, tune, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--device", default="x86-64-v4", help="local device of this host, by its id")
    parser.add_argument("--models", type=Path, help="folder with a head of the device")
    parser.add_argument("--minutes", type=float, default=12.0, help="of each search of each side")
    parser.add_argument("--trials", type=int, default=4096, help="candidates of a search, if minutes allow")
    parser.add_argument(
        "--per-round",
        type=int,
        default=8,
        help="candidates of a round of `tune_relax`; its own default is 64",
    )
    parser.add_argument("--network", action="append", choices=sorted(NETWORKS), help="only this one")
    parser.add_argument("--quick", action="store_true", help="searches of three quarters of a minute")
    options = parser.parse_args()
    found = measure(
        load_fleet(None, {}).config,
        options.device,
        options.models,
        minutes=0.75 if options.quick else options.minutes,
        trials=options.trials,
        per_round=options.per_round,
        names=options.network or list(NETWORKS),
    )
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
