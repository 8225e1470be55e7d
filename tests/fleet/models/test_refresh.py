"""Who serves a device: fair ground, noise that counts for nothing, reasons that say why."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import WorkloadId
from fleet.models import promotion as refresh
from fleet.models import versions as holdout
from fleet.models.judge import best_of, counting_verdicts
from fleet.models.promotion import (
    LEAST_JUDGED,
    DecisionKind,
    DeviceDecision,
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
from fleet.models.standings import Standing, pair_figures, standing
from tests.dataset_fixtures import gmm_workload
from tests.refresh_fixtures import unlike_workload
from tests.table_fixtures import cells


def heads(quality: float, *, workloads: int = 12, count: int = 20, seed: int = 0) -> Standing:
    """A head that knows the true speed up to noise of its own; all seeds share the candidates."""
    truth = np.random.default_rng(7).normal(size=workloads * count)
    noise = np.random.default_rng(100 + seed).normal(size=workloads * count)
    group = np.repeat(np.arange(workloads), count).astype(np.int32)
    return standing(quality * truth + (1 - quality) * noise, np.exp(-truth), group, floor=0.0)


#: Quality of challenger, champion and shipped head (`-`: there is none, `?`: nothing judges it); how many
#: workloads and candidates judge, or why the champion is gone; what is decided, and how the reason begins.
JUDGED = r"""
0.9  0.5  0.5  |                  | BETTER   | better: .*on 24 held-out workloads, .*v000001 .*, .* shipped
0.98 0.98 0.98 |                  | AS_GOOD  | clearly as good:
0.5  0.9  -    |                  | WORSE    | worse:
# The head that comes with the program is a rival until it is beaten.
0.7  0.5  0.9  |                  | WORSE    | worse: .*shipped head
0.9  -    0.6  |                  | BETTER   | better: .*shipped head
# What noise cannot tell apart on few workloads is not clearly as good.
0.68 0.6  0.6  | 8 10             | UNJUDGED | not clearly as good: .*it needs [0-9]+ more measured workloads
0.9  0.5  0.5  | 7 20             | UNJUDGED | needs 7 more .*: 7 held-out ones .*, 8 must, .*; v000001 stays$
-    -    ?    |                  | UNJUDGED | needs 54 more .*: 0 held-out ones .*of 27 or more at least 9\)$
# Where no model is shipped and nothing serves, a first head does.
0.8  -    -    |                  | FIRST    | first head:
0.0  -    -    |                  | REFUSED  | no better than chance
-    -    -    |                  | FIRST    | first head, unjudged: it needs 54 more measured workloads
# A champion that cannot serve any more keeps nobody out.
0.8  -    -    | gone: v1 is torn | FIRST    | v1 is torn;
-    -    -    | gone: v1 is torn | FIRST    | v1 is torn; first head, unjudged
0.0  -    -    | gone: v1 is torn | REFUSED  |
0.5  -    0.9  | gone: v1 is torn | WORSE    | v1 is torn; worse
"""


@pytest.mark.parametrize("case", [line for line in JUDGED.strip().splitlines() if not line.startswith("#")])
def test_a_challenger_serves_where_it_is_better_or_clearly_as_good_and_says_why(case: str) -> None:
    qualities, how, kind, reason = (cell.strip() for cell in case.split("|"))
    _, is_gone, gone = how.partition("gone: ")
    workloads, count = (24, 20) if is_gone or not how else map(int, how.split())

    def head(quality: str, seed: int) -> Standing | None:
        return None if quality in "-?" else heads(float(quality), seed=seed, workloads=workloads, count=count)

    mine, champion, shipped = qualities.split()
    names = (("v000001", champion, 2), ("the shipped head", shipped, 3))
    rivals = [Incumbent(name=name, standing=head(one, seed)) for name, one, seed in names if one != "-"]
    served_by = "" if champion == "-" else "v000001"
    verdict = judge("a", head(mine, 1), rivals, served_by=served_by, gone=gone)
    assert verdict.kind is DecisionKind[kind], verdict.reason
    assert verdict.moves_on == (
        verdict.kind in {DecisionKind.BETTER, DecisionKind.AS_GOOD, DecisionKind.FIRST}
    )
    assert re.match(reason, verdict.reason), verdict.reason


def test_a_head_that_misses_the_best_is_worse_though_it_orders_the_rest_alike() -> None:
    found = heads(0.7, seed=1)
    rival = Incumbent(name="v000001", standing=found)
    verdict = judge("a", replace(found, top5=found.top5 - 0.2), [rival], served_by="v000001")
    assert verdict.kind is DecisionKind.WORSE
    assert "first five choices" in verdict.reason


def test_a_head_that_loses_more_than_the_margin_hardly_ever_takes_the_place() -> None:
    """One in twenty at most, on as few workloads as may judge, and though equal heads often do."""
    random, found = np.random.default_rng(0), heads(0.9, workloads=LEAST_JUDGED)

    def share_that_takes(behind: float, spread: float) -> float:
        took = 0
        for _ in range(400):
            gains = random.normal(-behind, spread, size=LEAST_JUDGED)
            other = replace(found, right=found.right - gains * found.decided)
            took += compared(found, other, "it").rank in {Rank.BETTER, Rank.AS_GOOD}
        return took / 400

    assert share_that_takes(behind=0.02, spread=0.03) < 0.08
    assert share_that_takes(behind=0.06, spread=0.1) < 0.01
    assert share_that_takes(behind=0.0, spread=0.02) > 0.7


def test_the_shipped_head_takes_the_place_back_from_one_that_is_clearly_worse() -> None:
    def taken(champion: float, shipped: float, workloads: int = 24) -> str | None:
        sides = [
            Incumbent(name=name, standing=heads(quality, seed=seed, workloads=workloads))
            for seed, (name, quality) in enumerate((("v000002", champion), ("the shipped head", shipped)))
        ]
        decision = shipped_takes("a", *sides)
        return None if decision is None else decision.reason

    said = taken(0.5, 0.9)
    assert re.match(r"the shipped head is better: .* on 24 held-out workloads, .* against v000002", said)
    assert taken(0.9, 0.5) is None
    assert taken(0.5, 0.9, LEAST_JUDGED - 1) is None, "too few judge nobody"


@pytest.mark.parametrize(("quality", "kind"), [(0.6, DecisionKind.BETTER), (0.98, DecisionKind.HELD)])
def test_after_a_rollback_by_hand_only_a_better_head_takes_the_place(
    quality: float, kind: DecisionKind
) -> None:
    """`refresh_scenarios.txt` has a device that is pinned."""
    verdict = judge("a", heads(0.98, seed=1), [Incumbent(name="v000001", standing=heads(quality, seed=2))])
    back = held_back(verdict, rolled_back_from="v000002")
    assert (back.kind, back.moves_on) == (kind, kind is DecisionKind.BETTER)
    assert ("since v000002 was rolled back by hand" in back.reason) is not back.moves_on


def test_of_two_challengers_the_better_takes_the_place() -> None:
    champion = Incumbent(name="v000001", standing=heads(0.5, seed=1))
    good, bad = heads(0.9, seed=2), heads(0.4, seed=3)

    def decided(*challengers: Standing) -> list[DeviceDecision]:
        kinds = zip(("fleet_tlp", "mtl_tlp"), challengers, strict=True)
        verdicts = [(kind, one, judge("a", one, [champion], served_by="v000001")) for kind, one in kinds]
        return best_of([(replace(verdict, model_kind=kind), one) for kind, one, verdict in verdicts])

    ours, theirs = decided(heads(0.7, seed=4), good)
    assert (ours.kind, theirs.kind) == (DecisionKind.OUTDONE, DecisionKind.BETTER)
    assert ours.reason.startswith("mtl_tlp of the same training goes first; better: ")
    assert counting_verdicts([[ours], [theirs]]) == [theirs]
    # Where noise cannot tell them apart, the first.
    ours, theirs = decided(good, good)
    assert (ours.moves_on, theirs.kind) == (True, DecisionKind.OUTDONE)
    ours, theirs = decided(bad, bad)
    assert counting_verdicts([[ours], [theirs]]) == [ours]


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
    assert pair_figures(scores, latency, floor)[:2] == (decided, right)


#: Who serves each device, what else there is to know, and where a refresh starts, with why.
STARTS = """
v000001 v000002 v000002 |                 | v000002 | v000002 serves 2 of 3 devices
v000001 v000003         |                 | v000003 | v000003 serves 1 of 2 devices
                        |                 |         | there is no champion yet
v000001 v000002 v000002 | others' data    |         | the champions read other features
v000001 v000002 v000002 | v000002 is warm |         | v000002 is 8 warm starts away from the last training
# One that has learnt from what judges would leave nobody to be judged, whoever else serves.
v000001 v000002 v000002 | learnt v000002  | v000001 | v000001 serves 1 of 3 devices
v000001 v000002 v000002 | learnt v000002 v000001 |  | the champions have learnt from the held-out workloads
"""


@pytest.mark.parametrize(("serving", "told", "expected", "why"), cells(STARTS))
def test_a_refresh_starts_from_the_version_that_serves_most(
    serving: str, told: str, expected: str, why: str
) -> None:
    made = {f"v00000{number}": {"spec_hash": "s", "warm_starts": 1} for number in (1, 2, 3)}
    if told.endswith("warm"):
        made["v000002"]["warm_starts"] = refresh.MOST_WARM
    learnt = set(told.split()[1:]) if told.startswith("learnt") else ()
    champions = dict(zip("abc", serving.split(), strict=False))
    found = start_from(champions, made, "other" if told == "others' data" else "s", learnt)
    assert found[0] == expected
    assert found[1].startswith(why)


def test_a_summary_counts_kinds_and_a_device_without_enough_data_is_refused_by_its_numbers() -> None:
    assert refusal("a", 32, 3) is None
    refused = refusal("c", 12, 1)
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
    recorded = []
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
