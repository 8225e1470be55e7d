"""Imported traces become candidates of our own: their decisions in our design space, nothing else of them."""

from __future__ import annotations

import json

import pytest

from agents.programs.derivation import comparable, match
from agents.programs.design_space import DesignSpace
from agents.programs.trace_rules import TraceRefusedError, read_trace
from agents.programs.workloads import operator_workload
from agents.records import Family, Workload, canonical_json
from tests.hostile_fixtures import linking_trace, of_other_host, running_trace, with_steps
from tests.table_fixtures import rows

SPACE = json.loads("""[
    ["GetSBlock", [], ["Z", "main"], ["b0"]],
    ["Annotate", ["b0", 16], ["meta_schedule.parallel"], []],
    ["GetLoops", ["b0"], [], ["l1", "l2"]],
    ["SamplePerfectTile", ["l1"], [2, 64], ["v3", "v4"]],
    ["Split", ["l1", "v3", "v4"], [true, false], ["l5", "l6"]],
    ["SampleCategorical", [], [[0, 16], [0.5, 0.5]], ["v7"]]
]""")
DECISIONS = [[3, [4, 4]], [5, 1]]


NO_SPACE = "its instructions are those of no design space of ours"
NOT_ONE_EACH = "its decisions are not one for each sampled number"


#: Instructions and decisions, and why they match nothing; SPACE and MADE are what matches.
MISMATCHES = f"""
    SPACE; [[3, [4, 4]]]                   -> {NOT_ONE_EACH}
    SPACE; [[3, [4, 4]], [5, 1], [3, [4, 4]]] -> {NOT_ONE_EACH}
    SPACE; [[3, [4, 0]], [5, 1]]           -> a decision does not fit its instruction
    OTHER TILE; MADE                       -> {NO_SPACE}
    ONE LESS; [[3, [4, 4]]]                -> {NO_SPACE}
    []; []                                 -> {NO_SPACE}
"""


@pytest.mark.parametrize(("trace", "reason"), rows(MISMATCHES))
def test_what_does_not_match_is_refused_with_its_reason(trace: str, reason: str) -> None:
    other = [*SPACE[:3], ["SamplePerfectTile", ["l1"], [2, 16], ["v3", "v4"]], *SPACE[4:]]
    for word, meant in (
        ("SPACE", SPACE),
        ("OTHER TILE", other),
        ("ONE LESS", SPACE[:-1]),
        ("MADE", DECISIONS),
    ):
        trace = trace.replace(word, json.dumps(meant))
    text = f"[{trace.replace(';', ',')}]"
    with pytest.raises(TraceRefusedError) as caught:
        match([comparable(SPACE)], text)
    assert caught.value.reason == reason
    with pytest.raises(TraceRefusedError, match="no design space"):
        match([], json.dumps([SPACE, DECISIONS]))


@pytest.fixture(scope="module")
def product() -> Workload:
    return operator_workload("GMM", (1, 128, 128, 128))


@pytest.mark.tvm
@pytest.mark.parametrize("family", list(Family))
def test_an_honest_candidate_is_made_again(product: Workload, family: Family) -> None:
    space = DesignSpace(product, family)
    drawn = space.sample(3, seed=5).candidates
    made = space.derive([one.trace for one in drawn])
    assert not made.refused
    assert [one.origin for one in made.candidates] == ["derived"] * len(drawn)
    if family is Family.CPU:
        # The very same program, so the very same candidate. On a GPU post-processors sample too.
        assert [one.candidate_id for one in made.candidates] == [one.candidate_id for one in drawn]
    theirs = space.derive([canonical_json(of_other_host(json.loads(one.trace))) for one in drawn])
    assert theirs == made
    for one in made.candidates:
        read_trace(one.trace)


@pytest.mark.tvm
def test_nothing_of_a_hostile_trace_but_its_decisions_is_used(product: Workload) -> None:
    space = DesignSpace(product, Family.CPU)
    [drawn] = space.sample(1, seed=5).candidates
    honest = json.loads(drawn.trace)
    tiles = json.loads(drawn.trace)
    next(one for one in tiles[1] if isinstance(one[1], list))[1][-1] = 7
    strange = with_steps(honest, ["Vectorize", ["l1"], [], []], ["ComputeInline", ["b0"], [], []])
    made = space.derive(
        [
            canonical_json(one)
            for one in (
                running_trace("id"),
                linking_trace(),
                with_steps(honest, linking_trace()[0][2]),
                tiles,
                strange,
                [[], []],
            )
        ]
    )
    # The strange one is harmless, and what follows its design space is not looked at: ours follows.
    assert [one.candidate_id for one in made.candidates] == [drawn.candidate_id]
    assert made.refused == {
        "an index map is no integer arithmetic": 1,
        "the instruction's inputs or attributes are not on the list": 2,
        "its decisions do not fit our loops": 1,
        "its instructions are those of no design space of ours": 1,
    }
