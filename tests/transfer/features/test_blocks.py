from __future__ import annotations

import numpy as np

from tests.model_fixtures import changed_block, make_block


def test_only_rows_in_use_must_be_finite() -> None:
    block = make_block(4)
    numbers, vectors, summary = block.numbers, block.workload, block.summary.copy()
    numbers[3, 0, 0], vectors[3, 0], summary[3, 0] = np.nan, np.inf, -np.inf
    broken = changed_block(block, numbers=numbers, workload=vectors, summary=summary)
    assert broken.not_finite() == ("numbers", "workload", "summary")
    assert broken.take(np.arange(3)).not_finite() == ()
