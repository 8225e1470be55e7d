"""What an export reads of one device: its entry in the store, its records, and which of them count.

The writers of the formats get one `Source` a device. It holds a flag a record in memory, never traces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from agents.records import Descriptor, DeviceId, DeviceSpec, Record, Workload, WorkloadId
from agents.trust import IMPORTED
from fleet.interchange.logs.catalog import checked_trace
from fleet.interchange.logs.json_values import Rejected, object_in
from fleet.store.catalog import DeviceEntry
from fleet.store.noise_columns import SETTLING_COLUMNS, settled_rows
from fleet.store.reader import StoreReader

#: Reason of a record that is left out since its trace is none.
NO_TRACE: Final = "its trace cannot be read"

T = TypeVar("T")


class NotHeldError(Exception):
    """A format has no word for a record; the message is the reason counted."""


class Source:
    """The records of one device in one version of a store.

    Args:
        reader: The store.
        device_id: A device that has records.
        keeps_imported: Whether records are given that came with a log.

    Attributes:
        skipped: Records that a writer left out, by reason; writers add to it.
    """

    def __init__(self, reader: StoreReader, device_id: DeviceId, *, keeps_imported: bool = True) -> None:
        self.reader = reader
        self._keeps_imported = keeps_imported
        self.device_id = device_id
        self.skipped: Counter[str] = Counter()

    @cached_property
    def entry(self) -> DeviceEntry | None:
        """The device's entry; None where the store has records of it and nothing else."""
        return self.reader.devices().get(self.device_id)

    @property
    def spec(self) -> DeviceSpec | None:
        """The device's spec, where there is an entry."""
        return self.entry.spec if self.entry else None

    @property
    def descriptor(self) -> Descriptor | None:
        """What the probe saw last; None for a device that was never probed."""
        return self.entry.descriptor if self.entry else None

    @cached_property
    def workloads(self) -> Mapping[WorkloadId, Workload]:
        """All workloads of the store."""
        return self.reader.workloads()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the device with some columns, always in the same order."""
        read_columns = columns if self._keeps_imported else list(dict.fromkeys((*columns, "origin")))
        for _, batch in self.reader.columns(read_columns, device_ids=[self.device_id]):
            if self._keeps_imported:
                yield batch
                continue
            ours = batch.filter(pc.not_equal(batch.column("origin"), IMPORTED))
            if ours.num_rows:
                yield ours.select(list(columns))

    def records(self) -> Iterator[Record]:
        """Yield the records of the device, in the same order."""
        return self.reader.records(device_id=self.device_id)

    def held(self, make: Callable[[Record], T]) -> Iterator[T]:
        """Yield what a writer makes of each record; counts those that `make` refuses (`NotHeldError`)."""
        for record in self.records():
            try:
                entry = make(record)
            except NotHeldError as reason:
                self.skipped[str(reason)] += 1
            else:
                yield entry

    def workload_of(self, record: Record) -> Workload:
        """The workload of a record.

        Raises:
            NotHeldError: The store lacks it.
        """
        if record.workload_id not in self.workloads:
            raise NotHeldError("its workload is not in the store")
        return self.workloads[record.workload_id]

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """(n,) which rows count (`fleet.store.noise.settled`): one a candidate and environment."""
        return settled_rows(self.batches(SETTLING_COLUMNS))


def has_module(workload: Workload) -> bool:
    """Whether a workload holds a TVM module; that of an imported log may name its origin instead."""
    try:
        value = json.loads(workload.module_json)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "dialect" not in value


@lru_cache(maxsize=16)
def json_object(text: str) -> Mapping[str, Any]:
    """The object in a text, such as what stands for the module of an imported workload; empty without one.

    A store may hold any text. What is given can be written again.
    """
    return object_in(text) or {}


def json_trace(record: Record, fault: Callable[[Any], str]) -> Any:
    """The trace of a record that is JSON.

    Args:
        record: Of others, maybe: then nobody has looked at its trace.
        fault: Says of a value why it is no trace of the dialect, "" where it is one.

    Raises:
        NotHeldError: It is none that its log could have held.
    """
    try:
        value = json.loads(record.trace)
        checked_trace(value)
    except (ValueError, RecursionError, Rejected):
        raise NotHeldError(NO_TRACE) from None
    if fault(value):
        raise NotHeldError(NO_TRACE)
    return value
