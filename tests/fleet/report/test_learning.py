"""Which records of a store become labels, and how the report counts them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from agents.records import Outcome, Record
from fleet.models.versions import load_snapshot
from fleet.report.demo_report import median_change, remeasured, summarise_device
from fleet.store.store import Store
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


def test_labels_come_from_settled_records(tmp_path: Path) -> None:
    spec, descriptor = cpu_device("box")
    with Store.open(tmp_path / "store") as store:
        store.put_device(spec, descriptor)
        store.put_workloads([WORKLOAD])
        store.append(made())
        store.flush()
        dataset = load_snapshot(store).dataset
    found = dict(zip(dataset.candidate_ids, dataset.latency_secs[:, 0].tolist(), strict=True))
    ids = [one.candidate_id for one in CANDIDATES]
    assert set(found) == {ids[0], ids[1], ids[2], ids[4], ids[6]}
    assert (found[ids[0]], found[ids[2]], found[ids[6]]) == (1e-3, 2.5e-3, 7e-3)
    assert math.isnan(found[ids[4]])
    assert dataset.failed[dataset.candidate_ids.index(ids[4]), 0]


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


def test_repeatability_compares_steady_measurements_where_there_are_some() -> None:
    assert median_change(remeasured(made())) == (1.1e-3 / 1e-3) - 1
    assert median_change(remeasured([record for record in made() if record.origin != "remeasure"])) is None
    stopped = record_of(CANDIDATES[0], "box", 1e-3)
    stopped = msgspec.structs.replace(stopped, quality='{"stopped_early":true}')
    assert median_change(remeasured([stopped, again(stopped, run_secs=(9e-3,))])) is None
    # Of a device that is never steady it is told all the same.
    drifted = msgspec.structs.replace(record_of(CANDIDATES[0], "box", 1e-3), quality=SUSPECT)
    assert median_change(remeasured([drifted, again(drifted, run_secs=(1.5e-3,))])) == 0.5
