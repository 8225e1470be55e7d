"""What the agents are worth: `python -m benchmarks.collection --json`.

Every comparison is made in this one run on this host: TVM's `LocalBuilder` and `LocalRunner` against a
`DeviceWorker` on the same candidates and evaluator settings; the same candidates measured three times, alone
and beside a load of its own (a compiler on the other cores, two light programs on any); early stop against
none; a hung kernel; a soak. Both sides of each comparison are printed; `--parts` chooses some. Needs two
cores and some fifteen minutes; disturb the host as little as possible meanwhile. Figures of how numbers
repeat are those beside the load, of steady records, unless `quiet` is in their name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.collection_parts import Bench
from benchmarks.harness import Figures, benchmark, headlines, option, working_folder

#: Candidates that TVM measures too: its default for one round.
_BASELINE = 64
_PARTS = ("throughput", "repeatability", "early_stop", "hung_kernel", "soak")


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured."""

    workloads: int = option(24, "workloads to measure", least=1)
    each: int = option(24, "candidates of each workload", least=1)
    soak: int = option(1000, "candidates of the soak", least=1)
    parts: tuple[str, ...] = option(_PARTS, "what is measured", choices=_PARTS)


def measure(options: Options) -> Figures:
    """Run all parts."""
    with working_folder() as folder:
        bench = Bench(folder, options.workloads)
        candidates = bench.candidates(options.each)
        both = candidates[:_BASELINE]
        few = bench.part(candidates, _FEW_EACH)
        many = bench.part(candidates, options.each, workloads=_DEEP_WORKLOADS)
        result: Figures = {
            "cores": len(bench.cores),
            "workloads": [workload.name for workload in bench.workloads],
        }
        parts: dict[str, Callable[[], Figures]] = {
            "throughput": lambda: bench.throughput(both),
            "repeatability": lambda: bench.repeatability(few),
            "early_stop": lambda: bench.early_stop(many),
            "hung_kernel": bench.hung_kernel,
            "soak": lambda: bench.soak(few, options.soak),
        }
        for name in options.parts:
            result[name] = parts[name]()
    return result | headlines(result, _HEADLINES)


#: Winners are judged on many workloads; early stop where a workload has many candidates, as in a real run.
_FEW_EACH, _DEEP_WORKLOADS = 10, 10
#: The figures that the project is judged by.
_HEADLINES = {
    "ratio_records_per_s": "throughput.ratio_records_per_s",
    "ratio_records_per_s_small_round": "throughput.ratio_records_per_s_small_round",
    "ratio_to_timing_floor": "throughput.ratio_to_timing_floor",
    "remeasure_median_change": "repeatability.disturbed.remeasure_median_change_steady",
    "remeasure_p90_change": "repeatability.disturbed.remeasure_p90_change_steady",
    "steady_share": "repeatability.disturbed.steady_share",
    "wrongly_steady": "repeatability.disturbed.wrongly_steady",
    "winner_flip": "repeatability.disturbed.winner_flip",
    "quiet_remeasure_median_change": "repeatability.quiet.remeasure_median_change",
    "quiet_remeasure_p90_change": "repeatability.quiet.remeasure_p90_change",
    "quiet_winner_flip": "repeatability.quiet.winner_flip",
    "quiet_timing_secs_per_candidate": "repeatability.quiet.timing_secs_per_candidate",
    "early_stop_time_saved": "early_stop.early_stop_time_saved",
    "early_stop_regret": "early_stop.early_stop_regret",
    "hung_kernel_secs_after_timeout": "hung_kernel.hung_kernel_secs_after_timeout",
}


main = benchmark("collection", __doc__, Options, measure)

if __name__ == "__main__":
    main()
