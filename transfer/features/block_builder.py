"""A feature block of more candidates than would fit in memory as traces.

Candidates come a few at a time, as a table or a log is read, and only their rows stay. Called by
`transfer.data.dataset`; knows nothing of records or latencies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import Candidate, Workload, WorkloadId
from transfer.arrays import Ints, Singles
from transfer.errors import TraceError
from transfer.features.blocks import FeatureBlock, PublishedLayout, published_features
from transfer.features.extractor import Extractor, workload_vector
from transfer.features.slots import StepTable
from transfer.language.primitives import Primitive

#: Candidates whose features are extracted at a time.
_CHUNK = 4096
#: Numbers in the steps of so many at most: those of strangers may have thousands each.
_CHUNK_NUMBERS = 2_000_000
#: Columns put in order at a time; a copy of that many is the extra memory that ordering takes.
_COLUMNS = 8


class BlockBuilder:
    """Collects candidates; `finish` gives their block.

    Args:
        extractor: Reads and summarises them; its own table of steps is left alone.
        layout: Of the published features that the block is to hold too; None for none.
    """

    def __init__(self, extractor: Extractor, layout: PublishedLayout | None = None) -> None:
        spec = extractor.spec
        self._extractor, self._layout = extractor, layout
        self._table = StepTable()
        self._pending: list[tuple[Workload, tuple[Primitive, ...]]] = []
        self._pending_numbers = 0
        self._vectors: dict[WorkloadId, tuple[int, Singles]] = {}
        #: Why candidates of a workload cannot be taken; empty where they can.
        self._faults: dict[WorkloadId, str] = {}
        self._steps = _Rows(np.int32, spec.max_steps)
        self._workloads = _Rows(np.int32, 1)
        self._summary = _Rows(np.float32, len(spec.summary_names))
        self._published = None if layout is None else _Rows(np.float32, layout.steps * layout.width)

    def add(self, workload: Workload, candidate: Candidate) -> None:
        """Take one more candidate.

        Raises:
            TraceError: The trace is not a schedule of its dialect, or the workload has numbers that nothing
                can have; the candidate is not taken then.
            TransferError: The dialect has no reader.
        """
        self._check(workload)
        sequence = self._extractor.read(candidate, workload)
        steps = self._extractor.crop(sequence)
        self._pending.append((workload, steps))
        if self._layout is not None and self._published is not None:
            # Of the whole sequence: it is cut off otherwise than ours.
            self._published.append(published_features([sequence], self._layout).reshape(1, -1))
        self._pending_numbers += sum(len(step.numbers) for step in steps)
        if len(self._pending) >= _CHUNK or self._pending_numbers >= _CHUNK_NUMBERS:
            self._extract()

    def _check(self, workload: Workload) -> None:
        """Refuse a workload of a stranger that says of itself whatever its types allow.

        Raises:
            TraceError: It has no vector, or no weight.
        """
        fault = self._faults.get(workload.workload_id)
        if fault is None:
            fault = ""
            try:
                workload_vector(workload)
                float(workload.weight)
            except (ArithmeticError, TypeError, ValueError) as error:
                why = f"{type(error).__name__}: {str(error)[:200]}"
                fault = f"workload {workload.workload_id} says of itself what cannot be ({why})"
            self._faults[workload.workload_id] = fault
        if fault:
            raise TraceError(fault)

    def finish(self, order: Ints) -> FeatureBlock:
        """The block; the builder is used up.

        Args:
            order: (N,) number of the candidate, as added, of each row of the block.
        """
        self._extract()
        categories, numbers = self._table.rows()
        published = None
        if self._layout is not None and self._published is not None:
            published = self._published.ordered(order).reshape(-1, self._layout.steps, self._layout.width)
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
            published=published,
        )

    def _extract(self) -> None:
        """Make rows of what is pending."""
        if not self._pending:
            return
        workloads = [workload for workload, _ in self._pending]
        sequences = [sequence for _, sequence in self._pending]
        steps, summary = self._extractor.encode(workloads, sequences, self._table)
        self._steps.append(steps)
        self._summary.append(summary)
        self._workloads.append(
            np.array([[self._workload_row(workload)] for workload in workloads], dtype=np.int32)
        )
        self._pending.clear()
        self._pending_numbers = 0

    def _workload_row(self, workload: Workload) -> int:
        row_and_vector = self._vectors.get(workload.workload_id)
        if row_and_vector is None:
            row_and_vector = len(self._vectors), workload_vector(workload)
            self._vectors[workload.workload_id] = row_and_vector
        return row_and_vector[0]


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

    def ordered(self, order: Ints) -> NDArray[Any]:
        """The rows in this order, which names each once; the rows given before are used up."""
        array = self._array
        self._array = np.zeros((0, array.shape[1]), dtype=array.dtype)
        array.resize((self._used, array.shape[1]), refcheck=False)
        for first in range(0, array.shape[1], _COLUMNS):
            columns = slice(first, first + _COLUMNS)
            array[:, columns] = array[order, columns]
        return array
