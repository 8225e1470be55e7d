"""Where producers are computed: what the numbers say, and that older models score without them."""

from __future__ import annotations

import numpy as np

from tests.language_fixtures import step_of
from transfer.features.flat import LOCATION_NAMES, describe_locations
from transfer.features.slots import StepTable, laid_out
from transfer.language.primitives import Primitive


def told(*candidates: tuple[Primitive, ...]) -> dict[str, list[float]]:
    table = StepTable()
    rows = [table.row(step) for steps in candidates for step in steps]
    lengths = [len(steps) for steps in candidates]
    steps = laid_out(rows, lengths, max(lengths))
    categories, numbers = table.rows()
    columns = describe_locations(categories[steps], numbers[steps])
    return {name: column.tolist() for name, column in zip(LOCATION_NAMES, columns, strict=True)}


def steps_of(table: str) -> tuple[Primitive, ...]:
    return tuple(map(step_of, table.strip().splitlines()))


CHOSEN = """
    CI            | sum other -
    SP 0 64 8 8   | sum other -
    RF 3 3 8      | sum other -
    AN -1 16      | root other -
    CA 1 31 7     | sum write_cache -
    CA 2 63 15    | sum other -
    CR            | sum other -
    CI            | pad other -
"""


def test_producers_are_told_apart_in_the_order_of_the_steps() -> None:
    found = told(steps_of(CHOSEN), steps_of("SP 0 64 8 8 | sum tiled -"))
    first = {name.removeprefix("producer_0_"): value for name, value in found.items() if "producer_0" in name}
    assert {name: values[0] for name, values in first.items()} == {
        **{"at": 1, "root": 0, "inlined": 0},
        **{"depth": np.float32(np.log2(3)), "around": 6, "inside": 4},
    }
    assert (found["producer_1_root"][0], found["producer_2_inlined"][0]) == (1, 1)
    assert found["producer_3_at"][0] == 0
    # A tiling is told by the summary, and so is what every candidate inlines.
    assert found["split_0_extent"] == [np.float32(np.log2(65)), 0]
    assert found["rfactor_0_axis"][0] == 2
    assert found["rfactor_0_size"][0] == np.float32(np.log2(9))
    assert all(values[1] == 0 for values in found.values())


def test_two_reductions_that_swap_their_places_are_two_candidates() -> None:
    first, here, there = steps_of("""
        AN -1 16    | sum other -
        CA 1 31 7   | sum other -
        CA 3 1023 1 | sum other -
    """)
    found = told((first, here, there), (first, there, here))
    assert found["producer_0_around"] == found["producer_1_around"][::-1] == [5, 10]
