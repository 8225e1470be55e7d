"""The other order of outermost loops: the operand of the last loop stays."""

from __future__ import annotations

import json

import pytest

from agents.programs.design_space import DesignSpace
from agents.programs.loop_orders import reordered, stationary_order, tiled_block
from agents.programs.workloads import operator_workload
from agents.records import Family
from tests.tvm_fixtures import wrong_outputs


@pytest.mark.parametrize(
    ("case", "spatial", "reads", "order"),
    [
        ("a product: rows, columns", 2, [{0}, {1}], [1, 0]),
        ("a batch of products", 3, [{0, 1}, {0, 2}], [0, 2, 1]),
        ("a convolution: image, row, column, channel", 4, [{0, 1, 2}, {3}], [3, 0, 1, 2]),
        ("a depthwise one: the image has the channel too", 4, [{0, 1, 2, 3}, {3}], None),
        ("one loop", 1, [{0}, set()], None),
        ("a sum of rows", 2, [{0, 1}], None),
        ("columns that every row has of its own", 2, [{0, 1}, {0}], None),
        ("no operand of the last loop", 2, [{0}], None),
    ],
)
def test_the_operand_of_the_last_loop_stays(
    case: str, spatial: int, reads: list[set[int]], order: list[int] | None
) -> None:
    assert stationary_order(spatial, reads) == order, case


def test_spaces_without_a_tiled_product_keep_their_order() -> None:
    assert tiled_block([]) is None
    steps = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["Annotate", ["b0", '"SSRSRS"'], ["meta_schedule.tiling_structure"], []],
    ]
    assert tiled_block(steps) == ("b0", "matmul")
    assert reordered(steps, "b0", [{0}, {1}]) is None, "nothing is split"
    assert tiled_block([*steps, steps[1]]) is None, "two tiled blocks"


@pytest.mark.tvm
@pytest.mark.filterwarnings("ignore:build is deprecated")
def test_programs_of_both_orders_are_drawn_and_right() -> None:
    product = operator_workload("GMM", (1, 64, 96, 64))
    places_of_columns = set()
    for candidate in DesignSpace(product, Family.CPU).sample(12, seed=3).candidates:
        steps, _ = json.loads(candidate.trace)
        outer = next([int(loop[1:]) for loop in step[1][:3]] for step in steps if step[0] == "Reorder")
        places_of_columns.add(outer.index(max(outer)))
        assert wrong_outputs(product, candidate.trace) == ""
    assert places_of_columns == {1, 2}
