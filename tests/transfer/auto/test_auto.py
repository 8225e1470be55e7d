"""The strategy that chooses one: by what the known devices tell, checked on samples of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from agents.records import DeviceId
from tests.model_fixtures import CONFIG, make_dataset, with_latency
from tests.strategy_fixtures import LikeNearest, backwards
from transfer.adapt.base import Adapted, without_device
from transfer.adapt.multitask import MultiTask, Scratch
from transfer.adapt.nearest import Nearest
from transfer.auto.leave_one_out import LeaveOneOutScores, drop_older, leave_one_out, made_ahead
from transfer.auto.strategy import Auto, check_agreement, checking_view, judge, split_few_shot
from transfer.errors import TransferError
from transfer.evaluate.onboarding_cases import Regime
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.training import train

TARGET = "cpu-new"
DATASET = make_dataset(workloads=9, candidates=12)
ROWS = np.arange(len(DATASET))
SHORT = replace(CONFIG, epochs=4)
LATENCY = DATASET.latency_secs[:, DATASET.column(TARGET)]


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    view = without_device(DATASET, TARGET)
    return train(view, ROWS, config=replace(CONFIG, epochs=12), seed=0, devices=("cpu.a", "cpu.b")).model


def run(auto: Auto, source: FleetTLP | None, few_shot: np.ndarray) -> Adapted:
    return auto.adapt(source, DATASET, TARGET, few_shot, source_rows=ROWS, config=SHORT, seed=0)


def measured(count: int) -> np.ndarray:
    """Rows with a latency on the target, workload after workload."""
    return np.flatnonzero(np.isfinite(LATENCY))[:count]


def test_a_harmful_choice_is_found_out_and_replaced(source: FleetTLP) -> None:
    auto = Auto(strategies=(backwards(),))
    adapted = run(auto, source, measured(80))
    check = adapted.notes["check"]
    assert check["chosen"] == "backwards"
    assert adapted.notes["strategy"] == check["taken"] in {"nearest", "scratch"}
    assert "does not beat" in check["says"]
    assert check["agreement"]["backwards"] < check["agreement"][check["taken"]]
    unguarded = run(replace(auto, guard=False), source, measured(80))
    assert unguarded.notes["strategy"] == "backwards"
    assert "check" not in unguarded.notes


def test_the_known_devices_tell_which_strategy(source: FleetTLP, tmp_path: Path) -> None:
    auto = Auto(strategies=(backwards(), Nearest(), Scratch()), cache=tmp_path, guard=False)
    adapted = run(auto, source, measured(60))
    assert adapted.notes["strategy"] != "backwards"
    assert adapted.notes["standings"]["backwards"] < adapted.notes["standings"]["nearest"]
    device_scores = auto.prepare(DATASET, TARGET, source_rows=ROWS, config=SHORT)
    assert device_scores is not None
    expected = device_scores.expected("nearest", 0)
    assert expected is not None
    assert expected[0].low <= device_scores.at(0)["nearest"] <= expected[0].high


def test_it_takes_what_can_work_with_what_there_is(source: FleetTLP) -> None:
    adapted = run(Auto(strategies=(Scratch(), MultiTask(), Nearest())), source, measured(0))
    assert adapted.notes["strategy"] == "nearest"
    assert "too few" in adapted.notes["check"]
    assert TARGET in adapted.model.device_ids
    without_source = run(Auto(strategies=(MultiTask(), Nearest(), Scratch())), None, measured(40))
    assert without_source.notes["strategy"] == "scratch"
    with pytest.raises(TransferError, match="measure at least two candidates of one workload"):
        run(Auto(strategies=(MultiTask(), Scratch())), None, measured(0))


def test_unseen_latencies_of_the_target_change_nothing(source: FleetTLP) -> None:
    few_shot = measured(50)
    rest = np.setdiff1d(ROWS, few_shot)
    other = with_latency(DATASET, rest, TARGET, LATENCY[rest] * np.linspace(0.1, 10, len(rest)))
    auto = Auto(strategies=(MultiTask(), Nearest(), Scratch()))
    one = run(auto, source, few_shot)
    two = auto.adapt(source, other, TARGET, few_shot, source_rows=ROWS, config=SHORT, seed=0)
    assert one.notes == two.notes
    np.testing.assert_array_equal(one.score(DATASET, ROWS), two.score(other, ROWS))


def test_standings_are_made_once_for_given_records(tmp_path: Path) -> None:
    sources = without_device(DATASET, TARGET)
    strategies = (Nearest(), Scratch())
    made = leave_one_out(sources, strategies, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert made is not None
    [kept] = tmp_path.iterdir()
    forged = json.loads(kept.read_text())
    forged["top1"]["nearest"] = [0.123] * 3
    kept.write_text(json.dumps(forged))
    again = leave_one_out(sources, strategies, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert again is not None
    assert again.top1["nearest"] == (0.123,) * 3
    # Other records, strategies or a damaged file: made again.
    fewer = replace(sources, latency_secs=sources.latency_secs * 2)
    other = leave_one_out(fewer, strategies, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert other is not None
    assert other.key != made.key
    # A device file that was corrected moves the trees' and the mixtures' opinions.
    described = replace(sources, hardware=sources.hardware * 2)
    corrected = leave_one_out(described, strategies, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert corrected is not None
    assert corrected.key not in {made.key, other.key}
    kept.write_text("{")
    mended = leave_one_out(sources, strategies, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert mended == made


def test_standings_made_ahead_are_good_until_there_is_much_more_to_go_by(tmp_path: Path) -> None:
    sources, strategies = without_device(DATASET, TARGET), (Nearest(), Scratch())
    how = (strategies, Regime.DEVICE_NEW, SHORT)
    made = leave_one_out(sources, *how, tmp_path)
    assert made is not None
    assert (made.known, made.measured) == (("cpu.a", "cpu.b"), int(np.isfinite(sources.latency_secs).sum()))
    other = replace(sources, latency_secs=sources.latency_secs * 2)
    assert made_ahead(other, *how, tmp_path) == made
    assert made_ahead(other, (Nearest(),), Regime.DEVICE_NEW, SHORT, tmp_path) is None
    # Of another device, and thus perhaps of the one that is new to whoever asks.
    alone = replace(DATASET.of_devices(["cpu.a", TARGET]), latency_secs=sources.latency_secs[:, :2])
    assert made_ahead(alone, *how, tmp_path) is None
    # A third of the records that there are now.
    few = replace(made, measured=made.measured // 3, key="few")
    [kept] = tmp_path.iterdir()
    kept.write_text(json.dumps(asdict(few)))
    assert made_ahead(other, *how, tmp_path) is None
    assert made_ahead(other, *how, tmp_path, growth=4.0) == few
    latest = leave_one_out(sources, *how, tmp_path)
    assert latest == made
    drop_older(made, tmp_path)
    assert made_ahead(other, *how, tmp_path, growth=4.0) == made
    assert len(list(tmp_path.iterdir())) == 1


def test_it_chooses_among_more_where_their_standings_were_made_ahead(
    source: FleetTLP, tmp_path: Path
) -> None:
    auto = Auto(strategies=(backwards(),), ready=(backwards(), Nearest()), cache=tmp_path, guard=False)
    assert run(auto, source, measured(60)).notes["strategy"] == "backwards"
    leave_one_out(without_device(DATASET, TARGET), auto.ready, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert run(auto, source, measured(60)).notes["strategy"] == "nearest"


def test_where_it_may_not_wait_it_makes_no_standings_but_takes_ready_ones(
    source: FleetTLP, tmp_path: Path
) -> None:
    several = (Nearest(), backwards())
    auto = Auto(strategies=several, ready=several, cache=tmp_path, guard=False, waits=False)
    notes = run(auto, source, measured(60)).notes
    assert (notes["strategy"], "standings" in notes) == ("nearest", False)
    assert not list(tmp_path.iterdir())
    leave_one_out(without_device(DATASET, TARGET), several, Regime.DEVICE_NEW, SHORT, tmp_path)
    assert "standings" in run(auto, source, measured(60)).notes


def test_of_many_devices_some_are_left_out_in_turn() -> None:
    sources = without_device(DATASET, TARGET)
    names = tuple(f"cpu.{number:02}" for number in range(20))
    columns = [number % 2 for number in range(20)]
    many = replace(
        sources,
        device_ids=tuple(map(DeviceId, names)),
        latency_secs=sources.latency_secs[:, columns],
        failed=sources.failed[:, columns],
        hardware=sources.hardware[columns],
    )
    made = leave_one_out(many, (Nearest(),), Regime.DEVICE_NEW, SHORT, None)
    assert made is not None
    assert made.known == names
    assert made.devices == names[::3]


def test_one_known_device_tells_nothing() -> None:
    alone = without_device(without_device(DATASET, TARGET), "cpu.b")
    assert leave_one_out(alone, (Nearest(),), Regime.DEVICE_NEW, SHORT, None) is None


DEVICE_SCORES = LeaveOneOutScores(
    key="k",
    samples=(0, 32, 256),
    top1={"a": (0.7, 0.8, 0.9), "b": (None, 0.6, 0.95)},
    agreement={"a": (0.7, 0.7, 0.7), "b": (None, 0.6, 0.9)},
    devices=("x", "y"),
    judged=(0, 1, 2, 3, 0, 1, 2, 3),
    by_judged={
        "a": ((0.7,) * 8, (0.8,) * 8, (0.9, 0.91, 0.89, 0.9) * 2),
        "b": ((None,) * 8, (0.6,) * 8, (0.95,) * 8),
    },
)


@pytest.mark.parametrize(
    ("strategies", "k", "best"),
    [
        ("ab", 0, "a"),
        ("ab", 32, "a"),
        ("ab", 256, "b"),
        ("ab", 4096, "b"),
        # A first that could not run leaves the choice to the others.
        ("ba", 0, "a"),
        ("cb", 32, "b"),
        ("cd", 32, "c"),
    ],
)
def test_the_best_changes_with_the_number_of_samples(strategies: str, k: int, best: str) -> None:
    assert DEVICE_SCORES.best(tuple(map(LikeNearest, strategies)), k).name == best


def test_between_numbers_of_samples_the_logarithm_counts() -> None:
    middle = DEVICE_SCORES.at(int(2 ** ((np.log2(33) + np.log2(257)) / 2)) - 1)
    assert middle["a"] == pytest.approx(0.85, abs=0.005)
    assert DEVICE_SCORES.difference("b", "a", 256) == pytest.approx(0.2)
    assert DEVICE_SCORES.difference("b", "unknown", 256) == 0


def test_known_devices_tell_what_to_expect_of_one_more() -> None:
    told = replace(
        DEVICE_SCORES,
        top5={"a": (0.9, 0.95, 0.99)},
        spread={"a": ((0.01, 0.02, 0.02), (0.1, 0.1, 0.1))},
    )
    found = told.expected("a", 0)
    assert found is not None
    top1, top5 = found
    # Student's t of one degree of freedom, and the doubt about the mean of two.
    assert top1.high - top1.value == pytest.approx(6.314 * 0.01 * 1.5**0.5, rel=1e-3)
    assert top1.value == pytest.approx(0.7)
    assert top5.high == 1
    assert 0 < top5.low < 0.9
    assert told.expected("b", 0) is None
    assert DEVICE_SCORES.expected("a", 0) is None
    assert replace(told, devices=("x",)).expected("a", 0) is None


@pytest.mark.parametrize(
    ("lucky", "best"),
    [((0.95, 0.95, 0.95, 0.95), "b"), ((1.0, 1.0, 1.0, 0.8), "a"), ((0.95, 0.95, 0.95, None), "a")],
)
def test_the_first_stays_where_another_leads_by_luck(lucky: tuple[float | None, ...], best: str) -> None:
    of_a = DEVICE_SCORES.by_judged["a"]
    told = replace(DEVICE_SCORES, by_judged={"a": of_a, "b": ((None,) * 8, (0.6,) * 8, lucky * 2)})
    assert told.best((LikeNearest("a"), LikeNearest("b")), 256).name == best


def test_the_luckiest_of_many_is_asked_for_more_than_one_rival_alone() -> None:
    several = dict.fromkeys("acdefghijk", DEVICE_SCORES.by_judged["a"])
    ahead = (0.92, 0.96, 0.91, 0.95) * 2
    told = replace(DEVICE_SCORES, by_judged={**several, "b": ((None,) * 8, (0.6,) * 8, ahead)})
    known = dict.fromkeys(several, DEVICE_SCORES.top1["a"]) | {"b": DEVICE_SCORES.top1["b"]}
    told = replace(told, top1=known)
    assert told.best((LikeNearest("a"), LikeNearest("b")), 256).name == "b"
    assert told.best(tuple(map(LikeNearest, "abcdefghijk")), 256).name == "a"


def test_gains_are_means_over_devices_of_what_both_were_judged_on() -> None:
    rows = {"a": ((0.5,) * 8,) * 3, "b": ((0.6, 0.6, 0.6, None, 0.8, 0.6, 0.6, None),) * 3}
    told = replace(DEVICE_SCORES, by_judged=rows)
    np.testing.assert_allclose(told.gains("b", "a", 32), [0.2, 0.1, 0.1])
    assert len(told.gains("unknown", "a", 32)) == 0


def test_a_check_of_few_workloads_does_not_outweigh_what_is_known() -> None:
    told = judge({"b": np.array([0.8]), "a": np.array([0.9])}, "b", DEVICE_SCORES, 256)
    assert told["taken"] == "b"
    assert told["beaten_by"] == ["a"]
    assert "too few" in told["says"]
    told = judge({"b": np.full(60, 0.6), "a": np.full(60, 0.9)}, "b", DEVICE_SCORES, 256)
    assert told["taken"] == "a"
    assert "does not beat a" in told["says"]


def test_luck_on_a_few_workloads_gives_no_choice_up() -> None:
    pairs = np.array([0.0, 1, 1, 1, 0, 1, 1, 1])
    told = judge({"b": pairs, "a": np.ones(8)}, "b", None, 64)
    assert (told["taken"], told["beaten_by"]) == ("b", ["a"])
    assert "too few to be sure" in told["says"]
    # The same share of pairs on more workloads is no luck, nor is a loss on each of them.
    assert judge({"b": np.tile(pairs, 4), "a": np.ones(32)}, "b", None, 64)["taken"] == "a"
    assert judge({"b": np.full(8, 0.7), "a": np.ones(8)}, "b", None, 64)["taken"] == "a"
    assert judge({"b": np.full(3, 0.7), "a": np.ones(3)}, "b", None, 64)["taken"] == "b"


@pytest.mark.parametrize("regime", list(Regime))
def test_a_check_asks_what_the_head_will_be_asked(regime: Regime) -> None:
    parts = split_few_shot(DATASET, measured(90), LATENCY, regime, seed=0)
    assert parts is not None
    fit, check = parts
    assert not set(fit) & set(check)
    assert set(fit) | set(check) == set(measured(90))
    shared = np.intersect1d(DATASET.group[fit], DATASET.group[check])
    view = checking_view(DATASET, check, regime)
    seen = np.isfinite(view.latency_secs[check]).any()
    wanted = {
        Regime.DEVICE_NEW: (True, True),
        Regime.CANDIDATE_NEW: (True, False),
        Regime.BOTH_NEW: (False, False),
    }
    assert (len(shared) > 0, bool(seen)) == wanted[regime]
    # Of known workloads what source devices measured of other candidates stays.
    assert np.isfinite(view.latency_secs[fit]).any()
    # Too few samples are not split.
    assert split_few_shot(DATASET, measured(10), LATENCY, regime, seed=0) is None


@pytest.mark.parametrize("regime", list(Regime))
def test_heads_that_know_the_check_are_no_rivals(source: FleetTLP, regime: Regime) -> None:
    found = run(Auto(strategies=(Scratch(),), regime=regime), source, measured(90)).notes["check"]
    rivals = {"scratch", "nearest"} - ({"nearest"} if regime is Regime.CANDIDATE_NEW else set())
    assert set(found["agreement"]) == rivals


def test_agreement_is_told_by_workload(source: FleetTLP) -> None:
    check = measured(30)
    adapted = Nearest().adapt(source, DATASET, TARGET, check, source_rows=ROWS, config=SHORT, seed=0)
    found = check_agreement(adapted, DATASET, check, LATENCY, Regime.DEVICE_NEW)
    assert len(found) == len(np.unique(DATASET.group[check]))
    assert ((found >= 0) & (found <= 1)).all()
