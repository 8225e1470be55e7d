from __future__ import annotations

import itertools
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import canonical_json
from tests.dataset_fixtures import (
    ENTER_POSTPROC,
    GMM_DECISIONS,
    GMM_HEAD,
    GMM_TAIL,
    NRM_TRACE,
    gmm_trace,
    gmm_workload,
)
from tests.program_fixtures import nrm_workload
from transfer.errors import TraceError
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import (
    CREATED,
    Kind,
    Primitive,
    detail_index,
    kind_index,
    role_index,
    vocabulary_hash,
)

TILED = ("Z", "tiled")
NRM = nrm_workload()
GMM_STEPS = (
    Primitive(Kind.AN, (-1, 0), (*TILED, "SSRSRS"), 0),
    # The loops of an axis follow each other until the reorder.
    Primitive(Kind.SP, (0, 2, 2, 1, 1, 1), (*TILED, "spatial"), 0, (0,)),
    Primitive(Kind.SP, (1, 128, 16, 2, 1, 4), (*TILED, "spatial"), 0, (4,)),
    Primitive(Kind.SP, (2, 64, 1, 1, 2, 32), (*TILED, "spatial"), 0, (8,)),
    Primitive(Kind.SP, (3, 128, 16, 8), (*TILED, "reduction"), 0, (12,)),
    Primitive(Kind.RE, (14,), (*TILED, ""), 0, (0, 4, 8, 1, 5, 9, 12, 2, 6, 10, 13, 3, 7, 11)),
    Primitive(Kind.CHW, (0,), (*TILED, "global"), 0),
    # At the third of the outer loops: 2 * 16 * 1 iterations around it, 2 * 2 * 32 * 4 of the result inside.
    Primitive(Kind.CA, (2, 32, 512), ("Z", "write_cache", "Z"), CREATED, (2,), (0,)),
    Primitive(Kind.AN, (-1, 16), ("root", "root", "parallel")),
    Primitive(Kind.AN, (-1, 64), ("root", "root", "vectorize")),
    Primitive(Kind.PR, (64,), ("root", "root", "unroll_explicit")),
)


def read(instructions: list[Any], decisions: list[Any]) -> tuple[Primitive, ...]:
    return MetaScheduleReader().read(json.dumps([instructions, decisions], separators=(",", ":")))


def test_a_matrix_product_is_read_step_by_step() -> None:
    assert MetaScheduleReader().read(gmm_trace()) == GMM_STEPS


@pytest.mark.parametrize(
    "tail", [[], [ENTER_POSTPROC], GMM_TAIL, [ENTER_POSTPROC, *GMM_TAIL], GMM_TAIL[:1] + GMM_TAIL[4:]]
)
def test_post_processing_makes_no_difference(tail: list[Any]) -> None:
    assert [step for step in read(GMM_HEAD + tail, GMM_DECISIONS) if step.kind is not Kind.FU][:11] == list(
        GMM_STEPS
    )
    if "Unannotate" in str(tail) or not tail or tail == [ENTER_POSTPROC]:
        assert read(GMM_HEAD + tail, GMM_DECISIONS) == GMM_STEPS


def test_decisions_of_post_processors_are_passed_over() -> None:
    late = ["SampleCategorical", [], [[1, 2], [0.5, 0.5]], ["v99"]]
    extra = [*GMM_DECISIONS, [len(GMM_HEAD) + len(GMM_TAIL), 1]]
    assert read([*GMM_HEAD, *GMM_TAIL, late], extra) == GMM_STEPS


def test_a_second_trace_of_a_design_space_takes_its_own_decisions() -> None:
    reader = MetaScheduleReader()
    reader.read(gmm_trace())
    again = reader.read(gmm_trace(j=(64, 1, 1, 1), unroll=0))
    assert again[3].numbers == (2, 64, 64, 1, 1, 1)
    assert again[-1].numbers == (0,)
    assert again == MetaScheduleReader().read(gmm_trace(j=(64, 1, 1, 1), unroll=0))


def test_design_spaces_that_share_a_beginning_are_told_apart() -> None:
    # The second lacks the last annotation, whose absence only shows at the end of the instructions.
    reader = MetaScheduleReader()
    full = reader.read(canonical_json([GMM_HEAD + GMM_TAIL, GMM_DECISIONS]))
    short = reader.read(canonical_json([GMM_HEAD[:-1] + GMM_TAIL, GMM_DECISIONS]))
    assert full[:-1] == short


def test_white_space_in_the_text_makes_no_difference() -> None:
    reader = MetaScheduleReader()
    value = json.loads(gmm_trace())
    assert reader.read(json.dumps(value)) == reader.read(json.dumps(value, indent=1)) == GMM_STEPS


def test_factored_reduction_and_sampled_locations() -> None:
    steps = MetaScheduleReader().read(NRM_TRACE)
    assert [step.kind for step in steps] == [
        Kind.FU,
        Kind.SP,
        Kind.RF,
        Kind.AN,
        Kind.AN,
        Kind.PR,
        Kind.CR,  # location -1
        Kind.CI,  # location -2
    ]
    assert steps[1].numbers == (-1, 65536, 2048, 32)
    assert steps[2].numbers == (-1, 1, 32)
    assert not [step for step in steps if step.names[2] == "random_compute_producer"]


def test_location_sampled_in_the_tiled_nest_counts_the_iterations_around_it() -> None:
    pad = ["GetSBlock", [], ["PadInput", "main"], ["b90"]]
    sample = ["SampleComputeLocation", ["b90"], [], ["l91"]]
    compute = ["ComputeAt", ["b90", "l91"], [1, -1], []]
    steps = read([*GMM_HEAD, pad, sample, compute], [*GMM_DECISIONS, [len(GMM_HEAD) + 1, 6]])
    # Loop 6 is the outer reduction loop: 2*16*1 * 1*2*1 * 16 iterations; 1*1*2 * 8 * 1*4*32 remain inside.
    assert steps[-1] == Primitive(Kind.CA, (6, 1024, 2048), ("PadInput", "other", "Z"), 1, (6,), (0,))


def test_fused_loops_multiply_their_extents() -> None:
    fuse = ["Fuse", ["l10", "l18", "l26"], [1], ["l90"]]
    bind = ["Bind", ["l90"], ["blockIdx.x"], []]
    steps = read([*GMM_HEAD, fuse, bind], GMM_DECISIONS)
    assert steps[-2] == Primitive(Kind.FU, (3, 32), (*TILED, ""), 0, (0, 1, 2))
    assert steps[-1] == Primitive(Kind.AN, (-1, 32), (*TILED, "blockIdx.x"), 0, (0,))


def test_a_reorder_of_some_loops_gives_the_whole_permutation() -> None:
    steps = read([*GMM_HEAD, ["Reorder", ["l21", "l10"], [], []]], GMM_DECISIONS)
    # After the first reorder l10 is the first of fourteen loops, l21 the last but one.
    assert steps[-1] == Primitive(Kind.RE, (2,), (*TILED, ""), 0, (12, *range(1, 12), 0, 13))


def test_loops_fetched_after_a_compute_at_belong_to_whom_they_did() -> None:
    fetch = ["GetLoops", ["b34"], [], ["l90", "l91", "l92", "l93", "l94", "l95"]]
    bind, fuse = ["Bind", ["l91"], ["blockIdx.x"], []], ["Fuse", ["l94", "l95"], [1], ["l96"]]
    steps = read([*GMM_HEAD, fetch, bind, fuse], GMM_DECISIONS)
    # The cache stands in three loops of the tiled block and has three of its own.
    assert (steps[-2].stage, steps[-2].loops, steps[-2].numbers) == (0, (1,), (1, 16))
    assert (steps[-1].stage, steps[-1].loops) == (CREATED, (1, 2))


def test_unit_loops_take_a_place() -> None:
    inside, outside = ["AddUnitLoop", ["b0"], [], ["l90"]], ["AddUnitLoop", ["l10"], [], ["l91"]]
    steps = read([*GMM_HEAD, inside, outside, ["Bind", ["l90"], ["threadIdx.x"], []]], GMM_DECISIONS)
    assert [(step.kind, step.stage, step.loops) for step in steps[-3:]] == [
        (Kind.UNIT_LOOP, 0, (14,)),
        (Kind.UNIT_LOOP, 0, (0,)),
        (Kind.AN, 0, (15,)),
    ]


def test_a_cache_read_names_its_readers() -> None:
    steps = read([*GMM_HEAD, ["CacheRead", ["b0", ["b0"]], [1, "shared"], ["b90"]]], GMM_DECISIONS)
    assert steps[-1] == Primitive(Kind.CHR, (1,), (*TILED, "shared"), 0, (), (0,))


def test_locations_decide_who_owns_a_loop() -> None:
    # NRM: C (factored: a partial result, then C) feeds D.
    reader = MetaScheduleReader()
    value = json.loads(NRM_TRACE)
    seen = {}
    for place_c, place_rf in ((-1, 1), (0, 0), (0, 1), (-2, -1), (0, 1)):
        value[1][2][1], value[1][3][1] = place_c, place_rf
        steps = reader.read(canonical_json(value), NRM)[-2:]
        seen[place_c, place_rf] = [(step.kind, step.stage, step.loops, step.targets) for step in steps]
    rf, stay = CREATED, (Kind.CR, 0, (), ())
    assert seen == {
        (-1, 1): [stay, (Kind.CA, rf, (1,), (0,))],
        # At depth 0 in C's loops stands D's loop, which C now shares; depth 1 is C's own first.
        (0, 0): [(Kind.CA, 0, (0,), (1,)), (Kind.CA, rf, (0,), (1,))],
        (0, 1): [(Kind.CA, 0, (0,), (1,)), (Kind.CA, rf, (0,), (0,))],
        (-2, -1): [(Kind.CI, 0, (), ()), (Kind.CR, rf, (), ())],
    }


def test_the_program_gives_the_extents_that_the_trace_leaves_out() -> None:
    fused = [MetaScheduleReader().read(NRM_TRACE, workload)[0] for workload in (None, NRM)]
    assert [(step.kind, step.numbers, step.loops) for step in fused] == [
        (Kind.FU, (2, 0), (1, 2)),
        (Kind.FU, (2, 65536), (1, 2)),
    ]


def test_a_workload_whose_module_says_nothing_is_as_none() -> None:
    workload = gmm_workload()
    reader = MetaScheduleReader()
    assert reader.read(gmm_trace(), workload) == reader.read(gmm_trace()) == GMM_STEPS


def test_unknown_instructions_are_kept_and_counted() -> None:
    reader = MetaScheduleReader()
    strange = ["Frobnicate", ["b0", 7, "v35"], [3, "x"], ["l90"]]
    for _ in range(2):
        steps = reader.read(canonical_json([[*GMM_HEAD, strange], GMM_DECISIONS]))
    assert steps[-1] == Primitive(Kind.UNK, (7, 64, 3), (*TILED, "x"), 0)
    assert reader.unknown == {"Frobnicate": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[[", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", r"must be \[instructions, decisions\]"),
        ("[[], [], []]", r"must be \[instructions, decisions\]"),
        ('[[["Split", []]], []]', r"must be \[kind, inputs, attributes, outputs\]"),
        ('[[["GetLoops", [], [], [1]]], []]', r"must be \[kind, inputs, attributes, outputs\]"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        MetaScheduleReader().read(text)


@pytest.mark.parametrize(
    "decisions",
    [
        [],
        GMM_DECISIONS[:-1],
        [*GMM_DECISIONS[:-1], [18, 4]],
        [*GMM_DECISIONS[:-1], [18, -1]],
        [*GMM_DECISIONS[:-1], [18, [1]]],
        [[4, [2, 1, 1]], *GMM_DECISIONS[1:]],
        [[4, 2], *GMM_DECISIONS[1:]],
        [[4, ["2", 1, 1, 1]], *GMM_DECISIONS[1:]],
        [[4, [2, 1, 1, True]], *GMM_DECISIONS[1:]],
        [[4, [2**70, 1, 1, 1]], *GMM_DECISIONS[1:]],
        [[4], *GMM_DECISIONS],
        [3, *GMM_DECISIONS],
    ],
)
@pytest.mark.parametrize("seen_before", [False, True])
def test_unusable_decisions_are_refused(decisions: list[Any], seen_before: bool) -> None:
    reader = MetaScheduleReader()
    if seen_before:
        reader.read(gmm_trace(tail=False))
        reader.check(gmm_trace(tail=False))
    for _ in range(2):  # what was found wrong once is not taken for checked
        for ask in (reader.read, reader.check):
            with pytest.raises(TraceError, match="MetaSchedule"):
                ask(canonical_json([GMM_HEAD, decisions]))


@pytest.mark.parametrize("doubles", [True, False])
def test_loops_fused_over_and_over_are_refused(doubles: bool) -> None:
    """A stranger's trace must neither fill the stack nor take for ever."""
    names = [f"l{900 + n}" if n else "l10" for n in range(3001)]
    fused = [
        ["Fuse", [loop, loop if doubles else "l11"], [1], [fresh]]
        for loop, fresh in itertools.pairwise(names)
    ]
    with pytest.raises(TraceError, match=r"more than 1024 loops into one|more work"):
        read([*GMM_HEAD, *fused, ["ComputeAt", ["b34", names[-1]], [1], []]], GMM_DECISIONS)


def test_the_error_survives_pickling() -> None:
    with pytest.raises(TraceError) as caught:
        MetaScheduleReader().read("nonsense")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


NAMES = st.sampled_from(["b0", "b1", "l2", "l3", "l10", "v6", "v35", "None", '"SSRSRS"', "x"])
ITEMS = st.one_of(NAMES, st.integers(), st.none(), st.booleans(), st.floats(), st.just([]))
INSTRUCTIONS = st.tuples(
    st.sampled_from(sorted({one[0] for one in GMM_HEAD + GMM_TAIL} | {"Bind", "RFactor", "ComputeAt", "?"})),
    st.lists(ITEMS, max_size=4),
    st.lists(st.one_of(ITEMS, st.just([1, 2]), st.just("meta_schedule.parallel")), max_size=3),
    st.lists(NAMES, max_size=4),
).map(list)
DECISIONS = st.tuples(
    st.integers(0, 12), st.one_of(st.integers(-3, 6), st.lists(st.integers(0, 64), max_size=4))
).map(list)


@given(st.lists(INSTRUCTIONS, max_size=12), st.lists(DECISIONS, max_size=6), st.integers(0, len(GMM_HEAD)))
def test_any_well_formed_trace_is_read_or_refused(
    instructions: list[Any], decisions: list[Any], known: int
) -> None:
    try:
        steps = read(GMM_HEAD[:known] + instructions, GMM_DECISIONS + decisions)
    except TraceError:
        return
    for step in steps:
        assert all(type(number) is int for number in step.numbers)
        assert len(step.names) == 3
        assert all(isinstance(name, str) for name in step.names)


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


@given(st.text(max_size=40))
def test_any_text_is_refused_with_a_trace_error(text: str) -> None:
    with pytest.raises(TraceError):
        MetaScheduleReader().read(text)


def test_words_outside_the_vocabulary_share_the_unknown_index() -> None:
    assert kind_index("nonsense") == role_index("nonsense") == detail_index("nonsense") == 1
    assert len({kind_index(kind) for kind in Kind}) == len(Kind)
    assert 0 not in {kind_index(kind) for kind in Kind}


def test_the_vocabulary_hash_changes_with_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    before = vocabulary_hash()
    assert before == vocabulary_hash()
    monkeypatch.setattr("transfer.language.primitives.DETAILS", ("", "other"))
    assert vocabulary_hash() != before
