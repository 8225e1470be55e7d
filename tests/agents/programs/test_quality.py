"""Verdicts on repeats and on the device: the statistics are checked by simulation, with fixed seeds."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.errors import AgentError
from agents.programs.quality import (
    Drift,
    DriftMonitor,
    is_rejected,
    relative_interval,
    surely_slower,
    wants_repeats,
)
from agents.records import Protocol

PROTOCOL = Protocol(early_stop_ratio=3.0)
NAMES = ("compute", "memory", "latency")
_SECS = st.floats(1e-7, 1e3)
_REPEATS = st.lists(_SECS, min_size=2, max_size=12)


# ---- the interval of a latency -------------------------------------------------------------------------


@pytest.mark.parametrize(("repeats", "seed"), [(2, 1), (3, 2), (5, 3), (10, 4)])
def test_nine_of_ten_intervals_hold_the_true_latency_under_the_model(repeats: int, seed: int) -> None:
    truth, noise, trials = 1e-3, 3e-5, 8000
    draws = truth + np.random.default_rng(seed).exponential(noise, (trials, repeats))
    held = sum(min(row) * (1 - relative_interval(row)) <= truth for row in draws.tolist())
    # The standard error of the share is 0.0034.
    assert held / trials == pytest.approx(0.9, abs=0.014)


def test_stopping_when_the_interval_looks_narrow_costs_little_coverage() -> None:
    held, trials = 0, 4000
    # Of noises from 0.01 to 0.2, about the one at which it costs most.
    for row in (1.0 + np.random.default_rng(6).exponential(0.1, (trials, 10))).tolist():
        made = 1
        while wants_repeats(row[:made], PROTOCOL):
            made += 1
        held += min(row[:made]) * (1 - relative_interval(row[:made])) <= 1
    assert 0.82 < held / trials < 0.9


@given(_REPEATS, st.floats(1e-3, 1e3), st.data())
def test_the_interval_has_no_order_and_no_unit_and_grows_with_noise(
    run_secs: list[float], factor: float, data: st.DataObject
) -> None:
    width = relative_interval(run_secs)
    assert relative_interval(data.draw(st.permutations(run_secs))) == width >= 0
    scaled = relative_interval([secs * factor for secs in run_secs])
    assert scaled == pytest.approx(width, rel=1e-6, abs=1e-9)
    place = data.draw(st.integers(0, len(run_secs) - 1))
    slower = [secs * 1.5 if at == place else secs for at, secs in enumerate(run_secs)]
    if min(slower) == min(run_secs):
        assert relative_interval(slower) >= width * (1 - 1e-9)


@pytest.mark.parametrize(
    "run_secs",
    ["[]", "[1]", "[0, 0]", "[0, 1]", "[-1, 1]", "[NaN, 1, 1]", "[1, Infinity]"],
)
def test_nothing_can_be_said_of_too_few_or_senseless_repeats(run_secs: str) -> None:
    assert relative_interval(json.loads(run_secs)) == math.inf


# ---- repeats, rejection, early stop --------------------------------------------------------------------


def test_repeats_end_when_they_agree_or_the_budget_does() -> None:
    calm, wild = [1.0, 1.001, 1.001, 1.002, 1.3], [1.0, 1.2, 1.4, 1.6, 1.8]
    assert wants_repeats([], PROTOCOL)
    assert wants_repeats(calm[:4], PROTOCOL)
    assert not wants_repeats(calm, PROTOCOL)
    assert wants_repeats(wild, PROTOCOL)
    assert wants_repeats([*wild, 2.0, 2.0, 2.0, 2.0], PROTOCOL)
    assert not wants_repeats([*wild, 2.0, 2.0, 2.0, 2.0, 2.0], PROTOCOL)
    for never_extra in ({"extra_repeats": 0}, {"target_interval": 0.0}):
        assert not wants_repeats(wild, replace(PROTOCOL, **never_extra))


def test_only_repeats_that_disagree_wildly_are_rejected() -> None:
    wild = [1.0, 3.0, 4.0, 5.0, 6.0]
    assert is_rejected(wild, PROTOCOL)
    assert not is_rejected([1.0, 1.05, 1.1, 9.0, 9.0], PROTOCOL)
    assert not is_rejected(wild[:1], PROTOCOL)
    assert not is_rejected([], PROTOCOL)
    assert not is_rejected(wild, replace(PROTOCOL, reject_interval=0.0))


#: Seconds of the warm-up, of the best known, the ratio of the early stop; then whether it is stopped.
SLOWER = """
    4e-3 3.9e-3   / 1e-3  / 3 / stopped
    4e-3 3.2e-3   / 1e-3  / 3 / let go
    9e-3 1e-3     / 1e-3  / 3 / let go
    # A cold first run alone must be slower still.
    50e-3         / 10e-3 / 3 / let go
    70e-3         / 10e-3 / 3 / stopped
    # Seen on a real host: 60 to 180 us for the first call, 1 to 7 us for the next, of programs of 1 us.
    180e-6 8e-6   / 1e-6  / 3 / let go
    180e-6        / 1e-6  / 3 / let go
    400e-6 100e-6 / 1e-6  / 3 / stopped
    # Without evidence, a best, or the rule.
                  / 1e-3  / 3 / let go
    9 9           / 0     / 3 / let go
    9 9           / 1e-3  / 0 / let go
"""


@pytest.mark.parametrize("line", [line for line in SLOWER.strip("\n").splitlines() if "/" in line])
def test_a_program_several_times_slower_is_stopped(line: str) -> None:
    warmup, best, ratio, verdict = line.split("/")
    protocol = replace(PROTOCOL, early_stop_ratio=float(ratio))
    is_stopped = surely_slower([*map(float, warmup.split())], float(best), protocol)
    assert is_stopped is (verdict.strip() == "stopped")


# ---- drift of the device -------------------------------------------------------------------------------


def readings(logs: Any) -> list[dict[str, float]]:
    """Observations of the three canaries from an (observations, 3) array of log seconds over 1 ms."""
    return [dict(zip(NAMES, row, strict=True)) for row in (1e-3 * np.exp(logs)).tolist()]


def noise(seed: int, count: int, scatter: float = 0.01) -> Any:
    """Log seconds over 1 ms of a device that nothing disturbs: (count, 3)."""
    return np.random.default_rng(seed).normal(0, scatter, (count, 3))


def observed(monitor: DriftMonitor, logs: Any) -> list[Drift]:
    return [monitor.observe(observation) for observation in readings(logs)]


def taught(seed: int = 0, scatter: float = 0.01, count: int = 200) -> DriftMonitor:
    """A monitor that has seen a steady device for a while."""
    monitor = DriftMonitor()
    observed(monitor, noise(seed, count, scatter))
    return monitor


def steady(**factors: float) -> dict[str, float]:
    """One observation on the baseline, but for the factors given."""
    return {name: 1e-3 * factors.get(name, 1.0) for name in NAMES}


def alarms(drifts: list[Drift]) -> int:
    """Times that suspicion begins."""
    return sum(now.suspect and not before.suspect for before, now in pairwise(drifts))


def test_a_week_of_gaussian_noise_at_the_learnt_spread_raises_at_most_one_alarm() -> None:
    assert alarms(observed(DriftMonitor(), noise(7, 20_000))) <= 1


@pytest.mark.parametrize("change", [1.03, 1 / 1.03])
def test_a_lasting_change_of_three_percent_is_met_within_five_minutes(change: float) -> None:
    needed = []
    for seed in range(20):
        logs = noise(1000 + seed, 50)
        logs[:, 1] += math.log(change)
        drifts = observed(taught(seed, count=150), logs)
        needed.append(next((at for at, one in enumerate(drifts, 1) if "memory" in one.which), 999))
    # Canaries every 6 s: 50 observations are five minutes.
    assert max(needed) <= 50
    assert np.median(needed) <= 15


def test_a_spike_marks_its_window_only() -> None:
    for height in (1.3, 2.0, 20.0):
        monitor = taught()
        assert not monitor.observe(steady()).suspect
        spike = monitor.observe(steady(memory=height))
        assert spike.suspect
        assert spike.which == ("memory",)
        assert spike.ratios["memory"] == pytest.approx(height, rel=0.01)
        assert spike.ratios["compute"] == pytest.approx(1, abs=0.01)
        assert not monitor.observe(steady()).suspect


@pytest.mark.parametrize(("change", "latest"), [({"latency": 1.4}, 0), ({"compute": 1.04}, 17)])
def test_a_canary_stays_suspect_until_its_readings_are_back(change: dict[str, float], latest: int) -> None:
    monitor = taught()
    suspect = [monitor.observe(steady(**change)).suspect for _ in range(18)]
    assert suspect.index(True) <= latest
    assert all(suspect[suspect.index(True) :])
    assert not monitor.observe(steady()).suspect


@pytest.mark.parametrize("change", [0.8, 1.04, 1.5])
def test_a_level_that_lasts_becomes_the_baseline(change: float) -> None:
    monitor, logs = taught(), noise(8, 200)
    logs[:, 0] += math.log(change)
    drifts = observed(monitor, logs)
    adopted = [at for at, drift in enumerate(drifts) if drift.adopted]
    assert len(adopted) == 1
    assert adopted[0] in range(10, 80)
    assert drifts[adopted[0]].adopted == ("compute",)
    assert all(drift.suspect for drift in drifts[adopted[0] - 8 : adopted[0]])
    assert not any(drift.suspect for drift in drifts[adopted[0] :])
    # What was normal before is now a change.
    assert monitor.observe(steady(compute=change)).ratios["compute"] == pytest.approx(1, abs=0.01)
    assert any(monitor.observe(steady()).suspect for _ in range(10))


def test_a_level_that_moves_is_not_adopted() -> None:
    monitor = taught()
    slower = [monitor.observe(steady(compute=1.05 + 0.02 * step)) for step in range(100)]
    assert not any(drift.adopted for drift in slower)
    assert slower[-1].suspect


def test_a_device_that_became_noisier_is_learnt_anew() -> None:
    drifts = observed(taught(scatter=0.002), noise(9, 600, 0.04))
    assert sum(drift.suspect for drift in drifts[:60]) > 20
    assert sum(drift.suspect for drift in drifts[-200:]) < 10


def test_while_it_learns_only_absurd_readings_are_suspect() -> None:
    monitor = DriftMonitor()
    assert not any(monitor.observe(steady(memory=factor)).suspect for factor in (1.0, 1.1, 0.9, 1.2))
    absurd = monitor.observe(steady(memory=1.8))
    assert absurd.which == ("memory",)
    assert not monitor.observe(steady()).suspect


def test_a_first_reading_that_was_disturbed_does_not_become_the_baseline() -> None:
    monitor = DriftMonitor()
    drifts = [monitor.observe(steady(compute=3.0)), *(monitor.observe(steady()) for _ in range(50))]
    assert drifts[-1].ratios["compute"] == 1
    assert not any(drift.suspect for drift in drifts)


def test_canaries_that_could_not_be_timed_say_nothing() -> None:
    monitor = taught()
    for value in (0.0, -1.0, math.nan, math.inf, 5e-324, 1e300):
        drift = monitor.observe({"compute": value, "memory": 1e-3})
        assert not drift.suspect
        assert list(drift.ratios) == ["memory"]
    assert monitor.observe({}) == Drift(suspect=False, ratios={}, which=())


_READINGS = st.dictionaries(st.sampled_from(NAMES), st.floats(), max_size=3)
_NEAR = st.fixed_dictionaries({name: st.floats(0.5e-3, 2e-3) for name in NAMES})


@given(st.lists(_NEAR, max_size=60), st.lists(_READINGS | _NEAR, max_size=50))
def test_a_restarted_monitor_goes_on_where_it_was(
    before: list[dict[str, float]], after: list[dict[str, float]]
) -> None:
    monitor = DriftMonitor()
    for observation in before:
        monitor.observe(observation)
    again = DriftMonitor.from_json(json.loads(json.dumps(monitor.to_json())))
    assert again.to_json() == monitor.to_json()
    assert [again.observe(each) for each in after] == [monitor.observe(each) for each in after]


#: A sound state of one canary, damaged in one place by each of these.
SOUND = '{"version": 1, "canaries": {"c": {"learnt": [0.0], "recent": [], "high": 0.0, "low": 0.0}}}'
DAMAGES = """
    "version": 1  => "version": 2
    "c": {        => "": {
    {"c": {       => {"c": null, "d": {
    [0.0]         => "many"
    [0.0]         => [NaN]
    [0.0]         => [true]
    [0.0]         => [1e9]
    "high": 0.0   => "high": NaN
    "high": 0.0   => "high": 1e9
    "low": 0.0    => "low": null
    "recent": []  => "recent": [[0.0]]
    "recent": []  => "recent": [["x", true]]
    "recent": []  => "recent": {}
"""


@pytest.mark.parametrize(
    "text",
    [
        *("null", "[]", '"text"', "{}", '{"version": 1}', '{"version": 1, "canaries": []}'),
        *(SOUND.replace(*map(str.strip, line.split("=>"))) for line in DAMAGES.strip().splitlines()),
        SOUND.replace('"c"', f'"{"x" * 65}"'),
        SOUND.replace("[0.0]", str([0.0] * 1000)),
        SOUND.replace('"recent": []', f'"recent": [{",".join(["[0.0, false]"] * 31)}]'),
        json.dumps({"version": 1, "canaries": {str(number): {} for number in range(17)}}),
    ],
)
def test_a_damaged_state_is_one_clear_error(text: str) -> None:
    DriftMonitor.from_json(json.loads(SOUND))
    with pytest.raises(AgentError, match=r"drift monitor is damaged: .*; delete it, and the baseline"):
        DriftMonitor.from_json(json.loads(text))
