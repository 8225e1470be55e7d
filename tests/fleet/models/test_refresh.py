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
from fleet.models.pairs import decided_pairs, pair_width
from fleet.models.promotion import (
    DecisionKind,
    Standing,
    held_back,
    judge,
    refusal,
    standing,
    start_from,
    summary,
)
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


#: Quality of the challenger's head and of the champion's, how they are judged, and what is decided and said.
JUDGED: dict[str, tuple[float | None, float | None, dict[str, Any], DecisionKind, str]] = {
    "better": (0.9, 0.5, {}, DecisionKind.BETTER, r"better: .*on 12 held-out workloads.*against v000001"),
    "worse": (0.5, 0.9, {}, DecisionKind.WORSE, "worse: "),
    # The challenger has the fresher data...
    "as good": (0.7, 0.7, {}, DecisionKind.AS_GOOD, "no worse beyond noise: "),
    "as good, of as many": (
        0.7,
        0.7,
        {"learnt": (203, 203)},
        DecisionKind.AS_GOOD,
        "no worse beyond noise: ",
    ),
    # ...unless it learnt from less.
    "as good, of fewer": (
        *(0.7, 0.7, {"learnt": (42, 203)}, DecisionKind.UNJUDGED),
        "not clearly better, and it learnt from 42 workloads, v000001 ",
    ),
    "better, of fewer": (0.9, 0.7, {"learnt": (42, 203)}, DecisionKind.BETTER, "better: "),
    # A head of 42 workloads once took the place of a better one of 200 by a bootstrap of three.
    "three workloads": (0.9, 0.5, {"workloads": 3, "learnt": (42, 203)}, DecisionKind.UNJUDGED, ""),
    "three, as many": (0.9, 0.5, {"workloads": 3, "learnt": (42, 42)}, DecisionKind.AS_GOOD, ""),
    "first": (0.8, None, {}, DecisionKind.FIRST, ""),
    "first, by chance": (0.0, None, {}, DecisionKind.REFUSED, "no better than chance"),
    "first, unjudged": (None, None, {}, DecisionKind.FIRST, ""),
    "too few to judge": (
        *(0.9, 0.9, {"workloads": refresh.LEAST_JUDGED - 1}, DecisionKind.UNJUDGED),
        "2 held-out workloads can judge, 3 are needed; v000001 stays, for nobody has judged the new head$",
    ),
    # A champion that cannot serve any more keeps nobody out.
    "champion gone": (0.8, None, {"gone": "v1 is torn"}, DecisionKind.FIRST, "v1 is torn; "),
    "champion gone, unjudged": (None, None, {"gone": "v1 is torn"}, DecisionKind.FIRST, "v1 is torn; "),
    "champion gone, by chance": (0.0, None, {"gone": "v1 is torn"}, DecisionKind.REFUSED, ""),
}


@pytest.mark.parametrize("case", JUDGED)
def test_a_challenger_serves_where_it_is_better_or_fresher_and_says_why(case: str) -> None:
    mine, other, options, kind, reason = JUDGED[case]
    count = {"workloads": options.get("workloads", 12)}
    told = {name: value for name, value in options.items() if name != "workloads"}
    challenger = None if mine is None else heads(mine, seed=1, **count)
    champion = None if other is None else heads(other, seed=2, **count)
    verdict = judge("a", challenger, champion, served_by="v000001" if champion else "", **told)
    assert verdict.kind is kind
    assert verdict.moves_on == (kind in {DecisionKind.BETTER, DecisionKind.AS_GOOD, DecisionKind.FIRST})
    assert re.match(reason, verdict.reason)
    if case == "better":
        assert verdict.judged["difference"]["pairs"][1] > 0
        assert (verdict.judged["workloads"], verdict.judged["candidates"]) == (12, 240)


def test_a_head_that_misses_the_best_is_worse_though_it_orders_the_rest_alike() -> None:
    found = heads(0.7, seed=1)
    verdict = judge("a", replace(found, top5=found.top5 - 0.2), found, served_by="v000001")
    assert verdict.kind is DecisionKind.WORSE
    assert "first five choices" in verdict.reason
    with pytest.raises(ValueError, match="unlike workloads"):
        judge("a", heads(0.9), heads(0.9, workloads=11), served_by="v000001")


def test_what_a_person_decided_holds_whatever_the_figures_say() -> None:
    better = judge("a", heads(0.9, seed=1), heads(0.6, seed=2), served_by="v000001")
    as_good = judge("a", heads(0.7, seed=1), heads(0.7, seed=2), served_by="v000001")
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
    better = judge("a", heads(0.9, seed=1), heads(0.5), served_by="v1")
    assert summary([better, judge("b", heads(0.8), None), refused]) == "1 first, 1 better, 1 refused"


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


def test_the_held_out_part_only_grows() -> None:
    known: list[Workload] = []
    before: frozenset[WorkloadId] = frozenset()
    for number in range(80):
        known.append(unlike_workload(number))
        now = holdout.held_out(known)
        assert before <= now
        assert bool(now) <= (len(known) >= holdout.LEAST_WORKLOADS)
        before = now
    assert 4 <= len(before) <= 22


def test_what_any_version_has_learnt_from_judges_none_of_them() -> None:
    held = [WorkloadId(name) for name in "abc"]
    assert holdout.clean(held, [WorkloadId("x")], [WorkloadId("b")]) == {"a", "c"}
    assert holdout.clean(held, None, []) is None
