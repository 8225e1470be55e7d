"""A feature block of more candidates than would fit in memory as traces.

Candidates come a few at a time, as a table or a log is read, and only their rows stay. Called by
`transfer.dataset`; knows nothing of records or latencies.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import Candidate, Workload, WorkloadId
from transfer.blocks import FeatureBlock
from transfer.features import Extractor
from transfer.slots import StepTable

#: Candidates whose features are extracted at a time.
_CHUNK = 4096
#: Candidates put in order of their workloads before they are extracted, and characters of their traces: a
#: workload costs about a millisecond wherever it turns up among the candidates of a chunk.
_SORTED = 65_536
_SORTED_CHARS = 32 << 20
#: Columns put in order at a time; a copy of that many is the extra memory that ordering takes.
_COLUMNS = 8


class BlockBuilder:
    """Collects candidates; `finish` gives their block.

    Args:
        extractor: Reads and summarises them; its own table of steps is left alone.
    """

    def __init__(self, extractor: Extractor) -> None:
        spec = extractor.spec
        self._extractor = extractor
        self._table = StepTable()
        self._pending: list[tuple[Workload, Candidate]] = []
        self._chars = 0
        #: Number of the candidate, as added, of each row made.
        self._numbers = array("q")
        self._vectors: dict[WorkloadId, tuple[int, NDArray[np.float32]]] = {}
        self._steps = _Rows(np.int32, spec.max_steps)
        self._workloads = _Rows(np.int32, 1)
        self._summary = _Rows(np.float32, len(spec.summary_names))

    def add(self, workload: Workload, candidate: Candidate) -> None:
        """Take one more candidate.

        Raises:
            TraceError: One of the latest traces is not a schedule of its dialect.
            TransferError: A dialect has no reader.
        """
        self._pending.append((workload, candidate))
        self._chars += len(candidate.trace)
        if len(self._pending) >= (_SORTED if self._chars < _SORTED_CHARS else _CHUNK):
            self._extract()

    def finish(self, order: NDArray[np.int64]) -> FeatureBlock:
        """The block; the builder is used up.

        Args:
            order: (N,) number of the candidate, as added, of each row of the block.

        Raises:
            TraceError: One of the latest traces is not a schedule of its dialect.
            TransferError: A dialect has no reader.
        """
        self._extract()
        made = np.empty(len(self._numbers), dtype=np.int64)
        made[np.frombuffer(self._numbers, dtype=np.int64)] = np.arange(len(made))
        order = made[order]
        categories, numbers = self._table.rows()
        vectors = [vector for _, vector in self._vectors.values()]
        return FeatureBlock(
            steps=self._steps.ordered(order),
            step_categories=categories.copy(),
            step_numbers=numbers.copy(),
            workload_rows=self._workloads.ordered(order)[:, 0],
            workload_vectors=np.stack(vectors)
            if vectors
            else np.zeros((0, len(self._extractor.spec.workload_names)), dtype=np.float32),
            summary=self._summary.ordered(order),
        )

    def _extract(self) -> None:
        """Make rows of what is pending, workload by workload."""
        first = len(self._numbers)
        order = sorted(range(len(self._pending)), key=lambda place: self._pending[place][0].workload_id)
        for start in range(0, len(order), _CHUNK):
            places = order[start : start + _CHUNK]
            workloads = [self._pending[place][0] for place in places]
            sequences = [
                self._extractor.read(candidate, workload)
                for workload, candidate in (self._pending[place] for place in places)
            ]
            steps, summary = self._extractor.encode(workloads, sequences, self._table)
            self._steps.append(steps)
            self._summary.append(summary)
            self._workloads.append(np.array([[self._workload_row(one)] for one in workloads], dtype=np.int32))
            self._numbers.extend(first + place for place in places)
        self._pending.clear()
        self._chars = 0

    def _workload_row(self, workload: Workload) -> int:
        found = self._vectors.get(workload.workload_id)
        if found is None:
            found = len(self._vectors), self._extractor.workload_vector(workload)
            self._vectors[workload.workload_id] = found
        return found[0]


class _Rows:
    """Rows that come in parts and end as one array, without ever being in memory twice."""

    def __init__(self, dtype: Any, width: int) -> None:
        self._array = np.zeros((0, width), dtype=dtype)
        self._used = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Put rows behind the others."""
        needed = self._used + len(rows)
        if needed > len(self._array):
            # Nobody else holds the array, so the system may move it without copying.
            self._array.resize((needed + needed // 4, self._array.shape[1]), refcheck=False)
        self._array[self._used : needed] = rows
        self._used = needed

    def ordered(self, order: NDArray[np.int64]) -> NDArray[Any]:
        """The rows in this order, which names each once; the rows given before are used up."""
        array = self._array
        self._array = np.zeros((0, array.shape[1]), dtype=array.dtype)
        array.resize((self._used, array.shape[1]), refcheck=False)
        for first in range(0, array.shape[1], _COLUMNS):
            columns = slice(first, first + _COLUMNS)
            array[:, columns] = array[order, columns]
        return array
