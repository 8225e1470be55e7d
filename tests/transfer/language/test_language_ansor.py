from __future__ import annotations

import json

import pytest

from tests.dataset_fixtures import NRM_TRACE, gmm_trace
from tests.language_fixtures import as_lines, columns, step_of
from tests.table_fixtures import rows
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import (
    check_steps,
    is_well_formed,
    main_stage_flops,
)
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind
from transfer.language.to_ansor import to_ansor_steps

SCHEDULES = {
    # A matrix product 512 x 256 x 128 on a CPU, its result cached and copied out by tiles of 32 x 128; the
    # product keeps the extents that are needed there.
    "cached": """
    ["CHW", 2, "local"]                       -> CHW 0 | tiled local | 2
    ["SP", 2, 0, 512, [1, 8, 4], 1]           -> SP 0 512 16 1 8 4 | tiled spatial | 2 | 0
    ["SP", 2, 4, 256, [1, 16, 8], 1]          -> SP 1 256 2 1 16 8 | tiled spatial | 2 | 4
    ["SP", 2, 8, 128, [16], 1]                -> SP 2 128 8 16 | tiled reduction | 2 | 8
    ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]] -> RE 10 | tiled | 2 | 0 4 1 5 8 2 6 9 3 7
    ["FSP", 3, 0, 1, 2]                       -> FSP 0 512 16 1 32 | write_cache spatial | 1000 | 0 | 2
    ["FSP", 3, 3, 2, 1]                       -> FSP 1 256 2 128 | write_cache spatial | 1000 | 3 | 2
    ["RE", 3, [0, 3, 1, 4, 2]]                -> RE 5 | write_cache | 1000 | 0 3 1 4 2
    ["CA", 2, 3, 1]                           -> CA 1 32 4096 | tiled | 2 | 1 | 1000
    ["FU", 3, [0, 1]]                         -> FU 2 32 | write_cache | 1000 | 0 1
    ["AN", 3, 0, 3]                           -> AN -1 32 | write_cache parallel | 1000 | 0
    ["PR", 2, 0, "auto_unroll_max_step$512"]  -> PR 512 | tiled auto_unroll_max_step | 2 | 0
    ["AN", 2, 9, 2]                           -> AN 1 8 | tiled vectorize | 2 | 9
    ["AN", 2, 0, 0]                           -> AN 0 1 | tiled none | 2 | 0
    ["AN", 2, 3, 0]                           -> AN 1 1 | tiled none | 2 | 3
    ["AN", 2, 4, 0]                           -> AN 2 8 | tiled none | 2 | 4
    ["AN", 2, 5, 0]                           -> AN 0 8 | tiled none | 2 | 5
""",
    # The same product on a GPU: blocks, threads, tiles in shared memory that all threads fetch. An extent is
    # kept as recorded, and what follows from it is not trusted. Level 1 of both tilings: 8 * 16 threads.
    "gpu": """
    ["SP", 2, 0, 512, [1, 16, 2, 1], 1]                   -> SP 0 512 16 1 16 2 1 | tiled spatial | 2 | 0
    ["SP", 2, 5, 256, [2, 8, 1, 4], 1]                    -> SP 1 256 4 2 8 1 4 | tiled spatial | 2 | 5
    ["SP", 2, 10, 128, [4, 2], 1]                         -> SP 2 128 16 4 2 | tiled reduction | 2 | 10
    ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]] -> RE 13 | tiled | 2 | 0 5 1 6 2 7 10 11 3 8 12 4 9
    ["CHR", 1, "shared", [2]]                             -> CHR -1 | tiled shared | 1 | | 2
    ["CA", 2, 3, 6]                                       -> CA 6 262144 64 | read_cache | 1000 | 6 | 2
    ["FU", 2, [0, 1]]                                     -> FU 2 0 | read_cache | 1000 | 0 1
    ["SP", 2, 0, 96, [2], 1]                              -> SP -1 96 0 2 | read_cache | 1000 | 0
    ["AN", 2, 1, 2]                                       -> AN -1 2 | read_cache vectorize | 1000 | 1
    ["FFSP", 2, 0, [1, 0], 1, 1]                          -> FFSP -1 0 0 128 | read_cache | 1000 | 0 | 2
    ["AN", 2, 1, 6]                                       -> AN -1 128 | read_cache threadIdx.x | 1000 | 1
""",
    # The first factors, and the product of the rest.
    "follows a split": """
    ["SP", 0, 0, 60, [2, 3, 5], 1] -> SP 0 60 2 2 3 5 | tiled spatial | 0 | 0
    ["FSP", 1, 0, 0, 1]            -> FSP 0 60 2 30 | other spatial | 1 | 0 | 0
    ["FSP", 2, 0, 0, 2]            -> FSP 0 60 2 2 15 | other spatial | 2 | 0 | 0
    ["FSP", 3, 0, 0, 3]            -> FSP 0 60 2 2 3 5 | other spatial | 3 | 0 | 0
    ["FSP", 4, 0, 0, 4]            -> FSP 0 60 2 2 3 5 1 | other spatial | 4 | 0 | 0
""",
    # As Ansor writes for a dense layer: threads are shared with another axis, and no extent.
    "reduction across threads": """
    ["SP", 4, 1, 1000, [40], 1] -> SP 1 1000 25 40 | other | 4 | 1
    ["FSP", 2, 2, 0, 1]         -> FSP 2 0 0 40 | other | 2 | 2 | 4
""",
    # One level of both tilings is multiplied; the flag says whether it is inner.
    "follows fused loops": """
    ["SP", 0, 0, 60, [2, 4, 1], 1] -> SP 0 60 8 2 4 1 | tiled spatial | 0 | 0
    ["SP", 0, 4, 60, [3, 5, 1], 1] -> SP 1 60 4 3 5 1 | tiled spatial | 0 | 4
    ["SP", 1, 0, 15, [1], 1]       -> SP 0 15 15 1 | other | 1 | 0
    ["SP", 1, 2, 2, [1], 1]        -> SP 1 2 2 1 | other | 1 | 2
    ["FU", 1, [0, 1, 2]]           -> FU 3 30 | other | 1 | 0 1 2
    ["FFSP", 1, 0, [1, 0], 0, 1]   -> FFSP -1 30 5 6 | other | 1 | 0 | 0
    ["FFSP", 2, 0, [1, 0], 1, 1]   -> FFSP 0 0 0 20 | other | 2 | 0 | 0
    ["FFSP", 3, 0, [1, 0], 0, 0]   -> FFSP 0 0 6 0 | other | 3 | 0 | 0
    ["FFSP", 1, 0, [1, 0], 1, 0]   -> FFSP -1 5 20 1 | other | 1 | 0 | 0
""",
    "both orders of factors": """
    ["SP", 0, 0, 100, [4, 5], 1] -> SP 0 100 5 4 5 | other | 0 | 0
    ["SP", 1, 0, 100, [4, 5], 0] -> SP 0 100 4 5 5 | other | 1 | 0
    ["SP", 2, 0, 10, [4], 1]     -> SP 0 10 3 4 | other | 2 | 0
    ["SP", 3, 0, 0, [4], 1]      -> SP 0 0 0 4 | other | 3 | 0
""",
    "early versions": """
    ["SP", 0, 0, 64, [4, 2, 2]] -> SP 0 64 4 4 2 2 | tiled spatial | 0 | 0
    ["SP", 1, 0, 9, [3], true]  -> SP 0 9 3 3 | other | 1 | 0
    ["FFSP", 1, 0, [0], 0]      -> FFSP 0 3 1 4 | other | 1 | 0 | 0
""",
    # A cache write moves the copy-out behind the stage, a cache read the cache before it.
    "positions of stages": """
    ["CI", 4]                 -> CI | other | 4
    ["CHW", 2, "local"]       -> CHW 0 | other local | 2
    ["CI", 5]                 -> CI | other | 4
    ["CHR", 1, "shared", [2]] -> CHR -1 | other shared | 1 | | 2
    ["CI", 3]                 -> CI | other | 2
    ["CI", 2]                 -> CI | read_cache | 1001
    ["CI", 4]                 -> CI | write_cache | 1000
    ["RF", 3, 0, 0]           -> RF 0 0 0 | other | 2 | 0
    ["CI", 3]                 -> CI | rfactor | 1002
    ["CI", 4]                 -> CI | other | 2
    ["CI", 0]                 -> CI | other | 0
""",
    # Loops: row, column, reduction of 9 in 3 * 3; then the partial result, and the final one.
    "factored reduction": """
    ["SP", 1, 2, 9, [3], 1] -> SP 2 9 3 3 | other | 1 | 2
    ["RF", 1, 3, 2]         -> RF 2 2 3 | other | 1 | 3
    ["AN", 1, 2, 0]         -> AN 2 3 | rfactor none | 1000 | 2
    ["AN", 1, 3, 0]         -> AN 3 3 | rfactor none | 1000 | 3
    ["AN", 2, 2, 0]         -> AN 2 3 | other none | 1 | 2
""",
    "names": """
    ["PR", 0, 2, "auto_unroll_max_step$64"] -> PR 64 | other auto_unroll_max_step | 0 | 2
    ["PR", 0, 2, "debug_skip_region"]       -> PR | other debug_skip_region | 0 | 2
    ["PR", 0, 2, "tensor_core$a"]           -> PR | other tensor_core$a | 0 | 2
    ["SA", 3, 1, 32, 8]                     -> SA 1 32 8 | other | 3 | 1
    ["CR", 3]                               -> CR | other | 3
    ["FU", 3, []]                           -> FU 0 1 | other | 3
""",
    "annotations": """
    ["AN", 0, 0, 0]   -> AN 0 0 | other none | 0 | 0
    ["AN", 0, 0, 1]   -> AN 0 0 | other unroll | 0 | 0
    ["AN", 0, 0, 2]   -> AN 0 0 | other vectorize | 0 | 0
    ["AN", 0, 0, 3]   -> AN 0 0 | other parallel | 0 | 0
    ["AN", 0, 0, 4]   -> AN 0 0 | other vthread | 0 | 0
    ["AN", 0, 0, 5]   -> AN 0 0 | other blockIdx.x | 0 | 0
    ["AN", 0, 0, 6]   -> AN 0 0 | other threadIdx.x | 0 | 0
    ["AN", 0, 0, 7]   -> AN 0 0 | other blockIdx.y | 0 | 0
    ["AN", 0, 0, 8]   -> AN 0 0 | other threadIdx.y | 0 | 0
    ["AN", 0, 0, 9]   -> AN 0 0 | other blockIdx.z | 0 | 0
    ["AN", 0, 0, 10]  -> AN 0 0 | other threadIdx.z | 0 | 0
    ["AN", 0, 0, 11]  -> AN 0 0 | other tensorize | 0 | 0
""",
}


#: Steps that make no sense, and what is counted for each.
SENSELESS = """
    ["XY", 1, 2]                    -> XY
    ["SP", 2, 0, 512, "four", 1]    -> SP: malformed
    ["SP", 2, 0, 512]               -> SP: malformed
    ["SP", 2, -1, 512, [4], 1]      -> SP: malformed
    ["SP", 2, 0, 512, [], 1]        -> SP: malformed
    ["SP", 2, 0, 512, [1e30], 1]    -> SP: malformed
    ["SP", 2, 0, 512, [99999999999999999999], 1] -> SP: malformed
    ["SP", true, 0, 512, [4], 1]    -> SP: malformed
    ["CI", 1000000]                 -> CI: malformed
    ["AN", 2, 0, 3.0]               -> AN: malformed
    ["AN", 2, 0, 12]                -> AN: no such annotation
    ["FU", 2, [0, 2]]               -> FU: loops are not consecutive
    ["RE", 2, [0, 0, 1]]            -> RE: not a permutation of the loops
    ["FSP", 3, 0, 0, 1]             -> FSP: no split at the step it follows
    ["FSP", 3, 0, 1, 9]             -> FSP: more levels than the split has
    ["FFSP", 3, 0, [1], 5, 1]       -> FFSP: no such level
    ["FFSP", 3, 0, [], 0, 1]        -> FFSP: no such level
    []                              -> not a step
    "SP"                            -> not a step
    [["SP"]]                        -> not a step
"""
#: What is no list of steps, and why.
REFUSED = """
    null                             -> steps are not a list
    {}                               -> steps are not a list
    [[]]                             -> a step is not a list that begins with a tag
    [null]                           -> a step is not a list that begins with a tag
    ["SP"]                           -> a step is not a list that begins with a tag
    [[["SP"], 1]]                    -> a step is not a list that begins with a tag
    [["SP", 2, 0, 512, [1, "8"], 1]] -> malformed SP step
    [["SP", 2, 0, 512, [1, true], 1]] -> malformed SP step
    [["CI"]]                         -> malformed CI step
"""


def schedule(name: str) -> str:
    """The text of a schedule above."""
    return columns(SCHEDULES[name])[0]


@pytest.mark.parametrize("table", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_is_read_step_by_step(table: str) -> None:
    text, steps = columns(table)
    assert as_lines(AnsorReader().read(text)) == steps
    assert check_steps(json.loads(text)) == ""


@pytest.mark.parametrize(("step", "reason"), rows(SENSELESS))
def test_a_step_that_makes_no_sense_is_unknown_and_shifts_nothing(step: str, reason: str) -> None:
    before = '["CI", 5], ["SP", 2, 0, 512, [1, 8, 4], 1]'
    after = '["SP", 2, 4, 256, [1, 16, 8], 1], ["FSP", 3, 0, 1, 1]'
    steps = AnsorReader().read(f"[{before}, {step}, {after}]")
    assert as_lines(steps[2:3]) == ["UNK | | -1"]
    assert (*steps[:2], *steps[3:]) == AnsorReader().read(f"[{before}, {after}]")


@pytest.mark.parametrize(("text", "reason"), rows(REFUSED))
def test_the_check_of_importers_names_what_is_wrong(text: str, reason: str) -> None:
    assert check_steps(json.loads(text)) == reason


def test_the_tiling_of_the_main_stage_tells_its_work() -> None:
    """Later splits of fused loops or pieces, and other stages, do not count."""
    for name in ("cached", "gpu"):
        assert main_stage_flops(json.loads(schedule(name))) == 2 * 512 * 256 * 128
    for text in ('[["FU", 2, [0, 1]], ["SP", 2, 0, 4096, [64], 1]]', '[["SP", 2, 0, 0, [1, 2, 3], 1]]', "[]"):
        assert main_stage_flops(json.loads(text)) == 0


# ---- steps of any dialect become those of Ansor ----

#: Here steps are written in other ways than Ansor's of today.
OLD = {"early versions", "both orders of factors"}


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - OLD))
def test_ansors_own_steps_come_back_as_they_were(name: str) -> None:
    assert to_ansor_steps(AnsorReader().read(schedule(name))) == json.loads(schedule(name))


def test_a_metaschedule_candidate_becomes_ansor_steps() -> None:
    candidate = MetaScheduleReader().read(gmm_trace())
    steps = to_ansor_steps(candidate)
    assert (
        "\n".join(map(json.dumps, steps))
        == """\
["SP", 0, 0, 2, [1, 1, 1], 1]
["SP", 0, 4, 128, [2, 1, 4], 1]
["SP", 0, 8, 64, [1, 2, 32], 1]
["SP", 0, 12, 128, [8], 1]
["RE", 0, [0, 4, 8, 1, 5, 9, 12, 2, 6, 10, 13, 3, 7, 11]]
["CHW", 0, "global"]
["CA", 1, 0, 2]
["PR", 0, 0, "auto_unroll_max_step$64"]"""
    )
    # The tiling is the same in both languages.
    here, there = (
        [(step.numbers, step.names[1:], step.loops) for step in some if step.kind is Kind.SP]
        for some in (candidate, AnsorReader().read(json.dumps(steps)))
    )
    assert here == there


def test_a_factored_reduction_of_metaschedule_is_well_formed() -> None:
    steps = to_ansor_steps(MetaScheduleReader().read(NRM_TRACE))
    assert all(map(is_well_formed, steps))
    assert [step[0] for step in steps].count("RF") == 1


#: Steps, what they become in Ansor's language, and what is left out of it.
WRITTEN = {
    # Arguments stand at 0 and 1, the reader at 2; each cache moves it by one.
    "caches of arguments get stages in front": """
        CHR 0 | Z tiled shared | 0 | | 0         -> ["CHR", 0, "shared", [2]]
        CHR 1 | Z tiled shared | 0 | | 0         -> ["CHR", 2, "shared", [3]]
        CA 3 8 8 | Z read_cache Z | 1000 | 3 | 0 -> ["CA", 1, 4, 3]
        CI | - other - | 1                       -> ["CI", 5]
    """,
    "what Ansor lacks is left out": """
        UNK                                                 -> UNK
        TZ 16 16 16 | - tiled - | 0                         -> TZ
        AN 0 4 | - tiled software_pipeline_stage | 0 | 0    -> AN software_pipeline_stage
        SP 0 8 2 4 | - tiled spatial | -1 | 0               -> SP spatial
        SP 0 8 2 4 | - tiled spatial | 0                    -> SP spatial
        CA 0 1 1 | - other - | 1007 | 0 | 0                 -> CA
        CI | - other - | 3                                  -> ["CI", 3]
    """,
    "a stage that cannot be placed keeps its number": """
        CHW 0 | - tiled local | -1 -> CHW local
        CHW 0 | - tiled local | 0  -> ["CHW", 0, "local"]
        CI | - other - | 1001      -> CI
        CI | - other - | 1000      -> ["CI", 1]
    """,
}


@pytest.mark.parametrize("table", WRITTEN.values(), ids=WRITTEN)
def test_a_step_becomes_one_of_ansor_or_is_left_out(table: str) -> None:
    steps, written = zip(*rows(table), strict=True)
    found = to_ansor_steps([step_of(step) for step in steps])
    assert [json.dumps(step) for step in found] == [line for line in written if line.startswith("[")]
