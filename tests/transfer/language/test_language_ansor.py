from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.ansor_agreement import Agreement, agreement, axis_extents
from tests.log_fixtures import ANSOR_LOGS
from transfer.errors import TraceError
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import (
    ANNOTATIONS,
    MAX_STEPS,
    TAGS,
    check_steps,
    check_text,
    is_well_formed,
    main_stage_flops,
)
from transfer.language.budget import MAX_TEXT
from transfer.language.primitives import CREATED, Kind, Primitive

#: A matrix product 512 x 256 x 128 on a CPU, its result cached and copied out by tiles.
CACHED: list[list[Any]] = [
    ["CHW", 2, "local"],
    ["SP", 2, 0, 512, [1, 8, 4], 1],
    ["SP", 2, 4, 256, [1, 16, 8], 1],
    ["SP", 2, 8, 128, [16], 1],
    ["RE", 2, [0, 4, 1, 5, 8, 2, 6, 9, 3, 7]],
    ["FSP", 3, 0, 1, 2],
    ["FSP", 3, 3, 2, 1],
    ["RE", 3, [0, 3, 1, 4, 2]],
    ["CA", 2, 3, 1],
    ["FU", 3, [0, 1]],
    ["AN", 3, 0, 3],
    ["PR", 2, 0, "auto_unroll_max_step$512"],
    ["AN", 2, 9, 2],
]
#: The same product on a GPU: blocks, threads, tiles in shared memory that all threads fetch.
GPU: list[list[Any]] = [
    ["SP", 2, 0, 512, [1, 16, 2, 1], 1],
    ["SP", 2, 5, 256, [2, 8, 1, 4], 1],
    ["SP", 2, 10, 128, [4, 2], 1],
    ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
    ["CHR", 1, "shared", [2]],
    ["CA", 2, 3, 6],
    ["FU", 2, [0, 1]],
    ["SP", 2, 0, 96, [2], 1],
    ["AN", 2, 1, 2],
    ["FFSP", 2, 0, [1, 0], 1, 1],
    ["AN", 2, 1, 6],
]


def read(steps: list[Any]) -> tuple[Primitive, ...]:
    reader = AnsorReader()
    sequence = reader.read(json.dumps(steps))
    assert not reader.unknown
    return sequence


def one(*steps: Any) -> Primitive:
    return read(list(steps))[-1]


def test_a_cached_matrix_product_is_read_step_by_step() -> None:
    tiled, copy = ("", "tiled"), ("", "write_cache")
    assert read(CACHED) == (
        Primitive(Kind.CHW, (0,), (*tiled, "local"), 2),
        Primitive(Kind.SP, (0, 512, 16, 1, 8, 4), (*tiled, "spatial"), 2, (0,)),
        Primitive(Kind.SP, (1, 256, 2, 1, 16, 8), (*tiled, "spatial"), 2, (4,)),
        Primitive(Kind.SP, (2, 128, 8, 16), (*tiled, "reduction"), 2, (8,)),
        Primitive(Kind.RE, (10,), (*tiled, ""), 2, (0, 4, 1, 5, 8, 2, 6, 9, 3, 7)),
        # The first factor of what it follows, then all the others together; then all of them together.
        Primitive(Kind.FSP, (0, 512, 16, 1, 32), (*copy, "spatial"), CREATED, (0,), (2,)),
        Primitive(Kind.FSP, (1, 256, 2, 128), (*copy, "spatial"), CREATED, (3,), (2,)),
        Primitive(Kind.RE, (5,), (*copy, ""), CREATED, (0, 3, 1, 4, 2)),
        # 16 * 2 tiles around the product, 32 * 128 results in each.
        Primitive(Kind.CA, (1, 32, 4096), (*tiled, ""), 2, (1,), (CREATED,)),
        Primitive(Kind.FU, (2, 32), (*copy, ""), CREATED, (0, 1)),
        Primitive(Kind.AN, (-1, 32), (*copy, "parallel"), CREATED, (0,)),
        Primitive(Kind.PR, (512,), (*tiled, "auto_unroll_max_step"), 2, (0,)),
        Primitive(Kind.AN, (1, 8), (*tiled, "vectorize"), 2, (9,)),
    )


def test_threads_that_fetch_together_get_their_real_number() -> None:
    *_, read_cache, placed, fused, vector_split, vector, threads_split, threads = read(GPU)
    assert read_cache == Primitive(Kind.CHR, (-1,), ("", "tiled", "shared"), 1, (), (2,))
    # Position 6 of the reordered nest is the outer reduction; all tiles of the result lie around it.
    assert placed.stage == CREATED
    assert placed.targets == (2,)
    assert placed.numbers == (6, (512 // 2) * (256 // 4) * 16, 4 * 2 * 2 * 1 * 1 * 4)
    assert fused.numbers == (2, 0)
    # The extent is kept as recorded; what follows from it is not trusted.
    assert vector_split.numbers == (-1, 96, 0, 2)
    assert vector.numbers == (-1, 2)
    # Level 1 of both tilings: 8 * 16 threads.
    assert threads_split == Primitive(Kind.FFSP, (-1, 0, 0, 128), ("", "read_cache", ""), CREATED, (0,), (2,))
    assert threads.numbers == (-1, 128)


@pytest.mark.parametrize(
    ("count", "lengths"),
    [(1, (2 * 3 * 5,)), (2, (2, 3 * 5)), (3, (2, 3, 5)), (4, (2, 3, 5, 1))],
)
def test_a_split_that_follows_takes_the_first_factors_and_the_product_of_the_rest(
    count: int, lengths: tuple[int, ...]
) -> None:
    found = one(["SP", 0, 0, 60, [2, 3, 5], 1], ["FSP", 1, 0, 0, count])
    assert found.numbers == (0, 60, 2, *lengths)
    assert found.targets == (0,)


def test_a_reduction_across_threads_shares_threads_and_no_extent() -> None:
    # As Ansor writes for a dense layer: the reduction (axis 2) takes its threads from another stage's axis 1.
    steps = read([["SP", 4, 1, 1000, [40], 1], ["FSP", 2, 2, 0, 1]])
    assert steps[1].numbers == (2, 0, 0, 40)


@pytest.mark.parametrize(
    ("level", "flag", "factors"), [(0, 1, (5, 6)), (1, 1, (2, 20)), (0, 0, (6, 5)), (1, 0, (20, 2))]
)
def test_a_split_that_follows_a_fused_loop_multiplies_one_level(
    level: int, flag: int, factors: tuple[int, int]
) -> None:
    splits = [["SP", 0, 0, 60, [2, 4, 1], 1], ["SP", 0, 4, 60, [3, 5, 1], 1]]
    fused = [["SP", 1, 0, 15, [1], 1], ["SP", 1, 2, 2, [1], 1], ["FU", 1, [0, 1, 2]]]
    found = one(*splits, *fused, ["FFSP", 1, 0, [1, 0], level, flag])
    assert found.numbers == (-1, 30, *factors)


def test_factors_outer_to_inner_may_be_written_either_way() -> None:
    assert one(["SP", 0, 0, 100, [4, 5], 1]).numbers == (0, 100, 5, 4, 5)
    assert one(["SP", 0, 0, 100, [4, 5], 0]).numbers == (0, 100, 4, 5, 5)
    assert one(["SP", 0, 0, 10, [4], 1]).numbers == (0, 10, 3, 4)
    assert one(["SP", 0, 0, 0, [4], 1]).numbers == (0, 0, 0, 4)


def test_early_versions_are_read_alike() -> None:
    now = read([["SP", 0, 0, 64, [4, 2, 2], 1], ["SP", 1, 0, 9, [3], 1], ["FFSP", 1, 0, [0], 0, 1]])
    assert read([["SP", 0, 0, 64, [4, 2, 2]], ["SP", 1, 0, 9, [3], True], ["FFSP", 1, 0, [0], 0]]) == now


def test_positions_of_stages_become_stable_numbers() -> None:
    steps = read(
        [
            ["CI", 4],
            ["CHW", 2, "local"],  # 2 computes, its copy-out stands at 3, the old 3 at 4
            ["CI", 5],
            ["CHR", 1, "shared", [2]],  # the cache stands at 2, the computing stage at 3
            ["CI", 3],
            ["CI", 2],
            ["CI", 4],
            ["RF", 3, 0, 0],  # the partial result stands at 3, the final one at 4
            ["CI", 3],
            ["CI", 4],
            ["CI", 0],
        ]
    )
    assert [step.stage for step in steps] == [
        *(4, 2, 4, 1, 2, CREATED + 1, CREATED, 2, CREATED + 2, 2, 0),
    ]
    assert steps[3].targets == (2,)
    assert [step.names[1] for step in steps[4:]] == [
        *("other", "read_cache", "write_cache", "other", "rfactor", "other", "other"),
    ]


def test_a_factored_reduction_starts_two_new_nests() -> None:
    # Loops: row, column, reduction of 9 in 3 * 3.
    steps = [["SP", 1, 2, 9, [3], 1], ["RF", 1, 3, 2]]
    assert read(steps)[-1].numbers == (2, 2, 3)
    partial = one(*steps, ["AN", 1, 2, 0])
    assert (partial.stage, partial.numbers) == (CREATED, (2, 3))
    assert one(*steps, ["AN", 1, 3, 0]).numbers == (3, 3)
    assert one(*steps, ["AN", 2, 2, 0]).numbers == (2, 3)


def test_a_stage_in_the_loops_of_its_follower_keeps_the_extents_that_are_needed_there() -> None:
    steps = read([*CACHED[:9], *[["AN", 2, place, 0] for place in range(10)]])
    # i0 j0 i1 j1 k0 i2 j2 k1 i3 j3: the tile of 32 * 128 results covers i1.. of 32 and j0.. of 128.
    assert [step.numbers for step in steps[9:]] == [
        *[(0, 1), (1, 1), (0, 1), (1, 1), (2, 8), (0, 8), (1, 16), (2, 16), (0, 4), (1, 8)],
    ]


def test_numbers_of_pragmas_stay_numbers() -> None:
    assert one(["PR", 0, 2, "auto_unroll_max_step$64"]).numbers == (64,)
    plain = one(["PR", 0, 2, "debug_skip_region"])
    assert (plain.numbers, plain.names[2]) == ((), "debug_skip_region")
    assert one(["PR", 0, 2, "tensor_core$a"]).names[2] == "tensor_core$a"


def test_all_annotations_have_names() -> None:
    words = [one(["AN", 0, 0, number]).names[2] for number in range(12)]
    assert words == list(ANNOTATIONS)
    assert ANNOTATIONS[5:9] == ("blockIdx.x", "threadIdx.x", "blockIdx.y", "threadIdx.y")


def test_remaining_kinds() -> None:
    assert one(["SA", 3, 1, 32, 8]) == Primitive(Kind.SA, (1, 32, 8), ("", "other", ""), 3, (1,))
    assert one(["CR", 3]) == Primitive(Kind.CR, (), ("", "other", ""), 3)
    assert one(["FU", 3, []]).numbers == (0, 1)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (["XY", 1, 2], "XY"),
        (["SP", 2, 0, 512, "four", 1], "SP: malformed"),
        (["SP", 2, 0, 512], "SP: malformed"),
        (["SP", 2, -1, 512, [4], 1], "SP: malformed"),
        (["SP", 2, 0, 512, [], 1], "SP: malformed"),
        (["SP", 2, 0, 512, [2**70], 1], "SP: malformed"),
        (["SP", True, 0, 512, [4], 1], "SP: malformed"),
        (["CI", 10**6], "CI: malformed"),
        (["AN", 2, 0, 3.0], "AN: malformed"),
        (["AN", 2, 0, 12], "AN: no such annotation"),
        (["FU", 2, [0, 2]], "FU: loops are not consecutive"),
        (["RE", 2, [0, 0, 1]], "RE: not a permutation of the loops"),
        (["FSP", 3, 0, 0, 1], "FSP: no split at the step it follows"),
        (["FSP", 3, 0, 1, 9], "FSP: more levels than the split has"),
        (["FFSP", 3, 0, [1], 5, 1], "FFSP: no such level"),
        (["FFSP", 3, 0, [], 0, 1], "FFSP: no such level"),
        ([], "not a step"),
        ("SP", "not a step"),
        ([["SP"]], "not a step"),
    ],
)
def test_a_step_that_makes_no_sense_is_unknown_and_shifts_nothing(step: Any, reason: str) -> None:
    reader = AnsorReader()
    before = [["CI", 5], ["SP", 2, 0, 512, [1, 8, 4], 1]]
    after = [["SP", 2, 4, 256, [1, 16, 8], 1], ["FSP", 3, 0, 1, 1]]
    steps = reader.read(json.dumps([*before, step, *after]))
    assert reader.unknown == Counter({reason: 1})
    assert steps[2] == Primitive(Kind.UNK)
    assert (*steps[:2], *steps[3:]) == read([*before, *after])


@pytest.mark.parametrize("text", ["", "{}", "[", "null", "[" * 100_000, '"SP"', "[" + " " * MAX_TEXT + "]"])
def test_what_is_no_list_of_steps_is_one_clear_error(text: str) -> None:
    with pytest.raises(TraceError, match="Ansor trace"):
        AnsorReader().read(text)


def test_too_many_steps_are_refused() -> None:
    assert len(read([["CI", 0]] * MAX_STEPS)) == MAX_STEPS
    with pytest.raises(TraceError, match="at most 512"):
        AnsorReader().read(json.dumps([["CI", 0]] * (MAX_STEPS + 1)))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (CACHED, ""),
        (GPU, ""),
        ([], ""),
        ([["NEW", 1, [2]]], ""),
        (None, "steps are not a list"),
        ({}, "steps are not a list"),
        ([["CI", 0]] * (MAX_STEPS + 1), "too many steps"),
        ([[]], "a step is not a list that begins with a tag"),
        ([None], "a step is not a list that begins with a tag"),
        (["SP"], "a step is not a list that begins with a tag"),
        ([[["SP"], 1]], "a step is not a list that begins with a tag"),
        ([["SP", 2, 0, 512, [1, "8"], 1]], "malformed SP step"),
        ([["SP", 2, 0, 512, [1, True], 1]], "malformed SP step"),
        ([["CI"]], "malformed CI step"),
    ],
)
def test_the_check_of_importers_names_what_is_wrong(value: Any, reason: str) -> None:
    assert check_steps(value) == reason


def test_canonical_text_is_recognised() -> None:
    for steps in (CACHED, GPU, [], [["SA", 1, 2, 3, 4], ["CR", 1], ["RF", 1, 2, 3]]):
        assert check_text(json.dumps(steps, separators=(",", ":")))
    for text in ('[["CI",-1]]', '[["CI",1000]]', '[["CI",1],]', '[["XY",1]]', '[["SP",1,0,8,[],1]]', "[[]]"):
        assert not check_text(text)


def test_the_tiling_of_the_main_stage_tells_its_work() -> None:
    assert main_stage_flops(CACHED) == 2 * 512 * 256 * 128
    # Later splits of fused loops or pieces, and other stages, do not count.
    assert main_stage_flops(GPU) == 2 * 512 * 256 * 128
    assert main_stage_flops([["FU", 2, [0, 1]], ["SP", 2, 0, 4096, [64], 1]]) == 0.0
    assert main_stage_flops([["SP", 2, 0, 0, [1, 2, 3], 1]]) == 0.0
    assert main_stage_flops([]) == 0.0


def test_records_of_one_workload_determine_each_other() -> None:
    assert axis_extents(read(CACHED)) == {2: (512, 256, 128)}
    text = json.dumps(CACHED)
    first = agreement([text])
    assert (first.determined[Kind.SP], first.undetermined[Kind.SP]) == (0, 3)
    second = agreement([text, text])
    assert (second.determined[Kind.SP], second.undetermined[Kind.SP]) == (3, 3)
    assert not second.mismatched
    other = [CACHED[0], ["SP", 2, 0, 500, [1, 5, 4], 1], *CACHED[2:]]
    third = agreement([text, json.dumps(other)])
    assert third.mismatched[Kind.SP] >= 1
    assert third.examples[0][1].expected == 512
    assert third.examples[0][1].got == 500


numbers = st.integers(-2, 12) | st.sampled_from([64, 999, 1000, 2**63, 2**80, 0.5, True, None])
fields = numbers | st.lists(numbers, max_size=5) | st.sampled_from(["local", "shared", "a$5", "", "$"])
wild_steps = st.lists(
    st.tuples(st.sampled_from([*sorted(TAGS), "XX", "", 3]), st.lists(fields, max_size=6)).map(
        lambda pair: [pair[0], *pair[1]]
    )
    | fields,
    max_size=12,
)
small = st.integers(0, 6)
lists = st.lists(small, max_size=5)
tame_step = st.one_of(
    *(st.tuples(st.just(tag), *shape) for tag, shape in {
        "AN": (small, small, st.integers(0, 12)),
        "FU": (small, st.tuples(small, small).map(lambda pair: list(range(min(pair), max(pair) + 1)))),
        "PR": (small, small, st.sampled_from(["auto_unroll_max_step$16", "b", "$", "c$-1"])),
        "RE": (small, st.permutations(range(4)).map(list)),
        "SP": (small, small, st.integers(0, 100), st.lists(small, min_size=1, max_size=4), st.integers(0, 1)),
        "FSP": (small, small, small, small),
        "FFSP": (small, small, lists, small, st.integers(0, 1)),
        "SA": (small, small, small, small),
        "CA": (small, small, small),
        "CI": (small,),
        "CR": (small,),
        "CHR": (small, st.just("shared"), lists),
        "CHW": (small, st.just("local")),
        "RF": (small, small, small),
    }.items())
).map(list)  # fmt: skip
tame_steps = st.lists(tame_step, max_size=14)


@given(wild_steps)
@example([["CHR", 0, "shared", []], ["CA", 1, 1, 0]])
def test_no_value_crashes_reader_check_or_interpreter(steps: list[Any]) -> None:
    text = json.dumps(steps)
    reader = AnsorReader()
    sequence = reader.read(text)
    assert len(sequence) == len(steps)
    assert sum(reader.unknown.values()) == sum(step.kind is Kind.UNK for step in sequence)
    assert all(type(number) is int for step in sequence for number in step.numbers)
    reason = check_steps(steps)
    if all(map(is_well_formed, steps)):
        assert reason == ""
    main_stage_flops([step for step in steps if isinstance(step, list)])
    agreement([text], Agreement())


@given(tame_steps)
def test_steps_that_hang_together_anyhow_are_read(steps: list[Any]) -> None:
    text = json.dumps(steps, separators=(",", ":"))
    assert all(map(is_well_formed, steps))
    assert check_text(text)
    assert check_steps(steps) == ""
    reader = AnsorReader()
    assert reader.read(text) == reader.read(json.dumps(steps))
    agreement([text, text])


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 40))
def test_mutated_text_gives_steps_or_one_error(junk: bytes, start: int, cut: int) -> None:
    text = json.dumps(GPU)
    mutated = text[:start] + junk.decode("latin-1") + text[start + cut :]
    reader = AnsorReader()
    try:
        sequence = reader.read(mutated)
    except TraceError:
        return
    assert check_steps(json.loads(mutated)) == "" or reader.unknown
    assert len(sequence) == len(json.loads(mutated))


def logged_steps() -> dict[str, list[str]]:
    """Text of the steps of every Ansor record, by workload key."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ANSOR_LOGS.rglob("*")):
        if not any(word in path.name for word in (".json", ".log")) or "ms" in path.parts:
            continue
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for line in lines:
                try:
                    record = json.loads(line)
                    key, steps = record["i"][0][0], record["i"][1][1]
                except (ValueError, KeyError, TypeError, IndexError):
                    continue
                found[key].append(json.dumps(steps, separators=(",", ":")))
    return found


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ANSOR_LOGS.exists(), reason="the published logs do not lie beside the checkout")
def test_published_records_agree_with_the_interpreter() -> None:
    counts = Agreement()
    for traces in logged_steps().values():
        assert all(map(check_text, traces))
        agreement(traces, counts)
    assert not counts.unknown
    assert counts.traces > 35_000
    assert not counts.mismatched, counts.examples[:3]
    # What is left are first records of a workload and splits of loops that bound inference sizes.
    assert counts.determined[Kind.SP] > 4 * counts.undetermined[Kind.SP]
