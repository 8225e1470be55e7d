from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given

from tests.dataset_fixtures import NRM_TRACE, gmm_trace
from tests.log_fixtures import ANSOR_LOGS
from tests.transfer.language.test_language_ansor import (
    SCHEDULES,
    logged_steps,
    schedule,
    tame_steps,
    wild_steps,
)
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import check_steps, check_text
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import CREATED, Kind, Primitive
from transfer.language.to_ansor import to_ansor_steps

#: Here steps are written in other ways than Ansor's of today.
OLD = {"early versions", "both orders of factors"}


def read(text: str) -> tuple[Primitive, ...]:
    return AnsorReader().read(text)


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - OLD))
def test_ansors_own_steps_come_back_as_they_were(name: str) -> None:
    left_out: Counter[str] = Counter()
    assert to_ansor_steps(read(schedule(name)), left_out) == json.loads(schedule(name))
    assert not left_out


def test_a_metaschedule_candidate_becomes_ansor_steps() -> None:
    left_out: Counter[str] = Counter()
    steps = to_ansor_steps(MetaScheduleReader().read(gmm_trace()), left_out)
    assert steps == [
        ["SP", 0, 0, 2, [1, 1, 1], 1],
        ["SP", 0, 4, 128, [2, 1, 4], 1],
        ["SP", 0, 8, 64, [1, 2, 32], 1],
        ["SP", 0, 12, 128, [8], 1],
        ["RE", 0, [0, 4, 8, 1, 5, 9, 12, 2, 6, 10, 13, 3, 7, 11]],
        ["CHW", 0, "global"],
        ["CA", 1, 0, 2],
        ["PR", 0, 0, "auto_unroll_max_step$64"],
    ]
    # Notes for TVM's post-processors are no steps of Ansor's.
    assert left_out == {"AN SSRSRS": 1, "AN parallel": 1, "AN vectorize": 1}
    # The tiling is the same in both languages.
    splits = [step for step in MetaScheduleReader().read(gmm_trace()) if step.kind is Kind.SP]
    again = [step for step in read(json.dumps(steps)) if step.kind is Kind.SP]
    assert [(step.numbers, step.names[1:], step.loops) for step in again] == [
        (step.numbers, step.names[1:], step.loops) for step in splits
    ]


def test_a_factored_reduction_of_metaschedule_is_well_formed() -> None:
    steps = to_ansor_steps(MetaScheduleReader().read(NRM_TRACE))
    assert check_text(json.dumps(steps, separators=(",", ":")))
    assert [step[0] for step in steps].count("RF") == 1


def test_caches_of_arguments_get_stages_in_front() -> None:
    tiled = ("Z", "tiled")
    steps = [
        Primitive(Kind.CHR, (0,), (*tiled, "shared"), 0, (), (0,)),
        Primitive(Kind.CHR, (1,), (*tiled, "shared"), 0, (), (0,)),
        Primitive(Kind.CA, (3, 8, 8), ("Z", "read_cache", "Z"), CREATED, (3,), (0,)),
        Primitive(Kind.CI, (), ("", "other", ""), 1),
    ]
    # Arguments stand at 0 and 1, the reader at 2; each cache moves it by one.
    assert to_ansor_steps(steps) == [
        ["CHR", 0, "shared", [2]],
        ["CHR", 2, "shared", [3]],
        ["CA", 1, 4, 3],
        ["CI", 5],
    ]


def test_what_ansor_lacks_is_left_out_and_counted() -> None:
    left_out: Counter[str] = Counter()
    steps = [
        Primitive(Kind.UNK),
        Primitive(Kind.TENSORIZE, (16, 16, 16), ("", "tiled", ""), 0),
        Primitive(Kind.AN, (0, 4), ("", "tiled", "software_pipeline_stage"), 0, (0,)),
        Primitive(Kind.SP, (0, 8, 2, 4), ("", "tiled", "spatial"), -1, (0,)),
        Primitive(Kind.SP, (0, 8, 2, 4), ("", "tiled", "spatial"), 0, ()),
        Primitive(Kind.CA, (0, 1, 1), ("", "other", ""), CREATED + 7, (0,), (0,)),
        Primitive(Kind.CI, (), ("", "other", ""), 3),
    ]
    assert to_ansor_steps(steps, left_out) == [["CI", 3]]
    assert left_out == {"UNK": 1, "TZ": 1, "AN software_pipeline_stage": 1, "SP spatial": 2, "CA": 1}


def test_a_stage_that_cannot_be_placed_keeps_its_number() -> None:
    steps = [
        Primitive(Kind.CHW, (0,), ("", "tiled", "local"), -1),
        Primitive(Kind.CHW, (0,), ("", "tiled", "local"), 0),
        Primitive(Kind.CI, (), ("", "other", ""), CREATED + 1),
        Primitive(Kind.CI, (), ("", "other", ""), CREATED),
    ]
    assert to_ansor_steps(steps) == [["CHW", 0, "local"], ["CI", 1]]


def same_but_for_pointers(first: Primitive, second: Primitive) -> bool:
    """Alike, a followed split having become a plain one: its source was another kind of split."""
    kinds = (first.kind, second.kind)
    if kinds in ((Kind.FSP, Kind.SP), (Kind.FFSP, Kind.SP)):
        return (first.numbers, first.stage, first.loops) == (second.numbers, second.stage, second.loops)
    return first._replace(names=("", "", "")) == second._replace(names=("", "", ""))


@given(tame_steps)
def test_what_was_read_reads_the_same_when_written_again(steps: list[Any]) -> None:
    known = [step for step in read(json.dumps(steps)) if step.kind is not Kind.UNK]
    left_out: Counter[str] = Counter()
    written = to_ansor_steps(known, left_out)
    assert check_steps(written) == ""
    assert not left_out
    again = read(json.dumps(written))
    if [step.kind for step in again] == [step.kind for step in known]:
        assert again == tuple(known)
    else:
        assert len(again) == len(known)
        assert all(map(same_but_for_pointers, known, again))


@given(wild_steps)
def test_no_sequence_crashes_the_writer(steps: list[Any]) -> None:
    written = to_ansor_steps(read(json.dumps(steps)), Counter())
    assert check_steps(written) == ""


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not ANSOR_LOGS.exists(), reason="the published logs do not lie beside the checkout")
def test_published_records_come_back_to_the_letter() -> None:
    reader = AnsorReader()
    left_out: Counter[str] = Counter()
    distinct = sorted({trace for traces in logged_steps().values() for trace in traces})
    assert len(distinct) > 30_000
    for trace in distinct[::4]:
        written = to_ansor_steps(reader.read(trace), left_out)
        assert json.dumps(written, separators=(",", ":")) == trace
    assert not left_out
