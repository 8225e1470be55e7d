from __future__ import annotations

import json

import pytest

from tests.dataset_fixtures import NRM_TRACE, gmm_trace
from tests.language_fixtures import step_of
from tests.log_fixtures import ANSOR_LOGS
from tests.table_fixtures import rows
from tests.transfer.language.test_language_ansor import (
    SCHEDULES,
    logged_steps,
    schedule,
)
from transfer.language.ansor import AnsorReader
from transfer.language.ansor_steps import check_text
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind, Primitive
from transfer.language.to_ansor import to_ansor_steps

#: Here steps are written in other ways than Ansor's of today.
OLD = {"early versions", "both orders of factors"}


def read(text: str) -> tuple[Primitive, ...]:
    return AnsorReader().read(text)


@pytest.mark.parametrize("name", sorted(SCHEDULES.keys() - OLD))
def test_ansors_own_steps_come_back_as_they_were(name: str) -> None:
    assert to_ansor_steps(read(schedule(name))) == json.loads(schedule(name))


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
        for some in (candidate, read(json.dumps(steps)))
    )
    assert here == there


def test_a_factored_reduction_of_metaschedule_is_well_formed() -> None:
    steps = to_ansor_steps(MetaScheduleReader().read(NRM_TRACE))
    assert check_text(json.dumps(steps, separators=(",", ":")))
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


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not ANSOR_LOGS.exists(), reason="the published logs do not lie beside the checkout")
def test_published_records_come_back_to_the_letter() -> None:
    reader = AnsorReader()
    distinct = sorted({trace for traces in logged_steps().values() for trace in traces})
    assert len(distinct) > 30_000
    for trace in distinct[::4]:
        written = to_ansor_steps(reader.read(trace))
        assert json.dumps(written, separators=(",", ":")) == trace
