"""Trees that learn how a label changes from one device to another."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.onboarding_label_change import Siblings, estimate_by_changes
from transfer.data.latency_parts import part_latencies

pytest.importorskip("xgboost")

GROUPS, EACH = 12, 16
GROUP = np.repeat(np.arange(GROUPS), EACH).astype(np.int32)
RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(len(GROUP), 3))
#: Log seconds: the harder a device likes feature 1, the more of `hardware` it has.
SHARED = FEATURES[:, 0] + 3 * RANDOM.normal(size=GROUPS)[GROUP]
HARDWARE = np.array([[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]])
LOG_SECS = SHARED[:, None] + HARDWARE[:, 0] * np.sign(FEATURES[:, 1])[:, None]
SOURCES = np.exp(LOG_SECS[:, :2])
TRUTH = LOG_SECS[:, 2]
NOTHING = np.full(len(GROUP), np.nan)


def told(
    secs: NDArray[np.float64] = SOURCES, target: NDArray[np.float64] = NOTHING
) -> NDArray[np.float64] | None:
    siblings = Siblings(
        agreed=part_latencies(secs, GROUP),
        measured=np.isfinite(secs),
        group=GROUP,
        features=FEATURES,
        hardware=HARDWARE,
    )
    return estimate_by_changes(siblings, target, 0)


def error(value: NDArray[np.float64] | None) -> float:
    """Mean distance from the truth inside of workloads."""
    assert value is not None
    apart = value - TRUTH
    return float(np.abs(apart - (np.bincount(GROUP, apart) / EACH)[GROUP]).mean())


def test_what_changes_between_source_devices_goes_on_to_the_target() -> None:
    # Of two devices the mean lacks one and a half steps of the change; trees carry some of it on.
    assert error(told()) < 0.8 * error(part_latencies(SOURCES, GROUP).shared)


def test_measurements_of_the_target_say_more() -> None:
    few = np.where(np.arange(len(GROUP)) % EACH < 6, np.exp(TRUTH), np.nan)
    assert error(told(target=few)) < 0.7 * error(told())


def test_one_measurement_of_a_workload_says_nothing() -> None:
    alone = np.where(np.arange(len(GROUP)) % EACH == 0, 100 * np.exp(TRUTH), np.nan)
    np.testing.assert_array_equal(told(target=alone), told())


def test_rows_that_nobody_measured_stay_unknown() -> None:
    holes = SOURCES.copy()
    holes[:5] = np.nan
    holes[5:9, 0] = np.nan
    found = told(holes)
    assert found is not None
    assert np.isnan(found[:5]).all()
    assert np.isfinite(found[5:]).all()


def test_one_source_device_alone_has_no_pair() -> None:
    secs = SOURCES.copy()
    secs[:, 1] = np.nan
    assert told(secs) is None
