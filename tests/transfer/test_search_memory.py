"""A search in memory: decisions drawn, mutated and crossed; populations; what is learnt on the way."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataset_fixtures import NRM_TRACE, gmm_trace, gmm_workload
from transfer.errors import TraceError
from transfer.features.extractor import Extractor
from transfer.search.decisions import DesignTable, Genes
from transfer.search.learner import Learner
from transfer.search.population import EvolutionSettings, Individual, evolve

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
    asked = []

    def score(individuals: Sequence[Individual]) -> np.ndarray:
        asked.extend(individuals)
        return inner_tiles(individuals)

    found = evolve(table, elites, score, elites, SMALL, "0")
    assert len(asked) == len(set(asked)) == len(found) > 150
    assert not set(asked) & set(elites)
    scores = inner_tiles(found)
    assert (np.diff(scores) <= 0).all()
    random_best = inner_tiles(asked[: SMALL.drawn]).max()
    assert scores[0] > random_best
    assert evolve(table, elites, inner_tiles, elites, SMALL, "0") == found


def sample(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, of which two decide, and log speeds."""
    x = np.random.default_rng(seed).normal(size=(count, 12)).astype(np.float32)
    return x, (0.5 * x[:, 0] - 0.3 * np.abs(x[:, 1])).astype(np.float64)


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
