"""Divisions of onboarding cases: nobody sees what is held out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from agents.records import Workload, WorkloadId
from benchmarks.onboarding_cases import CasePlan, Regime, make_cases, visible_dataset
from tests.model_fixtures import make_dataset
from tests.record_fixtures import make_workload

DATASET = make_dataset(workloads=9, candidates=12)
DEVICES = tuple(map(str, DATASET.device_ids))


def workloads_of(*networks: str) -> dict[WorkloadId, Workload]:
    """The workloads, in turn of each network; of none without a name."""
    return {
        one: msgspec.structs.replace(
            make_workload(place),
            workload_id=one,
            networks=((networks[place % len(networks)], 1),) if networks else (),
        )
        for place, one in enumerate(DATASET.workload_ids)
    }


def case_plan(*regimes: Regime, **changes: Any) -> CasePlan:
    """Every device as a target, one seed."""
    return CasePlan(**{"regimes": regimes, "targets": DEVICES, "seeds": (0,)} | changes)


@pytest.mark.parametrize("regime", list(Regime))
def test_a_case_keeps_apart_what_must_be_and_shows_nothing_of_the_target(regime: Regime) -> None:
    cases = make_cases(DATASET, workloads_of(), case_plan(regime, seeds=(0, 1)))
    assert {case.target for case in cases} == set(DEVICES)
    for case in cases:
        assert not set(case.pool) & set(case.test)
        shared = np.intersect1d(DATASET.group[case.test], DATASET.group[case.pool])
        learnt = np.intersect1d(DATASET.group[case.test], DATASET.group[case.source_rows])
        assert bool(len(shared)) is bool(len(learnt)) is (regime is not Regime.BOTH_NEW)
        assert bool(set(case.test) & set(case.source_rows)) is (regime is Regime.DEVICE_NEW)
        assert np.isfinite(DATASET.latency_secs[case.test, DATASET.column(case.target)]).all()
        assert np.bincount(DATASET.group[case.test])[DATASET.group[case.test]].min() >= 2
        view, target = visible_dataset(DATASET, case), DATASET.column(case.target)
        assert not np.isfinite(view.latency_secs[:, target]).any()
        assert not view.failed[:, target].any()
        assert np.isfinite(view.latency_secs[case.test]).any() == (regime is Regime.DEVICE_NEW)


BOTH_NEW = case_plan(Regime.BOTH_NEW, targets=DEVICES[:1])


def test_networks_are_held_out_where_there_are_some() -> None:
    workloads = workloads_of("neta", "netb")
    cases = make_cases(DATASET, workloads, BOTH_NEW)
    assert {case.split for case in cases} == {"neta", "netb"}
    for case in cases:
        names = {workloads[DATASET.workload_ids[group]].networks[0][0] for group in DATASET.group[case.test]}
        assert names == {case.split}
    [one] = make_cases(DATASET, workloads, replace(BOTH_NEW, held=("netb",)))
    assert one.split == "netb"
