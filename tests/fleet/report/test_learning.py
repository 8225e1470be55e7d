"""Which records of a store become labels, and how the report counts them."""

from __future__ import annotations

import msgspec
import pytest

from agents.records import Outcome, Record
from fleet.report.demo_report import summarise_device
from tests.dataset_fixtures import again, cpu_device, gmm_candidates, gmm_workload, record_of

WORKLOAD = gmm_workload()
CANDIDATES = gmm_candidates(WORKLOAD, 7)
SUSPECT = '{"suspect":true}'


def made() -> list[Record]:
    """Records of one device: each candidate another story."""
    steady, drifted, mended, noisy, wrong, lost, retried = (
        record_of(one, "box", (1 + place) * 1e-3) for place, one in enumerate(CANDIDATES)
    )
    return [
        steady,
        again(steady, run_secs=(1.1e-3,)),
        msgspec.structs.replace(drifted, quality=SUSPECT),
        msgspec.structs.replace(mended, quality=SUSPECT),
        again(mended, run_secs=(2.5e-3,)),
        msgspec.structs.replace(noisy, outcome=Outcome.REJECTED, error="too noisy"),
        msgspec.structs.replace(wrong, outcome=Outcome.WRONG_OUTPUT, run_secs=(), error="off by 2"),
        msgspec.structs.replace(lost, outcome=Outcome.LOST, run_secs=(), error="gone"),
        msgspec.structs.replace(retried, outcome=Outcome.LOST, run_secs=()),
        again(retried, origin="random"),
    ]


def test_the_report_counts_every_candidate_once_with_its_reason() -> None:
    spec, _ = cpu_device("box")
    summary = summarise_device(spec, made(), {WORKLOAD.workload_id: WORKLOAD.name})
    assert (summary["records"], summary["ok"], summary["failed"]) == (len(CANDIDATES), 4, 3)
    assert {outcome: group["count"] for outcome, group in summary["failures"].items()} == {
        "rejected": 1,
        "wrong_output": 1,
        "lost": 1,
    }
    [entry] = summary["workloads"]
    assert (entry["candidates"], entry["best_latency_seconds"]) == (4, 1e-3)
    # Of 1, 2, 2.5 and 7 ms.
    assert entry["slowest_over_fastest"] == summary["slowest_over_fastest_median"] == pytest.approx(7)
    assert summary["slowdown_quantiles"][2] == pytest.approx(2.25)
    assert (summary["remeasured_pairs"], summary["remeasured_disturbed"]) == (2, 1)
