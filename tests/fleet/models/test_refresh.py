"""Who serves a device: fair ground, noise that counts for nothing, reasons that say why."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import Workload, WorkloadId
from fleet.models import holdout
from fleet.models import promotion as refresh
from fleet.models.promotion import (
    LEAST_JUDGED,
    DecisionKind,
    Incumbent,
    Rank,
    compared,
    held_back,
    judge,
    refusal,
    shipped_takes,
    start_from,
    summary,
)
from fleet.models.standings import Standing, decided_pairs, pair_width, standing
from tests.dataset_fixtures import gmm_workload
from tests.refresh_fixtures import unlike_workload


def heads(
    quality: float, *, workloads: int = 12, count: int = 20, seed: int = 0, floor: float = 0.0
) -> Standing:
    """A head that knows the true speed up to noise of its own; all seeds share the candidates."""
    truth = np.random.default_rng(7).normal(size=workloads * count)
    noise = np.random.default_rng(100 + seed).normal(size=workloads * count)
    group = np.repeat(np.arange(workloads), count).astype(np.int32)
    found = standing(quality * truth + (1 - quality) * noise, np.exp(-truth), group, floor)
    assert found is not None
    return found


#: Quality of challenger, champion and shipped head, how they are judged, what is decided and said.
JUDGED: dict[str, tuple[float | None, float | None, float | None, dict[str, Any], DecisionKind, str]] = {
    "better than both": (
        *(0.9, 0.5, 0.5, {}, DecisionKind.BETTER),
        r"better: .*on 24 held-out workloads, .* against v000001 .*, .* against the shipped head ",
    ),
    "clearly as good": (0.98, 0.98, 0.98, {}, DecisionKind.AS_GOOD, "clearly as good: "),
    "worse than the champion": (0.5, 0.9, None, {}, DecisionKind.WORSE, "worse: "),
    # The head that comes with the program is a rival until it is beaten.
    "worse than the shipped one": (0.7, 0.5, 0.9, {}, DecisionKind.WORSE, "worse: .*shipped head"),
    "better than the shipped one": (0.9, None, 0.6, {}, DecisionKind.BETTER, "better: .*shipped head"),
    # What noise cannot tell apart on few workloads is not clearly as good.
    "unclear": (
        *(0.68, 0.6, 0.6, {"workloads": 8, "count": 10}, DecisionKind.UNJUDGED),
        "not clearly as good: .*it needs [0-9]+ more measured workloads to be judged",
    ),
    "too few to judge": (
        *(0.9, 0.5, 0.5, {"workloads": LEAST_JUDGED - 1}, DecisionKind.UNJUDGED),
        "needs 7 more measured workloads to be judged: 7 held-out ones can judge it, 8 must, and one of 7 is "
        r"held out \(of 27 or more at least 9\); v000001 stays$",
    ),
    "none to judge": (
        *(None, None, 0.9, {"standing": False}, DecisionKind.UNJUDGED),
        "needs 54 more measured workloads to be judged: 0 held-out ones can judge it, 8 must, and one of 7 "
        r"is held out \(of 27 or more at least 9\)$",
    ),
    # Where no model is shipped and nothing serves, a first head does.
    "first": (0.8, None, None, {}, DecisionKind.FIRST, "first head: "),
    "first, by chance": (0.0, None, None, {}, DecisionKind.REFUSED, "no better than chance"),
    "first, unjudged": (
        *(None, None, None, {}, DecisionKind.FIRST),
        "first head, unjudged: it needs 54 more measured workloads",
    ),
    # A champion that cannot serve any more keeps nobody out.
    "champion gone": (0.8, None, None, {"gone": "v1 is torn"}, DecisionKind.FIRST, "v1 is torn; "),
    "champion gone, unjudged": (
        *(None, None, None, {"gone": "v1 is torn"}, DecisionKind.FIRST),
        "v1 is torn; first head, unjudged",
    ),
    "champion gone, by chance": (0.0, None, None, {"gone": "v1 is torn"}, DecisionKind.REFUSED, ""),
    "champion gone, shipped better": (
        *(0.5, None, 0.9, {"gone": "v1 is torn"}, DecisionKind.WORSE),
        "v1 is torn; worse",
    ),
}


@pytest.mark.parametrize("case", JUDGED)
def test_a_challenger_serves_where_it_is_better_or_clearly_as_good_and_says_why(case: str) -> None:
    mine, other, shipped, options, kind, reason = JUDGED[case]
    size = {"workloads": options.get("workloads", 24), "count": options.get("count", 20)}
    challenger = None if mine is None else heads(mine, seed=1, **size)
    rivals = []
    if other is not None:
        rivals.append(Incumbent(name="v000001", standing=heads(other, seed=2, **size)))
    if shipped is not None:
        asked = heads(shipped, seed=3, **size) if options.get("standing", True) else None
        rivals.append(Incumbent(name="the shipped head", standing=asked))
    verdict = judge(
        "a", challenger, rivals, served_by="v000001" if other else "", gone=options.get("gone", "")
    )
    assert verdict.kind is kind, verdict.reason
    assert verdict.moves_on == (kind in {DecisionKind.BETTER, DecisionKind.AS_GOOD, DecisionKind.FIRST})
    assert re.match(reason, verdict.reason), verdict.reason
    if case == "better than both":
        assert verdict.judged is not None
        assert verdict.judged["difference"]["pairs"][1] > 0
        assert (verdict.judged["workloads"], verdict.judged["candidates"]) == (24, 480)


def test_a_head_that_misses_the_best_is_worse_though_it_orders_the_rest_alike() -> None:
    found = heads(0.7, seed=1)
    rival = Incumbent(name="v000001", standing=found)
    verdict = judge("a", replace(found, top5=found.top5 - 0.2), [rival], served_by="v000001")
    assert verdict.kind is DecisionKind.WORSE
    assert "first five choices" in verdict.reason
    with pytest.raises(ValueError, match="unlike workloads"):
        judge("a", heads(0.9), [Incumbent(name="v000001", standing=heads(0.9, workloads=11))])


def test_a_head_that_loses_more_than_the_margin_hardly_ever_takes_the_place() -> None:
    """One in twenty at most, on as few workloads as may judge, and though equal heads often do."""
    random = np.random.default_rng(0)

    def share_that_takes(behind: float, spread: float) -> float:
        took = 0
        for _ in range(400):
            found = heads(0.9, workloads=LEAST_JUDGED)
            gains = random.normal(-behind, spread, size=LEAST_JUDGED)
            other = replace(found, right=found.right - gains * found.decided)
            took += compared(found, other, "it").rank in {Rank.BETTER, Rank.AS_GOOD}
        return took / 400

    assert share_that_takes(behind=0.02, spread=0.03) < 0.08
    assert share_that_takes(behind=0.06, spread=0.1) < 0.01
    assert share_that_takes(behind=0.0, spread=0.02) > 0.7


def test_further_workloads_make_a_head_judged_if_they_say_what_these_say() -> None:
    found = heads(0.9, workloads=LEAST_JUDGED)
    gains = np.tile([0.04, -0.04], LEAST_JUDGED // 2)
    unclear = compared(found, replace(found, right=found.right - gains * found.decided), "it")
    assert unclear.rank is Rank.UNCLEAR
    more = heads(0.9, workloads=LEAST_JUDGED + unclear.lacks + unclear.lacks % 2)
    gains = np.tile([0.04, -0.04], len(more.groups) // 2)
    assert compared(more, replace(more, right=more.right - gains * more.decided), "it").rank is Rank.AS_GOOD


def test_the_shipped_head_takes_the_place_back_from_one_that_is_clearly_worse() -> None:
    def taken(champion: float, shipped: float, workloads: int = 24) -> str | None:
        sides = [
            Incumbent(name=name, standing=heads(quality, seed=seed, workloads=workloads))
            for seed, (name, quality) in enumerate((("v000002", champion), ("the shipped head", shipped)))
        ]
        decision = shipped_takes("a", *sides)
        return None if decision is None else decision.reason

    said = taken(0.5, 0.9)
    assert said is not None
    assert re.match(r"the shipped head is better: .* on 24 held-out workloads, .* against v000002", said)
    assert taken(0.9, 0.5) is None
    assert taken(0.5, 0.9, LEAST_JUDGED - 1) is None, "too few judge nobody"


def test_what_a_person_decided_holds_whatever_the_figures_say() -> None:
    better = judge("a", heads(0.9, seed=1), [Incumbent(name="v000001", standing=heads(0.6, seed=2))])
    as_good = judge("a", heads(0.98, seed=1), [Incumbent(name="v000001", standing=heads(0.98, seed=2))])
    assert (better.kind, as_good.kind) == (DecisionKind.BETTER, DecisionKind.AS_GOOD)
    pinned = held_back(better, pinned_to="v000001")
    assert (pinned.kind, pinned.moves_on, pinned.judged) == (DecisionKind.HELD, False, better.judged)
    assert pinned.reason == f"the device is pinned to v000001; {better.reason}"
    back = held_back(as_good, rolled_back_from="v000002")
    assert (back.kind, back.moves_on) == (DecisionKind.HELD, False)
    assert "since v000002 was rolled back by hand" in back.reason
    assert held_back(better, rolled_back_from="v000002") is better
    assert held_back(as_good) is as_good


def test_differences_within_the_noise_floor_are_no_differences() -> None:
    latency = np.array([1.0, 1.005, 1.2, 1.0, 1.005, 1.2])
    scores = np.array([0.8, 0.9, 0.1, 0.8, 0.9, 0.1])
    group = np.array([0, 0, 0, 1, 1, 1], dtype=np.int32)
    many = np.tile(np.arange(3), (4, 1)).ravel()
    strict = standing(scores[many], latency[many], np.repeat(0, 12).astype(np.int32), 0.0)
    lenient = standing(scores[many], latency[many], np.repeat(0, 12).astype(np.int32), 0.02)
    assert strict.right.sum() < strict.decided.sum()
    assert lenient.right.sum() == lenient.decided.sum()
    assert lenient.top5.tolist() == [1.0]
    assert standing(scores, latency, group, 0.5) is None
    assert standing(scores, np.full(6, np.nan), group, 0.0) is None


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from((1.0, 1.01, 1.5, 2.0))), min_size=2, max_size=12),
    st.sampled_from((0.0, 0.02, 0.6)),
)
def test_pairs_are_counted_one_by_one(found: list[tuple[int, float]], floor: float) -> None:
    scores = np.array([float(score) for score, _ in found])
    latency = np.array([secs for _, secs in found])
    decided, right = 0, 0.0
    for one, other in itertools.permutations(range(len(found)), 2):
        if latency[other] > latency[one] * (1 + floor):
            decided += 1
            right += 1.0 if scores[one] > scores[other] else 0.5 if scores[one] == scores[other] else 0.0
    assert decided_pairs(scores, latency, floor) == (decided, right)


def test_a_share_of_pairs_is_as_unsure_as_other_candidates_make_it() -> None:
    """Its interval covers what a head would get right on candidates that nobody measured."""
    random = np.random.default_rng(0)
    # One head's real share of right pairs, over very many candidates.
    truth = random.normal(size=2000)
    scores = truth + 1.5 * random.normal(size=2000)
    decided, right = decided_pairs(scores, np.exp(-truth), 0.0)
    inside, widths = 0, []
    for _ in range(200):
        chosen = random.permutation(2000)[:40]
        pairs, good = decided_pairs(scores[chosen], np.exp(-truth[chosen]), 0.0)
        widths.append(pair_width(scores[chosen], np.exp(-truth[chosen]), 0.0))
        inside += abs(good / pairs - right / decided) <= widths[-1] / 2
    assert 0.8 <= inside / 200 <= 0.97
    more = random.permutation(2000)[:400]
    assert pair_width(scores[more], np.exp(-truth[more]), 0.0) < np.mean(widths) / 2
    assert pair_width(truth, np.exp(-truth), 0.0) == 0.0, "of a head without errors nothing is unsure"


def test_a_share_of_few_pairs_is_not_sure_at_all_and_of_many_some_are_enough() -> None:
    assert pair_width(np.arange(3.0), np.arange(3.0, 0, -1), 0.0) == 1.0
    # All pairs with the last one are decided, the others are within the noise.
    assert pair_width(np.arange(5.0), np.array([1.0, 1.0, 1.0, 1.0, 2.0]), 0.1) == 1.0
    truth = np.random.default_rng(0).normal(size=5000)
    assert decided_pairs(truth, np.exp(-truth), 0.0) == (512 * 511 / 2, 512 * 511 / 2)


def test_a_refresh_starts_from_the_version_that_serves_most() -> None:
    made = {name: {"spec_hash": "s", "warm_starts": 1} for name in ("v000001", "v000002", "v000003")}
    serving = {"a": "v000001", "b": "v000002", "c": "v000002"}
    assert start_from(serving, made, "s") == ("v000002", "v000002 serves 2 of 3 devices")
    assert start_from({"a": "v000001", "b": "v000003"}, made, "s")[0] == "v000003"
    assert start_from({}, {}, "s") == ("", "there is no champion yet")
    assert start_from(serving, made, "other") == ("", "the champions read other features")
    made["v000002"] = {"spec_hash": "s", "warm_starts": refresh.MOST_WARM}
    assert start_from(serving, made, "s") == (
        "",
        "v000002 is 8 warm starts away from the last training from nothing",
    )
    # One that has learnt from what judges would leave nobody to be judged, whoever else serves.
    assert start_from(serving, made, "s", {"v000002"})[0] == "v000001"
    base, why = start_from(serving, made, "s", {"v000001", "v000002"})
    assert (base, why[:40]) == ("", "the champions have learnt from the held-")


def test_a_summary_counts_kinds_and_a_device_without_enough_data_is_refused_by_its_numbers() -> None:
    assert refusal("a", 32, 3) is None
    refused = refusal("c", 12, 1)
    assert refused is not None
    assert not refused.moves_on
    assert refused.reason == (
        "12 ok candidates in 1 workloads that may be learnt from; a head needs 32 in 3: measure more"
    )
    better = judge("a", heads(0.9, seed=1), [Incumbent(name="v1", standing=heads(0.5))])
    assert summary([better, judge("b", heads(0.8), []), refused]) == "1 first, 1 better, 1 refused"


# ---- the held-out workloads ----


def test_the_rule_looks_at_operator_and_shapes_alone() -> None:
    for number in range(60):
        one = unlike_workload(number)
        twin = msgspec.structs.replace(
            one, workload_id=WorkloadId(f"{number:016x}"), name="other", networks=(("n", 1),)
        )
        assert holdout.is_held_out(one) == holdout.is_held_out(twin)
    shapeless = [
        msgspec.structs.replace(gmm_workload(), workload_id=WorkloadId(f"{number:016x}"), arg_shapes=())
        for number in range(400)
    ]
    assert 0.08 < np.mean([holdout.is_held_out(one) for one in shapeless]) < 0.24


def test_a_store_of_some_size_holds_out_enough_to_judge_by() -> None:
    recorded: list[Workload] = []
    floored = False
    for number in range(120):
        recorded.append(unlike_workload(number))
        now = holdout.held_out(recorded)
        by_share = {each.workload_id for each in recorded if holdout.is_held_out(each)}
        if len(recorded) < holdout.LEAST_WORKLOADS:
            assert not now
        elif len(recorded) < holdout.FLOOR_WORKLOADS:
            assert now == by_share
        else:
            assert now >= by_share
            assert len(now) == max(len(by_share), holdout.LEAST_HELD)
            floored |= now != by_share
    assert floored
