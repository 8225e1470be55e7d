from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import Workload, canonical_json
from tests.dataset_fixtures import (
    ENTER_POSTPROC,
    GMM_DECISIONS,
    GMM_HEAD,
    GMM_TAIL,
    NRM_TRACE,
    gmm_trace,
    gmm_workload,
)
from tests.language_fixtures import as_lines, columns
from tests.program_fixtures import nrm_workload
from tests.table_fixtures import rows
from transfer.errors import TraceError
from transfer.language.meta_schedule import MetaScheduleReader

NRM = nrm_workload()
GMM_STEPS = """
AN -1 0 | Z tiled SSRSRS | 0
SP 0 2 2 1 1 1 | Z tiled spatial | 0 | 0
SP 1 128 16 2 1 4 | Z tiled spatial | 0 | 4
SP 2 64 1 1 2 32 | Z tiled spatial | 0 | 8
SP 3 128 16 8 | Z tiled reduction | 0 | 12
RE 14 | Z tiled | 0 | 0 4 8 1 5 9 12 2 6 10 13 3 7 11
CHW 0 | Z tiled global | 0
CA 2 32 512 | Z write_cache Z | 1000 | 2 | 0
AN -1 16 | root root parallel | -1
AN -1 64 | root root vectorize | -1
PR 64 | root root unroll_explicit | -1
""".strip().splitlines()
#: Instructions behind those of the matrix product, and the steps that they become.
MORE = {
    # Loop 6 is the outer reduction loop: 2*16*1 * 1*2*1 * 16 iterations; 1*1*2 * 8 * 1*4*32 remain inside.
    "a location sampled in the tiled nest": """
        ["SampleComputeLocation", ["b34"], [], ["l91"]]
        ["GetSBlock", [], ["PadInput", "main"], ["b90"]]
        ["ComputeAt", ["b90", "l91"], [1, -1], []] -> CA 6 1024 2048 | PadInput other Z | 1 | 6 | 0
    """,
    "fused loops multiply their extents": """
        ["Fuse", ["l10", "l18", "l26"], [1], ["l90"]] -> FU 3 32 | Z tiled | 0 | 0 1 2
        ["Bind", ["l90"], ["blockIdx.x"], []]         -> AN -1 32 | Z tiled blockIdx.x | 0 | 0
    """,
    # After the first reorder l10 is the first of fourteen loops, l21 the last but one.
    "a reorder of some loops gives the whole permutation": """
        ["Reorder", ["l21", "l10"], [], []] -> RE 2 | Z tiled | 0 | 12 1 2 3 4 5 6 7 8 9 10 11 0 13
    """,
    # The cache stands in three loops of the tiled block and has three of its own.
    "loops fetched after a compute-at belong to whom they did": """
        ["GetLoops", ["b34"], [], ["l90", "l91", "l92", "l93", "l94", "l95"]]
        ["Bind", ["l91"], ["blockIdx.x"], []]  -> AN 1 16 | Z tiled blockIdx.x | 0 | 1
        ["Fuse", ["l94", "l95"], [1], ["l96"]] -> FU 2 0 | Z write_cache | 1000 | 1 2
    """,
    "unit loops take a place": """
        ["AddUnitLoop", ["b0"], [], ["l90"]]   -> AU | Z tiled | 0 | 14
        ["AddUnitLoop", ["l10"], [], ["l91"]]  -> AU | Z tiled | 0 | 0
        ["Bind", ["l90"], ["threadIdx.x"], []] -> AN -1 1 | Z tiled threadIdx.x | 0 | 15
    """,
    "a cache read names its readers": """
        ["CacheRead", ["b0", ["b0"]], [1, "shared"], ["b90"]] -> CHR 1 | Z tiled shared | 0 | | 0
    """,
}


def read(instructions: list[Any], decisions: list[Any]) -> list[str]:
    return as_lines(MetaScheduleReader().read(canonical_json([instructions, decisions])))


def test_a_matrix_product_is_read_step_by_step() -> None:
    reader, value = MetaScheduleReader(), json.loads(gmm_trace())
    assert as_lines(reader.read(gmm_trace())) == GMM_STEPS
    # Neither white space nor a module that says nothing makes a difference.
    assert as_lines(reader.read(json.dumps(value, indent=1))) == GMM_STEPS
    assert as_lines(reader.read(gmm_trace(), gmm_workload())) == GMM_STEPS


@pytest.mark.parametrize("table", MORE.values(), ids=MORE)
def test_further_instructions_are_read_in_the_nest_that_they_meet(table: str) -> None:
    instructions, steps = columns(table)
    decisions = [*GMM_DECISIONS, [len(GMM_HEAD), 6]]
    assert read(GMM_HEAD + json.loads(instructions), decisions) == GMM_STEPS + steps


@pytest.mark.parametrize("tail", [[], [ENTER_POSTPROC], GMM_TAIL, [ENTER_POSTPROC, *GMM_TAIL]])
def test_post_processing_and_its_decisions_make_no_difference(tail: list[Any]) -> None:
    late = ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v99"]]
    assert read(GMM_HEAD + tail, GMM_DECISIONS) == GMM_STEPS
    if tail:
        decisions = [*GMM_DECISIONS, [len(GMM_HEAD) + len(tail), 1]]
        assert read([*GMM_HEAD, *tail, late], decisions) == GMM_STEPS


def test_a_second_trace_of_a_design_space_takes_its_own_decisions() -> None:
    reader = MetaScheduleReader()
    reader.read(gmm_trace())
    again = as_lines(reader.read(gmm_trace(j=(64, 1, 1, 1), unroll=0)))
    assert again[3] == "SP 2 64 64 1 1 1 | Z tiled spatial | 0 | 8"
    assert again[7] == "CA 2 2048 8 | Z write_cache Z | 1000 | 2 | 0"
    assert again[-1] == "PR 0 | root root unroll_explicit | -1"


@pytest.mark.parametrize(("workload", "extent"), [(None, 0), (NRM, 65536)], ids=["alone", "with its program"])
def test_a_factored_reduction_and_sampled_locations(workload: Workload | None, extent: int) -> None:
    """The program gives the extents that the trace leaves out."""
    assert as_lines(MetaScheduleReader().read(NRM_TRACE, workload)) == [
        f"FU 2 {extent} | C other | 0 | 1 2",
        "SP -1 65536 2048 32 | C other | 0 | 1",
        "RF -1 1 32 | C other | 0 | 2",
        "AN -1 16 | root root parallel | -1",
        "AN -1 64 | root root vectorize | -1",
        "PR 64 | root root unroll_explicit | -1",
        "CR | C other | 0",  # location -1
        "CI | C rfactor | 1000",  # location -2
    ]


@pytest.mark.parametrize(
    ("places", "steps"),
    rows("""
        -1 1  -> CR | C other | 0; CA 1 32 1 | C rfactor C | 1000 | 1 | 0
        0 0   -> CA 0 1 1 | C other D | 0 | 0 | 1; CA 0 1 0 | C rfactor C | 1000 | 0 | 1
        0 1   -> CA 0 1 1 | C other D | 0 | 0 | 1; CA 1 0 0 | C rfactor C | 1000 | 0 | 0
        -2 -1 -> CI | C other | 0; CR | C rfactor | 1000
    """),
)
def test_locations_decide_who_owns_a_loop(places: str, steps: str) -> None:
    """At depth 0 in C's loops stands D's loop, which C may share; depth 1 is C's own first."""
    # NRM: C (factored: a partial result, then C) feeds D.
    reader = MetaScheduleReader()
    reader.read(NRM_TRACE, NRM)
    value = json.loads(NRM_TRACE)
    value[1][2][1], value[1][3][1] = map(int, places.split())
    for _ in range(2):
        assert as_lines(reader.read(canonical_json(value), NRM)[-2:]) == steps.split("; ")


def test_unknown_instructions_are_kept() -> None:
    reader = MetaScheduleReader()
    strange = ["Frobnicate", ["b0", 7, "v35"], [3, "x"], ["l90"]]
    for _ in range(2):
        steps = reader.read(canonical_json([[*GMM_HEAD, strange], GMM_DECISIONS]))
    assert as_lines(steps[-1:]) == ["UNK 7 64 3 | Z tiled x | 0"]


@pytest.mark.parametrize(
    ("text", "message"),
    rows(r"""
        {}                              -> must be \[instructions, decisions\]
        [[], [], []]                    -> must be \[instructions, decisions\]
        [[["Split", []]], []]           -> must be \[kind, inputs, attributes, outputs\]
        [[["GetLoops", [], [], [1]]], []] -> must be \[kind, inputs, attributes, outputs\]
    """),
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        MetaScheduleReader().read(text)


@pytest.mark.parametrize(
    ("sound", "unusable"),
    rows("""
        [18,2]     -> [18,4]
        [18,2]     -> [18,-1]
        [18,2]     -> [18,[1]]
        [18,2]     -> [18]
        [18,2]     -> 3
        ,[18,2]    ->
        [2,1,1,1]  -> [2,1,1]
        [2,1,1,1]  -> 2
        [2,1,1,1]  -> ["2",1,1,1]
        [2,1,1,1]  -> [2,1,1,true]
        [2,1,1,1]  -> [99999999999999999999,1,1,1]
    """),
)
@pytest.mark.parametrize("seen_before", [False, True])
def test_unusable_decisions_are_refused(sound: str, unusable: str, seen_before: bool) -> None:
    reader = MetaScheduleReader()
    decisions = canonical_json(GMM_DECISIONS).replace(sound, unusable)
    if seen_before:
        reader.read(gmm_trace(tail=False))
        reader.check(gmm_trace(tail=False))
    for _ in range(2):  # what was found wrong once is not taken for checked
        for ask in (reader.read, reader.check):
            with pytest.raises(TraceError, match="MetaSchedule"):
                ask(f"[{canonical_json(GMM_HEAD)},{decisions}]")


def test_loops_fused_over_and_over_are_refused() -> None:
    """A stranger's trace must neither fill the stack nor take for ever."""
    names = [f"l{900 + n}" if n else "l10" for n in range(3001)]
    fused = [["Fuse", [loop, "l11"], [1], [fresh]] for loop, fresh in itertools.pairwise(names)]
    with pytest.raises(TraceError, match=r"more than 1024 loops into one|more work"):
        read([*GMM_HEAD, *fused, ["ComputeAt", ["b34", names[-1]], [1], []]], GMM_DECISIONS)


DECISIONS = st.tuples(
    st.integers(0, 12), st.one_of(st.integers(-3, 6), st.lists(st.integers(0, 64), max_size=4))
).map(list)


@given(st.lists(st.lists(DECISIONS, max_size=4), min_size=1, max_size=6))
def test_a_check_says_of_every_trace_what_reading_says(several: list[list[Any]]) -> None:
    checker = MetaScheduleReader()
    for decisions in several:
        text = canonical_json([GMM_HEAD, GMM_DECISIONS + decisions])
        told = []
        for ask in (MetaScheduleReader().read, checker.check):
            try:
                ask(text)
                told.append("")
            except TraceError as error:
                told.append(str(error))
        assert told[0] == told[1]
