"""What `import fleet` offers to programs: stores of measurements, opened for reading.

`fleet/__init__.py` loads it at the first use, so that `import fleet` itself stays light.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import Descriptor, DeviceId, DeviceSpec, Outcome, Workload, WorkloadId
from fleet.errors import FleetError, StoreError
from fleet.interchange.export_parquet import SCHEMA, flat_batches
from fleet.interchange.export_source import Source
from fleet.store.reader import StoreReader
from fleet.store.store import Store

#: Kinds of tables that `StoreView.records` gives.
FORMS = ("arrow", "pandas", "polars")


class StoreView:
    """The measurements of a store at one version of its table: frozen, whatever is measured meanwhile.

    No lock is held, so it may be open beside a running daemon, and threads may share it. Open the store again
    to see newer records.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        return f"StoreView({str(self._reader.path)!r}, version={self.version}, records={len(self)})"

    def __len__(self) -> int:
        return self._reader.rows

    @property
    def version(self) -> int:
        """Version of the records table."""
        return self._reader.version

    @property
    def devices(self) -> dict[DeviceId, tuple[DeviceSpec, Descriptor | None]]:
        """What each device claims to be, and what was found last; None for one that was never probed."""
        return {name: (entry.spec, entry.descriptor) for name, entry in self._reader.devices().items()}

    @property
    def workloads(self) -> dict[WorkloadId, Workload]:
        """The tensor programs that records name."""
        return self._reader.workloads()

    def batches(
        self,
        *,
        devices: Collection[str] | None = None,
        workloads: Collection[str] | None = None,
        outcomes: Collection[Outcome | str] | None = None,
        counting: bool = True,
        columns: Collection[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield records in bounded memory, device by device; see `records`."""
        names = SCHEMA.names if columns is None else list(columns)
        unknown = sorted(set(names) - set(SCHEMA.names))
        if unknown:
            raise StoreError(f"records have no column {unknown[0]!r}; known: {', '.join(SCHEMA.names)}")
        outcome_names = None if outcomes is None else [str(Outcome(outcome)) for outcome in outcomes]
        for device_id in self._chosen(devices):
            for batch in flat_batches(Source(self._reader, device_id)):
                chosen = batch.filter(batch.column("counts")) if counting else batch
                for name, values in (("workload_id", workloads), ("outcome", outcome_names)):
                    if values is not None:
                        of = pa.array([str(value) for value in values], pa.string())
                        chosen = chosen.filter(pc.is_in(chosen.column(name), of))
                if chosen.num_rows:
                    yield chosen.select(names)

    def records(
        self,
        *,
        devices: Collection[str] | None = None,
        workloads: Collection[str] | None = None,
        outcomes: Collection[Outcome | str] | None = None,
        counting: bool = True,
        columns: Collection[str] | None = None,
        form: str = "arrow",
    ) -> Any:
        """Read records as one table.

        Args:
            devices: Ids of devices; all if None.
            workloads: Ids of workloads; all if None.
            outcomes: Outcomes, such as `ok`; all if None.
            counting: Only the record of each candidate that counts; else every attempt and repeat.
            columns: Names of columns; all if None.
            form: `arrow` for a `pyarrow.Table`, `pandas` or `polars` for a `DataFrame` of theirs.

        Returns:
            One row a record, with what its device and its workload are. `docs/export.md` lists the columns:
            `latency_secs` is in seconds, `run_secs` has the raw repeats.

        Raises:
            StoreError: There is no such device or column, or a file is damaged.
            FleetError: The package of the form is not installed.
            ValueError: There is no such outcome or form.
        """
        if form not in FORMS:
            raise ValueError(f"records have no form {form!r}; known: {', '.join(FORMS)}")
        matching = self.batches(
            devices=devices, workloads=workloads, outcomes=outcomes, counting=counting, columns=columns
        )
        batches = list(matching)
        names = SCHEMA.names if columns is None else list(columns)
        table = pa.Table.from_batches(batches, pa.schema([SCHEMA.field(name) for name in names]))
        if form == "arrow":
            return table
        try:
            package = import_module(form)
        except ModuleNotFoundError as error:
            raise FleetError(f"{form} is not installed; `pip install {form}`, or leave out form=") from error
        return table.to_pandas() if form == "pandas" else package.from_arrow(table)

    def _chosen(self, devices: Collection[str] | None) -> list[DeviceId]:
        device_ids = self._reader.device_ids
        unknown = sorted(set(devices or ()) - set(device_ids))
        if unknown:
            raise StoreError(
                f"device {unknown[0]!r} has no records in {self._reader.path}; it holds: "
                f"{', '.join(device_ids) or 'none'}"
            )
        return [DeviceId(name) for name in device_ids if devices is None or name in devices]


def open_store(path: str | Path) -> StoreView:
    """Open a store for reading, as it is now.

    Args:
        path: Its folder, such as `runs/store`.

    Raises:
        StoreError: There is no store, or a newer version wrote it.
    """
    return StoreView(Store.read(Path(path)))
