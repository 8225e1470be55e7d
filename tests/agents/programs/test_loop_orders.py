"""The other order of outermost loops: the operand of the last loop stays."""

from __future__ import annotations

import json

import pytest

from agents.programs.design_space import DesignSpace
from agents.programs.loop_orders import reordered, stationary_order, tiled_block
from agents.programs.workloads import operator_workload
from agents.records import Family
from tests.table_fixtures import rows
from tests.tvm_fixtures import wrong_outputs

#: The spatial loops of a block and those that each operand reads, and the order of the loops.
ORDERS = """
    rows columns: rows, columns                                              -> columns rows
    batch rows columns: batch rows, batch columns                            -> batch columns rows
    image row column channel: image row column, channel                      -> channel image row column
    image row column channel: image row column channel, channel              ->
    loop: loop,                                                              ->
    rows columns: rows columns                                               ->
    rows columns: rows columns, rows                                         ->
    rows columns: rows                                                       ->
"""


@pytest.mark.parametrize(("case", "order"), rows(ORDERS))
def test_the_operand_of_the_last_loop_stays(case: str, order: str) -> None:
    loops, _, operands = case.partition(":")
    places = {name: place for place, name in enumerate(loops.split())}
    reads = [{places[name] for name in operand.split()} for operand in operands.split(",")]
    found = stationary_order(len(places), reads)
    assert found == ([places[name] for name in order.split()] or None)


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
