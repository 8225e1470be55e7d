from __future__ import annotations

import json

import numpy as np
import pytest

from tests.table_fixtures import rows
from transfer.features.blocks import (
    CPU_LAYOUT,
    GPU_LAYOUT,
    published_features,
    step_vector,
)
from transfer.language.ansor import AnsorReader


def one_hot(place: int) -> list[int]:
    return [int(place == slot) for slot in range(1, 12)]


#: A step; its place among the tags of the CPU's layout with the numbers behind; the same of the GPU's.
ROWS = """
    ["AN", 3, 2, 6]                 -> 3: 3 2 6             | 1: 3 2 6
    ["FU", 3, [0, 1, 2]]            -> 9: 3 0 1 2           | 8: 3 0 1 2
    ["RE", 3, [1, 0]]               -> 2: 3 1 0             | 9: 3 1 0
    ["SP", 3, 0, 512, [1, 8, 4], 1] -> 6: 3 0 512 1 8 4 1   | 7: 3 0 512 1 8 4 1
    ["FSP", 3, 0, 2, 3]             -> 10: 3 0 2 3          | 11: 3 0 2 3
    ["FFSP", 3, 0, [2, 4], 1, 1]    -> 0: 3 0 2 4 1 1       | 6: 3 0 2 4 1 1
    ["SA", 3, 0, 8, 4]              -> 0: 3 0 8 4           | 0: 3 0 8 4
    ["CA", 2, 3, 5]                 -> 8: 2 3 5             | 5: 2 3 5
    ["CI", 1]                       -> 1: 1                 | 4: 1
    ["CR", 1]                       -> 7: 1                 | 0: 1
    ["RF", 3, 4, 2]                 -> 4: 3 4 2             | 0: 3 4 2
    ["CHW", 3, "local"]             -> 5: 3 1               | 3: 3 1
    ["CHW", 3, "global"]            -> 5: 3 3               | 3: 3 3
    ["CHR", 0, "shared", [3, 4]]    -> 0: 0 0 3 4           | 2: 0 1 3 4
    ["CHR", 2, "local", [3]]        -> 0: 2 0 3             | 2: 2 0 3
    ["PR", 3, 0, "auto_unroll_max_step$0"]    -> 11: 3 0 2  | 10: 3 0 1
    ["PR", 3, 0, "auto_unroll_max_step$16"]   -> 11: 3 0 1  | 10: 3 0 2
    ["PR", 3, 0, "auto_unroll_max_step$64"]   -> 11: 3 0 4  | 10: 3 0 3
    ["PR", 3, 0, "auto_unroll_max_step$512"]  -> 11: 3 0 3  | 10: 3 0 5
    ["PR", 3, 0, "auto_unroll_max_step$1024"] -> 11: 3 0 0  | 10: 3 0 4
"""


@pytest.mark.parametrize(("step", "expected"), rows(ROWS))
def test_rows_of_single_steps_are_the_published_ones(step: str, expected: str) -> None:
    for layout, row in zip((CPU_LAYOUT, GPU_LAYOUT), expected.split("|"), strict=True):
        place, _, numbers = row.partition(":")
        assert step_vector(json.loads(step), layout) == [*one_hot(int(place)), *map(int, numbers.split())]


def test_a_schedule_is_cut_and_padded_to_the_layout() -> None:
    steps = [["SP", 0, 0, 8, [2], 1], ["AN", 0, 0, 3], *([["CI", 1]] * 60)]
    sequence = AnsorReader().read(json.dumps(steps))
    for layout, shape in ((CPU_LAYOUT, (25, 22)), (GPU_LAYOUT, (40, 20))):
        found = published_features([sequence, sequence[:2], []], layout)
        assert found.shape == (3, *shape)
        assert found.dtype == np.float32
        for place, step in enumerate(steps[: layout.steps]):
            row = step_vector(step, layout)
            assert found[0, place].tolist() == [*row, *[0] * (layout.width - len(row))]
        np.testing.assert_array_equal(found[1, :2], found[0, :2])
        assert not found[1, 2:].any()
        assert not found[2].any()


def test_numbers_of_no_program_are_cut_and_others_stay() -> None:
    steps = [["SP", 0, 0, 2**62, [2**40, 2**30], 1], ["PR", 0, 0, "auto_unroll_max_step$64"]]
    row = published_features([AnsorReader().read(json.dumps(steps))], CPU_LAYOUT)[0, 0]
    assert row.tolist() == [*one_hot(6), 0, 0, 2**31, 2**31, 2**30, 1, *[0] * 5]
