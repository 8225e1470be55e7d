"""The published features of a dataset's candidates, in the order of its rows.

A `Dataset` holds our features only; TLP reads cropped raw integers. Called where a dataset is made for the
comparison; `transfer.baselines.tlp` takes the array. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from agents.records import Candidate
from transfer.data.dataset import Dataset
from transfer.errors import DatasetError
from transfer.features.published_features import PublishedLayout, published_features
from transfer.language.primitives import Primitive

#: Sequences turned into arrays at once.
_CHUNK = 4096


def published_rows(
    dataset: Dataset,
    candidates: Iterable[Candidate],
    read: Callable[[Candidate], Sequence[Primitive]],
    layout: PublishedLayout,
) -> NDArray[np.float32]:
    """Published features of every row of a dataset.

    Args:
        dataset: Gives the order.
        candidates: At least the candidates of the dataset, in any order.
        read: Turns a candidate into primitives, e.g. `Extractor.read`.
        layout: `CPU_LAYOUT` or `GPU_LAYOUT`.

    Returns:
        (N, L, E) array.

    Raises:
        DatasetError: A candidate of the dataset is not given.
    """
    row_of = {candidate_id: row for row, candidate_id in enumerate(dataset.candidate_ids)}
    out = np.empty((len(dataset), layout.steps, layout.width), dtype=np.float32)
    rows: list[int] = []
    sequences: list[Sequence[Primitive]] = []
    for candidate in candidates:
        row = row_of.pop(candidate.candidate_id, None)
        if row is None:
            continue
        rows.append(row)
        sequences.append(read(candidate))
        if len(rows) == _CHUNK:
            out[rows] = published_features(sequences, layout)
            rows, sequences = [], []
    if rows:
        out[rows] = published_features(sequences, layout)
    if row_of:
        raise DatasetError(
            f"{len(row_of)} candidates of the dataset are not among those given, first: {min(row_of)}; "
            "give the candidates of every record that the dataset was built from"
        )
    return out
