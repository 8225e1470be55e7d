"""Which records of a store become labels, and how the report counts them."""

from __future__ import annotations

from agents.records import Record
from fleet.report.demo_report import summarise_device
from tests.dataset_fixtures import changed, cpu_device, gmm_candidates, gmm_workload, record_of
from tests.scenario_fixtures import check_facts
from tests.table_fixtures import cells

WORKLOAD = gmm_workload()
CANDIDATES = gmm_candidates(WORKLOAD, 7)


#: The place of a candidate that one device measured, and what is not usual of the record: each has its story.
MEASURED = """
0 |
0 | attempt: 1, origin: remeasure, run_secs: [1.1e-3]
1 | quality: '{"suspect":true}'
2 | quality: '{"suspect":true}'
2 | attempt: 1, origin: remeasure, run_secs: [2.5e-3]
3 | outcome: rejected, error: too noisy
4 | outcome: wrong_output, run_secs: [], error: off by 2
5 | outcome: lost, run_secs: [], error: gone
6 | outcome: lost, run_secs: []
6 | attempt: 1
"""


def made() -> list[Record]:
    """Records of one device, each candidate a millisecond slower than the one before."""
    return [
        changed(record_of(CANDIDATES[int(place)], "box", (1 + int(place)) * 1e-3), changes)
        for place, changes in cells(MEASURED)
    ]


def test_the_report_counts_every_candidate_once_with_its_reason() -> None:
    spec, _ = cpu_device("box")
    summary = summarise_device(spec, made(), {WORKLOAD.workload_id: WORKLOAD.name})
    # Of 1, 2, 2.5 and 7 ms.
    facts = """
        records = 7
        ok = 4
        failed = 3
        failures.rejected.count = 1
        failures.wrong_output.count = 1
        failures.lost.count = 1
        workloads.0.best_latency_seconds = 0.001
        slowest_over_fastest_median about 7
        remeasured_pairs = 2
        remeasured_disturbed = 1
    """
    check_facts(summary, facts)
