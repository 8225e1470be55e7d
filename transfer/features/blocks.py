"""Features of many candidates, kept small: rows of shared tables instead of one dense array for each.

Most steps of a million candidates are the same few thousand, and most workload vectors the same few hundred.
So a block keeps each distinct step and workload once, and for each candidate the row numbers: about 0.6 KB
instead of 4.4 KB, and dense arrays are made for one batch at a time. Made by `transfer.features.extractor`,
read by every model; knows nothing of schedules, records or latencies.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots; T distinct
steps, W distinct workloads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.arrays import Groups, Ints, Mask, Singles

#: Rows looked at in one go where a whole block is checked.
_CHUNK = 65536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureBlock:
    """Features of N candidates. The properties make dense arrays: ask them of batches, not of millions."""

    #: (N, L) rows of the two step tables; 0 is padding.
    steps: Groups
    #: (T, C) indexes into the vocabularies; row 0 is all 0.
    step_categories: NDArray[np.int16]
    #: (T, F) numbers; row 0 is all 0.
    step_numbers: Singles
    #: (N,) rows of `workload_vectors`.
    workload_rows: Groups
    #: (W, V) one vector a workload.
    workload_vectors: Singles
    #: (N, S) derived numbers of each whole candidate.
    summary: Singles
    #: (N, L', E) features of published TLP, L' and E those of its layout; None where no model wants them, for
    #: they take four times as much as all else.
    published: Singles | None = None

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.steps)

    @property
    def categories(self) -> NDArray[np.int16]:
        """(N, L, C) indexes into the vocabularies; 0 at padding steps."""
        return self.step_categories[self.steps]

    @property
    def numbers(self) -> Singles:
        """(N, L, F) numbers; 0 at padding steps."""
        return self.step_numbers[self.steps]

    @property
    def mask(self) -> Mask:
        """(N, L) True at real steps."""
        return np.asarray(self.steps > 0)

    @property
    def workload(self) -> Singles:
        """(N, V) the workload of each candidate."""
        return self.workload_vectors[self.workload_rows]

    def take(self, rows: NDArray[Any]) -> FeatureBlock:
        """Features of some rows (indexes or mask), in the order given; the tables are shared."""
        return replace(
            self,
            steps=self.steps[rows],
            workload_rows=self.workload_rows[rows],
            summary=self.summary[rows],
            published=None if self.published is None else self.published[rows],
        )

    def step_counts(self) -> Ints:
        """(T,) how often each row of the step tables occurs; 0 for padding."""
        counts = np.zeros(len(self.step_numbers), dtype=np.int64)
        for start in range(0, len(self), _CHUNK):
            counts += np.bincount(self.steps[start : start + _CHUNK].ravel(), minlength=len(counts))
        counts[0] = 0
        return counts

    def not_finite(self) -> tuple[str, ...]:
        """Which of `numbers`, `workload` and `summary` hold NaN or infinity; only what rows use counts."""
        names = []
        if not np.isfinite(self.step_numbers[self.step_counts() > 0]).all():
            names.append("numbers")
        if not np.isfinite(self.workload_vectors[np.unique(self.workload_rows)]).all():
            names.append("workload")
        if not all(
            np.isfinite(self.summary[start : start + _CHUNK]).all() for start in range(0, len(self), _CHUNK)
        ):
            names.append("summary")
        return tuple(names)
