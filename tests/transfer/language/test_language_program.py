from __future__ import annotations

import pytest

from tests.program_fixtures import nrm_module, shared_nest_module
from transfer.language.program import program_stages


def test_stages_come_in_program_order_with_their_loops() -> None:
    summed, rooted = program_stages(nrm_module(2, 64))
    assert (summed.name, summed.extents, summed.reductions) == ("C", (2, 64, 64), (False, True, True))
    assert (rooted.name, rooted.extents, rooted.at, rooted.axes) == ("D", (2,), None, 1)
    assert summed.writes == rooted.reads


def test_loops_around_several_blocks_belong_to_the_first() -> None:
    first, second, last = program_stages(shared_nest_module())
    assert (first.extents, first.at) == ((4, 8), None)
    assert (second.extents, second.reductions, second.at, second.axes) == ((3,), (True,), (0, 1), 3)
    assert (last.extents, last.at, last.axes) == ((), None, 0)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"nodes":[]}', '{"dialect":"ansor","key":["a",1]}']
)
def test_other_json_tells_nothing(text: str) -> None:
    assert program_stages(text) == ()
