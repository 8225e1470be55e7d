from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.model_fixtures import make_block
from transfer.features.blocks import FeatureBlock

DENSE = ("categories", "numbers", "mask", "workload", "summary")


def assert_same(first: FeatureBlock, second: FeatureBlock) -> None:
    for name in DENSE:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_dense_arrays_come_back_with_padding_cleared() -> None:
    random = np.random.default_rng(0)
    mask = np.array([[True, True, False], [True, False, False]])
    arrays = {
        "categories": random.integers(1, 5, (2, 3, 4)),
        "numbers": random.normal(size=(2, 3, 2)).astype(np.float32),
        "mask": mask,
        "workload": random.normal(size=(2, 3)).astype(np.float32),
        "summary": random.normal(size=(2, 1)).astype(np.float32),
    }
    block = FeatureBlock.from_dense(**arrays)
    np.testing.assert_array_equal(block.categories, np.where(mask[..., None], arrays["categories"], 0))
    np.testing.assert_array_equal(block.numbers, np.where(mask[..., None], arrays["numbers"], 0))
    np.testing.assert_array_equal(block.workload, arrays["workload"])
    assert block.lengths().tolist() == [2, 1]
    assert (len(block), block.categories.dtype, block.mask.dtype) == (2, np.int16, np.bool_)


def test_taking_rows_shares_the_tables() -> None:
    block = make_block(9)
    rows = np.array([4, 4, 0])
    part = block.take(rows)
    assert part.step_numbers is block.step_numbers
    for name in DENSE:
        np.testing.assert_array_equal(getattr(part, name), getattr(block, name)[rows])
    assert_same(block.take(np.arange(9) < 3), block.take(np.arange(3)))


def test_changed_arrays_replace_the_old_ones() -> None:
    block = make_block(5)
    other = block.changed(numbers=block.numbers + 1)
    np.testing.assert_array_equal(other.numbers[other.mask], block.numbers[block.mask] + 1)
    np.testing.assert_array_equal(other.categories, block.categories)


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
    broken = block.changed(numbers=numbers, workload=vectors, summary=summary)
    assert broken.not_finite() == ("numbers", "workload", "summary")
    assert broken.take(np.arange(3)).not_finite() == ()


def test_a_block_costs_little_where_steps_repeat() -> None:
    block = make_block(100)
    many = block.take(np.zeros(10_000, dtype=np.int64))
    many = replace(many, step_numbers=many.step_numbers[:8], step_categories=many.step_categories[:8])
    dense = many.numbers.nbytes + many.categories.nbytes + many.workload.nbytes + many.summary.nbytes
    assert many.nbytes < dense / 2
