from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agents.records import WorkloadId, canonical_json
from tests.language_fixtures import step_of
from tests.log_fixtures import ANSOR_LOGS
from tests.program_fixtures import nrm_module, program_workload, shared_nest_module
from tests.table_fixtures import rows
from tests.transfer.language.interpreted_loops import Loop, LoopNest
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import CREATED, Kind, Primitive
from transfer.language.program import program_stages


def step(
    kind: Kind,
    *numbers: int,
    stage: int = 0,
    loops: tuple[int, ...] = (),
    targets: tuple[int, ...] = (),
    detail: str = "",
) -> Primitive:
    return Primitive(kind, numbers, ("", "", detail), stage, loops, targets)


def split(position: int, extent: int, *factors: int, stage: int = 0) -> Primitive:
    return step(Kind.SP, 0, extent, *factors, stage=stage, loops=(position,))


def fuse(*loops: int, stage: int = 0) -> Primitive:
    return step(Kind.FU, len(loops), 0, stage=stage, loops=loops)


def compute_at(stage: int, target: int, position: int) -> Primitive:
    return step(Kind.CA, position, 0, 0, stage=stage, loops=(position,), targets=(target,))


def run(nest: LoopNest, *steps: Primitive) -> LoopNest:
    for one in steps:
        nest.apply(one)
    return nest


def extents(nest: LoopNest, stage: int = 0) -> list[int]:
    return [loop.extent for loop in nest.stages[stage].loops]


def test_a_tiled_product_keeps_its_axes() -> None:
    order = step(Kind.RE, 4, loops=(0, 2, 1, 3))
    nest = run(LoopNest({0: (128, 64)}), split(0, 128, 32, 4), split(2, 64, 8, 8), order)
    assert [(loop.extent, loop.axis) for loop in nest.path(0)] == [(32, 0), (8, 1), (4, 0), (8, 1)]
    assert nest.mismatches == []
    assert nest.determined == {Kind.SP: 2, Kind.RE: 1}


@pytest.mark.parametrize(
    ("initial", "made", "expected"),
    [
        # An open factor takes what remains.
        (100, split(0, 0, 0, 32), [4, 32]),
        (0, split(0, 100, 0, 10, 5), [2, 10, 5]),
        (0, split(0, 0, 0, 32), [0, 32]),
        # Factors above the extent are a guarded split.
        (100, split(0, 0, 4, 32), [4, 32]),
    ],
)
def test_a_split_fills_its_loop(initial: int, made: Primitive, expected: list[int]) -> None:
    nest = run(LoopNest({0: (initial,)}), made)
    assert extents(nest) == expected
    assert nest.mismatches == []
    assert (Kind.SP in nest.inferred) is (expected[0] == 0)


#: A step that contradicts the loops of 128 and 64; what is wrong with it, what it must be, and what it is.
CONTRADICTIONS = """
    SP 0 127 127 1 | | 0 | 0 -> extent: 128 127
    SP 0 128 16 4 | | 0 | 0  -> product of factors: 128 64
    SP 0 8 4 2 | | 0 | 2     -> position: 2 2
    SP 0 8 4 2 | | 0 | -1    -> position: 2 -1
    FU 2 0 | | 0 | 0 2       -> loops that follow each other: 2 3
    FU 2 0 | | 0 | 1 2       -> position: 2 2
    FU 2 100 | | 0 | 0 1     -> extent: 8192 100
    RE 2 | | 0 | 0 0         -> a permutation: 2 1
    RE 1 | | 0 | 0           -> loops to reorder: 2 1
    AN 0 0 | unroll | 0 | 7  -> position: 2 7
    CA 1 0 0 | | 0 | 1 | 0   -> a target outside of the stage: 0 0
"""


@pytest.mark.parametrize(("bad", "contradiction"), rows(CONTRADICTIONS))
def test_contradictions_are_noted(bad: str, contradiction: str) -> None:
    nest = run(LoopNest({0: (128, 64)}), step(Kind.AN, -1, 0), step_of(bad))
    [found] = nest.mismatches
    assert (found.step, found.kind) == (1, step_of(bad).kind)
    assert f"{found.what}: {found.expected} {found.got}" == contradiction


def test_a_stage_of_unknown_loops_learns_them_from_its_steps() -> None:
    nest = run(LoopNest(), split(1, 64, 8, 8), split(0, 128, 32, 4), fuse(0, 1))
    assert extents(nest) == [128, 8, 8]
    assert not nest.stages[0].complete
    run(nest, step(Kind.RE, 4, loops=(3, 0, 1, 2)))
    assert extents(nest) == [0, 128, 8, 8]
    assert nest.stages[0].complete
    assert run(nest, split(4, 2, 2, 1)).mismatches[0].what == "position"


def test_what_stands_in_a_nest_moves_along() -> None:
    nest = LoopNest({0: (8, 6, 4), 1: (8, 6), 2: (4,)})
    run(nest, compute_at(1, 0, 1), compute_at(2, 1, 0))
    assert nest.stages[1].at == (0, 1)
    run(nest, split(0, 8, 2, 4))
    assert nest.stages[1].at == (0, 2)
    run(nest, split(2, 6, 3, 2))
    assert nest.stages[1].at == (0, 3)
    run(nest, fuse(2, 3), fuse(0, 1))
    assert nest.stages[1].at == (0, 1)
    run(nest, step(Kind.UNIT_LOOP, loops=(0,)))
    assert nest.stages[1].at == (0, 2)
    assert [loop.extent for loop in nest.path(2)] == [1, 8, 6, 0, 0]
    assert [loop.inferred for loop in nest.path(2)] == [False, False, False, True, True]


def test_compute_at_makes_loops_anew_or_keeps_them_by_dialect() -> None:
    steps = (split(0, 8, 4, 2, stage=1), compute_at(1, 0, 0))
    assert len(run(LoopNest({0: (8,), 1: (8, 6)}), *steps).stages[1].loops) == 3
    anew = run(LoopNest({0: (8,), 1: (8, 6)}, fresh_loops=True), *steps)
    assert anew.stages[1].loops == [Loop(0, 0, "", True), Loop(0, 1, "", True)]
    anew.supply(1, (1, 6))
    run(anew, fuse(0, 1, stage=1))
    assert anew.stages[1].loops == [Loop(6, -1, "", True)]
    anew.supply(1, (1, 6))
    assert anew.mismatches[-1].what == "loops supplied"
    # What a step says of an inferred loop is determined all the same.
    run(anew, split(0, 0, 0, 2, stage=1))
    assert [(loop.extent, loop.inferred) for loop in anew.stages[1].loops] == [(3, True), (2, False)]


def test_annotations_that_say_how_a_loop_runs_are_kept() -> None:
    nest = run(
        LoopNest({0: (8, 4)}),
        step(Kind.AN, 0, 8, loops=(0,), detail="parallel"),
        step(Kind.AN, 1, 4, loops=(1,), detail="software_pipeline_stage"),
        step(Kind.PR, 16, loops=(1,), detail="auto_unroll_max_step"),
    )
    assert [loop.annotation for loop in nest.path(0)] == ["parallel", ""]
    run(nest, step(Kind.AN, 0, 8, loops=(0,), detail="none"))
    assert nest.path(0)[0].annotation == ""


def test_created_stages_count_from_a_number_of_their_own() -> None:
    nest = run(LoopNest({0: (8,)}), step(Kind.CHW, 0), step(Kind.CHR, 0), step(Kind.RF, 0, 1, loops=(0,)))
    assert sorted(nest.stages) == [0, CREATED, CREATED + 1, CREATED + 2]
    assert [nest.stages[CREATED + place].role for place in range(3)] == [
        "write_cache",
        "read_cache",
        "rfactor",
    ]


def test_a_factored_reduction_leaves_spatial_loops_and_the_factored_one() -> None:
    factor = step(Kind.RF, -1, 1, 0, loops=(2,))
    nest = run(LoopNest.of_program(program_stages(nrm_module())), fuse(1, 2), split(1, 0, 2048, 32), factor)
    assert extents(nest, CREATED) == [1, 2048, 32]
    assert extents(nest) == [1, 32]
    # Ansor's stages do not say which loops are reductions; its factored axis comes behind the spatial ones.
    ansor = run(LoopNest({0: (1, 65536)}), split(1, 65536, 2048, 32), factor)
    assert extents(ansor, CREATED) == [1, 32, 2048]
    assert extents(ansor) == [1, 32]


def test_nests_of_several_blocks_share_their_loops() -> None:
    nest = LoopNest.of_program(program_stages(shared_nest_module()))
    assert [[loop.extent for loop in nest.path(number)] for number in range(3)] == [[4, 8], [4, 8, 3], []]


def test_an_opaque_step_ends_what_is_known() -> None:
    nest = run(LoopNest({0: (8,), 1: (4,)}), step(Kind.UNK, 3), split(0, 7, 7, 1), split(0, 4, 2, 2, stage=1))
    assert nest.stages[0].lost
    assert nest.mismatches == []
    assert extents(nest, 1) == [2, 2]
    assert nest.inferred == {Kind.UNK: 1, Kind.SP: 1}


def _factorisations(extent: int) -> st.SearchStrategy[tuple[int, ...]]:
    divisors = [one for one in range(1, extent + 1) if extent % one == 0]
    return st.sampled_from(divisors).map(lambda one: (extent // one, one))


@given(st.data(), st.lists(st.sampled_from([1, 2, 3, 4, 6, 12, 16]), min_size=1, max_size=4))
def test_splits_fusions_and_reorders_keep_the_iterations(data: st.DataObject, initial: list[int]) -> None:
    nest = LoopNest({0: initial, 1: (5,)})
    run(nest, compute_at(1, 0, data.draw(st.integers(0, len(initial) - 1))))
    for _ in range(data.draw(st.integers(0, 8))):
        loops = nest.stages[0].loops
        kind = data.draw(st.sampled_from([Kind.SP, Kind.FU, Kind.RE]))
        place = data.draw(st.integers(0, len(loops) - 1))
        if kind is Kind.SP:
            extent = loops[place].extent
            made = split(place, extent, *data.draw(_factorisations(extent)))
        elif kind is Kind.FU:
            made = fuse(*range(place, data.draw(st.integers(place, len(loops) - 1)) + 1))
        else:
            order = tuple(data.draw(st.permutations(range(len(loops)))))
            made = step(Kind.RE, len(order), loops=order)
        nest.apply(made)
    assert nest.mismatches == []
    assert math.prod(extents(nest)) == math.prod(initial)
    at = nest.stages[1].at
    assert at is not None
    assert len(nest.path(1)) == at[1] + 2
    assert nest.inferred == {Kind.CA: 1}


KINDS = st.sampled_from(list(Kind))
SMALL = st.integers(-2, 5)


@given(
    st.lists(
        st.builds(
            Primitive,
            KINDS,
            st.lists(st.integers(-3, 2**40), max_size=5).map(tuple),
            st.just(("b", "", "unroll")),
            st.sampled_from([-1, 0, 1, CREATED, CREATED + 1]),
            st.lists(SMALL, max_size=4).map(tuple),
            st.lists(st.sampled_from([-1, 0, 1, CREATED]), max_size=2).map(tuple),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_any_steps_leave_a_nest_that_can_be_read(steps: list[Any], fresh: bool) -> None:
    nest = run(LoopNest({0: (8, 4)}, fresh_loops=fresh), *steps)
    assert sum(nest.determined.values()) + sum(nest.inferred.values()) == len(steps)
    for number in list(nest.stages):
        assert all(loop.extent >= 0 for loop in nest.path(number))


LOG = ANSOR_LOGS / "results" / "ms" / "meta_cuda_a100_resnet34_10k"


@pytest.mark.data
@pytest.mark.skipif(
    not LOG.is_dir(), reason="the logs of other people's devices do not lie beside the checkout"
)
def test_traces_of_an_a100_read_without_unknowns_or_contradictions() -> None:
    with gzip.open(LOG / "database_workload.json.gz", "rt") as lines:
        texts = [base64.b64decode(json.loads(line)[1])[8:].decode() for line in lines]
    programs = [program_stages(text) for text in texts]
    assert all(programs)
    reader = MetaScheduleReader()
    workloads = [
        replace(program_workload(text), workload_id=WorkloadId(f"{number:016x}"))
        for number, text in enumerate(texts)
    ]
    splits = 0
    with gzip.open(LOG / "database_tuning_record.json.gz", "rt") as lines:
        for line in itertools.islice(lines, 0, None, 40):
            index, (trace, *_) = json.loads(line)
            nest = LoopNest.of_program(programs[index])
            for one in reader.read(canonical_json(trace), workloads[index]):
                assert one.loops or one.kind not in (Kind.SP, Kind.FU, Kind.RE, Kind.CA)
                nest.apply(one)
            assert nest.mismatches == []
            splits += nest.determined[Kind.SP]
    assert reader.unknown == {}
    assert splits > 1000
