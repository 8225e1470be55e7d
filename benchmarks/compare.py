"""Stock TVM and `fleet tune` on two operators: `make compare`, or `python -m benchmarks.compare --json`.

Each of three sides searches the same two operators in an empty folder, with as many trials:

- `stock`: TVM's `tune_tir` as it is shipped.
- `plugged`: `tune_tir` with our builder and runner (`fleet.tvm_measure`), which is two lines of code.
- `fleet_tune`: `fleet tune` with the shipped model.

The operators are one convolution of MobileNet-V2 and one matrix multiplication of BERT-base. The shipped
model learnt from neither (`fleet.models.versions`). A search's seconds hold everything from the start of its
process or engine. After the searches of an operator, one agent times the best programs of all sides again,
in turn; figures are of these timings, the fastest turn of each program. There is one seed: a difference of a
few percent may be luck.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.host.cpu_features import runnable_levels
from agents.host.probe import probe
from agents.records import Workload
from benchmarks.harness import Figures, benchmark, option, say, working_folder
from benchmarks.search_sides import DAY_ZERO, STOCK, XGB, SearchBench
from fleet.config.settings import load_fleet

#: The sides by their keys in the JSON, and as the table calls them.
SIDES = {
    "stock": (STOCK, "tune_tir as shipped"),
    "plugged": (XGB, "tune_tir, our builder, runner"),
    "fleet_tune": (DAY_ZERO, "fleet tune"),
}
_NETWORKS = ("mobilenet-v2", "bert-base")
_OPERATORS, _MOST_FLOPS = 2, 3e7


@dataclass(frozen=True)
class Options:
    """How much each side may try, and on which device."""

    trials: int = option(32, "of each search", least=1)
    device: str | None = option(None, "device of this host; its most capable profile by default")
    keep: Path | None = option(None, "folder of finished searches; an earlier run continues there")


def measure(options: Options) -> Figures:
    """Search both operators with all sides, and time the best programs again."""
    host = probe()
    device = options.device or runnable_levels(host.arch, host.isa_flags)[-1].name
    with working_folder(options.keep) as folder:
        settings = load_fleet(None, {"store.path": str(folder / "store")}).config
        bench = SearchBench(settings, device, folder)
        workloads = bench.workloads(_NETWORKS, _OPERATORS, _MOST_FLOPS)
        operators = [_compared(bench, workload, options.trials) for workload in workloads]
    return {
        "device": device,
        "trials": options.trials,
        "operators": operators,
    }


def _compared(bench: SearchBench, workload: Workload, trials: int) -> Figures:
    """One operator: seconds of each search, and the latency that its program has in the end."""
    runs: dict[str, Figures] = {}
    for name, (side, label) in SIDES.items():
        say(f"{workload.name}: {label}")
        runs[name] = bench.run(side, workload, trials, 0)
    best = {name: list(run["best"].values())[-1] for name, run in runs.items() if run["best"]}
    timed = bench.timed(f"compare-{trials}", workload, best)
    latencies = {name: min(timed.get(name, ()), default=None) for name in runs}
    return {
        "operator": workload.name,
        "network": workload.networks[0][0],
        "flops": workload.flops,
        "sides": {
            name: {
                "search_secs": run["secs"],
                "trials": len(run["trials"]),
                "latency_us": (secs := latencies[name]) and 1e6 * secs,
                "speed_against_stock": secs and latencies["stock"] and latencies["stock"] / secs,
            }
            for name, run in runs.items()
        },
    }


def table(result: Figures) -> Iterator[str]:
    """The figures as one table of at most 80 columns."""
    yield f"{result['trials']} trials per search on {result['device']}, {result['secs'] / 60:.0f} min in all"
    yield f"{'operator':<25}{'searched by':<31}{'search':>7}{'program':>10}{'speed':>7}"
    for operator in result["operators"]:
        for name, side in operator["sides"].items():
            latency, speed = side["latency_us"], side["speed_against_stock"]
            yield (
                f"{operator['operator']:<25}{SIDES[name][1]:<31}{side['search_secs']:>5.0f} s"
                f"{'-' if latency is None else f'{latency:.0f} µs':>10}"
                f"{'-' if speed is None else f'{speed:.2f}x':>7}"
            )


main = benchmark(
    "compare",
    __doc__,
    Options,
    measure,
    fails=lambda result: any(
        side["latency_us"] is None for one in result["operators"] for side in one["sides"].values()
    ),
    table=table,
)

if __name__ == "__main__":
    main()
