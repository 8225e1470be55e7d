"""A search in memory: decisions drawn, mutated and crossed; populations; what is learnt on the way."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from tests.dataset_fixtures import NRM_TRACE, gmm_trace, gmm_workload
from transfer.errors import TraceError
from transfer.features.extractor import Extractor
from transfer.search.decisions import DesignTable, Genes
from transfer.search.learner import GrownTrees, Learner, left_out_means
from transfer.search.population import EvolutionSettings, Individual, evolve, turned
from transfer.search.process import Process, fit_process

SMALL = EvolutionSettings(drawn=40, mutants=20, generations=4, children=40, parents=16)


def table_of(*traces: str) -> tuple[DesignTable, list[Individual]]:
    table = DesignTable()
    return table, [Individual(*table.read(trace)) for trace in traces]


def extents(genes: Genes) -> list[int]:
    return [math.prod(one) for one in genes if isinstance(one, tuple)]


def test_a_design_is_read_once_and_gives_its_traces_back() -> None:
    traces = [gmm_trace(k=(128 // k, k), unroll=u) for k in (1, 2) for u in (0, 3)]
    table, found = table_of(*traces, NRM_TRACE)
    assert len(table.designs) == 2
    assert len({one.design for one in found[:4]}) == 1
    again, extractor = DesignTable(), Extractor()
    for one, trace in zip(found, [*traces, NRM_TRACE], strict=True):
        _, genes = again.read(one.design.trace(one.genes))
        assert genes == one.genes
        # Without post-processing it is the same candidate for a model.
        mine = extractor.decided(gmm_workload(), one.design.trace(one.genes))
        theirs = extractor.decided(gmm_workload(), trace)
        assert mine.space.fill(mine.decisions) == theirs.space.fill(theirs.decisions)


@given(st.integers(0, 10_000))
def test_children_stay_in_their_space(seed: int) -> None:
    table, [first, second] = table_of(gmm_trace(), gmm_trace(k=(32, 4), unroll=0))
    dice = random.Random(seed)
    design = first.design
    children = [
        design.draw(dice),
        design.mutate(first.genes, dice),
        design.cross(first.genes, second.genes, dice),
    ]
    for genes in children:
        assert extents(genes) == extents(first.genes)
        for value, (kind, attributes) in zip(genes, design.form, strict=True):
            if kind == "SamplePerfectTile":
                assert isinstance(value, tuple)
                assert len(value) == attributes[0]
                assert value[-1] <= attributes[1]
            elif kind == "SampleCategorical":
                assert isinstance(value, int)
                assert 0 <= value < len(attributes[0])
        json.loads(design.trace(genes))
    assert all(one in (a, b) for one, a, b in zip(children[2], first.genes, second.genes, strict=True))
    assert table.designs == [design]


def test_mutations_reach_every_value() -> None:
    _, [one] = table_of(gmm_trace())
    dice = random.Random(0)
    genes, seen = one.genes, [set[object]() for _ in one.genes]
    for _ in range(600):
        genes = one.design.mutate(genes, dice)
        for values, value in zip(seen, genes, strict=True):
            values.add(value)
    assert all(len(values) > 1 for values in seen)


def test_a_location_that_is_met_later_takes_part_in_mutations() -> None:
    table, [one] = table_of(NRM_TRACE)
    dice, place = random.Random(0), 3

    def locations() -> set[object]:
        return {one.design.mutate(one.genes, dice)[place] for _ in range(200)}

    assert locations() == {-2}
    later = NRM_TRACE.replace("[18,-2]", "[18,1]")
    assert table.read(later)[0] is one.design
    assert locations() == {-2, 1}


def test_leaders_turn_to_choices_and_locations_that_were_hardly_ever_tried() -> None:
    _, [leader] = table_of(NRM_TRACE)
    design, dice = leader.design, random.Random(0)
    kinds = [kind for kind, _ in design.form]
    free = [place for place, kind in enumerate(kinds) if kind != "SamplePerfectTile"]
    location = kinds.index("SampleComputeLocation")
    design.locations[location] += [6, 7]

    def at(genes: Genes, value: int) -> Genes:
        return (*genes[:location], value, *genes[location + 1 :])

    found = turned([leader], {leader})
    for one in found:
        [changed] = [place for place, gene in enumerate(one.genes) if gene != leader.genes[place]]
        assert changed in free
    assert {one.genes[location] for one in found} == {6, 7, leader.genes[location]}
    # Others had one of the values, among other tiles: it is asked for later, and at four no more.
    known, wanted = {leader}, at(leader.genes, 6)
    for count, is_asked in ((2, True), (4, False)):
        while sum(one.genes[location] == 6 for one in known) < count:
            known.add(Individual(design, at(design.mutate(wanted, dice), 6)))
            known.discard(Individual(design, wanted))
        found = [one.genes[location] for one in turned([leader], known)]
        assert (6 in found) == is_asked
        assert not is_asked or found.index(7) < found.index(6)
    assert turned([], known) == []


@pytest.mark.parametrize(
    "trace",
    [
        "nothing",
        "[[],[],[]]",
        '[[["SamplePerfectTile",["l0"],[2,64],["v1","v2"]]],[]]',
        '[[["SamplePerfectTile",["l0"],[2,64],["v1","v2"]]],[[0,[4]]]]',
        '[[["SamplePerfectTile",["l0"],[2,64],["v1","v2"]]],[[0,[4,0]]]]',
        '[[["SampleCategorical",[],[[1,2],[0.5,0.5]],["v1"]]],[[0,2]]]',
        '[[["SamplePartitionedTile",["l0"],[2,64],["v1","v2"]]],[[0,[4,1]]]]',
    ],
)
def test_a_trace_that_cannot_evolve_is_refused(trace: str) -> None:
    with pytest.raises(TraceError):
        DesignTable().read(trace)


def inner_tiles(individuals: Sequence[Individual]) -> np.ndarray:
    """Highest where all innermost tiles are 4, and those before them 2."""
    return np.array(
        [
            -sum(
                abs(math.log2(one[-1] / 4)) + abs(math.log2(one[-2] / 2))
                for one in each.genes
                if isinstance(one, tuple)
            )
            for each in individuals
        ]
    )


def test_evolution_climbs_and_repeats_nothing() -> None:
    table, elites = table_of(gmm_trace())
    asked: list[Individual] = []

    def score(individuals: Sequence[Individual]) -> np.ndarray:
        asked.extend(individuals)
        return inner_tiles(individuals)

    found = evolve(table, elites, score, elites, SMALL, "0")
    assert len(asked) == len(set(asked)) == len(found) > 150
    assert not set(asked) & set(elites)
    assert (np.diff(found.scores) <= 0).all()
    random_best = inner_tiles(asked[: SMALL.drawn]).max()
    assert found.scores[0] > random_best
    same = evolve(table, elites, inner_tiles, elites, SMALL, "0")
    assert same.individuals == found.individuals


def test_a_space_that_is_used_up_gives_what_it_has() -> None:
    table, elites = table_of('[[["SampleCategorical",[],[[0,16,64],[0.4,0.3,0.3]],["v1"]]],[[0,1]]]')
    found = evolve(table, elites, lambda those: np.zeros(len(those)), elites, SMALL, "0")
    assert sorted(one.genes for one in found.individuals) == [(0,), (2,)]
    nothing = evolve(table, [], inner_tiles, [*found.individuals, *elites], SMALL, "1")
    assert len(nothing) == 0


def sample(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, of which two decide, and log speeds."""
    x = np.random.default_rng(seed).normal(size=(count, 12)).astype(np.float32)
    return x, (0.5 * x[:, 0] - 0.3 * np.abs(x[:, 1])).astype(np.float64)


def test_linear_algebra_of_a_search_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def spy(*arguments: Any) -> Process:
        threads.extend(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return fit_process(*arguments)

    monkeypatch.setattr("transfer.search.learner.fit_process", spy)
    x, y = sample(40, 9)
    with threadpool_limits(limits=2, user_api="blas"):
        learner = Learner()
        learner.learn(x, np.zeros(40), np.exp(-y))
        learner.choose(x, np.zeros(40), 4, boldness=1.0)
        assert {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"} == {2}
    assert threads
    assert set(threads) == {1}


def test_before_a_measurement_the_head_decides() -> None:
    x, y = sample(60, 1)
    learner = Learner()
    head = np.minimum(0, y - 1)
    assert np.array_equal(learner.log_speeds(x, head), head)
    chosen = learner.choose(x, head, 8, boldness=0.0)
    assert chosen == np.argsort(-head, kind="stable")[:8].tolist()
    assert learner.gain(x, head, 0) == 1.0


def test_a_batch_does_not_repeat_itself() -> None:
    x, _ = sample(40, 2)
    doubled = np.concatenate([x, x])
    head = np.zeros(80)
    chosen = Learner().choose(doubled, head, 40, boldness=1.0)
    assert sorted(place % 40 for place in chosen) == list(range(40))


def test_rounds_move_the_order_and_the_gain_shrinks() -> None:
    x, y = sample(400, 3)
    learner, head = Learner(), np.zeros(400)
    gains = []
    for start in range(0, 96, 16):
        batch = slice(start, start + 16)
        gains.append(learner.gain(x[200:], head[200:], 0))
        learner.learn(x[batch], head[batch], np.exp(-y[batch]))
    order = learner.log_speeds(x[200:], head[200:])
    assert np.corrcoef(order, y[200:])[0, 1] > 0.8
    best = x[np.argsort(-y[:96])[:4]]
    assert learner.gain(best, np.zeros(4), 0) < 0.1 < gains[1] <= gains[0]


def test_trees_judge_a_measured_candidate_without_its_own_measurement() -> None:
    x, y = sample(160, 8)
    head, lucky = np.zeros(160), y.copy()
    lucky[5] = y.max() + 3
    others = GrownTrees(x[:80], head[:80], y[:80]).mean(x[80:], head[80:])
    assert np.corrcoef(others, y[80:])[0, 1] > 0.8
    assert np.corrcoef(left_out_means(x, head, y), y)[0, 1] > 0.8
    assert left_out_means(x, head, lucky)[5] < y.max() < GrownTrees(x, head, lucky).mean(x[5:6], head[:1])[0]


def test_a_leader_that_was_fast_by_chance_is_learnt_anew() -> None:
    features, speed = sample(120, seed=4)
    secs, measured = np.exp(-speed), np.arange(60)
    lucky = np.where(measured == 7, secs[:60].min() / 3, secs[:60])
    learner, fair = Learner(), Learner()
    for part in np.split(measured, 3):
        learner.learn(features[part], np.zeros(len(part)), lucky[part])
    fair.learn(features[:60], np.zeros(60), secs[:60])
    rest, head = features[60:], np.zeros(60)
    hidden = learner.gain(rest, head, seed=0)
    learner.retime(secs[:60])
    assert learner.best == fair.best
    np.testing.assert_allclose(learner.log_speeds(rest, head), fair.log_speeds(rest, head))
    assert learner.gain(rest, head, seed=0) == pytest.approx(fair.gain(rest, head, seed=0)) != hidden
    Learner().retime(np.zeros(0))


def test_the_guard_keeps_the_heads_order_where_learning_harms() -> None:
    learner = Learner()
    # The head is right, and features say nothing.
    x, _ = sample(48, 4)
    _, y = sample(48, 5)
    learner.learn(x[:8], y[:8], np.exp(-y[:8]))
    assert not np.array_equal(learner.log_speeds(x, y), y)
    assert learner.is_trusted, "of a handful nothing is judged"
    learner.learn(x[8:32], y[8:32], np.exp(-y[8:32]))
    assert np.array_equal(learner.log_speeds(x[32:], y[32:]), y[32:])
    assert not learner.is_trusted
    # Of further candidates the head is wrong.
    x, y = sample(64, 7)
    learner.learn(x, -y, np.exp(-y))
    assert not np.array_equal(learner.log_speeds(x, -y), -y)
    assert learner.is_trusted


def test_the_guard_sees_what_the_head_is_wrong_about_though_rounds_are_narrow() -> None:
    """The head orders each round's neighbours, and is wrong about where the fast ones are."""
    random_ = np.random.default_rng(6)
    learner = Learner()
    place = np.linspace(-2, 2, 6)
    x = random_.normal(size=(6, 8, 12)).astype(np.float32) * 0.05
    x[..., 0] += place[:, None]
    inside = random_.normal(size=(6, 8)) * 0.02
    speed, head = place[:, None] + inside, -place[:, None] + inside
    for one in range(6):
        learner.learn(x[one], head[one], np.exp(-speed[one]))
    flat = x.reshape(48, 12), head.ravel()
    assert int(np.argmax(learner.log_speeds(*flat))) // 8 == 5
    assert learner.is_trusted
