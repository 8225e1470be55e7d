from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.model_fixtures import DENSE, assert_same_features, changed_block, make_block


def test_taking_rows_shares_the_tables() -> None:
    block = make_block(9)
    rows = np.array([4, 4, 0])
    part = block.take(rows)
    assert part.step_numbers is block.step_numbers
    for name in DENSE:
        np.testing.assert_array_equal(getattr(part, name), getattr(block, name)[rows])
    assert_same_features(block.take(np.arange(9) < 3), block.take(np.arange(3)))


def test_steps_are_counted_by_row_of_the_table() -> None:
    block = make_block(6).take(np.array([2, 2, 5]))
    counts = block.step_counts()
    assert counts[0] == 0
    assert counts.sum() == block.mask.sum()
    assert counts[block.steps[0, 0]] == 2
    assert counts[block.steps[2, 0]] == 1


def test_only_rows_in_use_must_be_finite() -> None:
    block = make_block(4)
    numbers, vectors, summary = block.numbers, block.workload, block.summary.copy()
    numbers[3, 0, 0], vectors[3, 0], summary[3, 0] = np.nan, np.inf, -np.inf
    broken = changed_block(block, numbers=numbers, workload=vectors, summary=summary)
    assert broken.not_finite() == ("numbers", "workload", "summary")
    assert broken.take(np.arange(3)).not_finite() == ()


def test_a_block_costs_little_where_steps_repeat() -> None:
    block = make_block(100)
    many = block.take(np.zeros(10_000, dtype=np.int64))
    many = replace(many, step_numbers=many.step_numbers[:8], step_categories=many.step_categories[:8])
    dense = many.numbers.nbytes + many.categories.nbytes + many.workload.nbytes + many.summary.nbytes
    assert sum(array.nbytes for array in many.arrays().values()) < dense / 2
