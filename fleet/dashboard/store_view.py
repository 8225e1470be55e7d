"""What the dashboard reads of a store: the store itself, and a summary of all devices and workloads.

The summary comes from the sums of the state file and from each device's last records. It is made again while
a page is open, in a thread that starts with a request and ends with the summary. Nothing else is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from agents.records import NOISE, DeviceId, Workload, WorkloadId
from fleet.comparison.device_rows import device_rows
from fleet.dashboard.device_timeline import NOISE_RUN_SECS, RECENT_COLUMNS, RECENT_SECS, last_noise, recent
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.state.questions import StateReader
from fleet.state.rows import Tally
from fleet.state.schema import STATE
from fleet.store.noise import READING_COLUMNS
from fleet.store.reader import StoreReader
from fleet.store.store import Store

# Lists for people: filtered, sorted and cut into pages on the server. Pure.
#
# A page always has the number of rows (`total`), the number that passes the filter (`matched`) and which of
# these it shows (`offset`, `size`). So "none", "none match" and "cut off" differ.

#: Rows of a page, unless another number is asked for, and at most.
PAGE_ROWS, MOST_ROWS = 50, 500
#: Characters of a filter, and of a name.
MOST_TEXT = 200

Row = Json
Key = Callable[[Row], Any]


class DashboardMissing(FleetError):  # noqa: N818 - a state of what was asked for, named so
    """There is no such thing to show."""


class PageError(FleetError):
    """A list was requested in an order or with a size that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    """Which part of a list, and in which order."""

    sort: Annotated[str, Field(max_length=40)] = ""
    descending: bool = False
    #: Part of a text in the row; case does not matter.
    text: Annotated[str, Field(max_length=MOST_TEXT)] = ""
    offset: int = 0
    size: int = PAGE_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """How a list may be ordered and filtered."""

    #: Sorting keys by name; the first is taken where a query names none. Rows whose key is None come last in
    #: both directions.
    keys: Mapping[str, Key]
    #: Fields that the filter looks into.
    texts: Sequence[str]
    #: Whether the first order goes down.
    is_descending: bool = False

    def page(self, rows: Sequence[Row], query: PageQuery) -> JsonDict:
        """One page: `rows`, `total`, `matched`, `offset`, `size`, `sort`, `is_descending`, `is_last`.

        Raises:
            PageError: There is no such order, or the page has no or too many rows.
        """
        sort, is_descending = query.sort, query.descending
        if not sort:
            sort, is_descending = next(iter(self.keys)), is_descending or self.is_descending
        if sort not in self.keys:
            raise PageError(f"no order {sort!r:.40}; known: {', '.join(self.keys)}")
        if not 1 <= query.size <= MOST_ROWS or query.offset < 0:
            got = f"got {query.size} from row {query.offset} on"
            raise PageError(f"a page has 1 to {MOST_ROWS} rows, from row 0 on; {got}")
        needle = query.text.casefold()
        matched = [
            row
            for row in rows
            if not needle or any(needle in str(row.get(name) or "").casefold() for name in self.texts)
        ]
        keyed = [(self.keys[sort](row), row) for row in matched]
        with_key = [pair for pair in keyed if pair[0] is not None]
        with_key.sort(key=lambda pair: pair[0], reverse=is_descending)
        ordered = [row for _, row in with_key] + [row for key, row in keyed if key is None]
        return {
            "rows": ordered[query.offset : query.offset + query.size],
            "total": len(rows),
            "matched": len(ordered),
            "offset": query.offset,
            "size": query.size,
            "sort": sort,
            "is_descending": is_descending,
            "is_last": query.offset + query.size >= len(ordered),
        }


_COMPARED = Listing(
    keys={
        "severity": lambda row: row["severity"],
        "name": lambda row: row["name"],
        "change": lambda row: abs(row["change"]),
        "pairs": lambda row: row["pairs"],
    },
    texts=("name", "kind"),
    is_descending=True,
)


def page_of_comparison(comparison: Row, query: PageQuery) -> JsonDict:
    """A comparison (`fleet.comparison.compared`) with one page of its rows.

    Changes that cannot be judged are shown too, after all others.
    """
    return {**comparison, **_COMPARED.page(comparison["rows"], query)}


_LOG = logging.getLogger(__name__)

#: Least age of a reader and of a summary before the next one, over the time that the last one took as well:
#: a busy fleet comes first.
_READER_SECS, _SUMMARY_SECS, _LEAST_WAIT = 2.0, 5.0, 4.0
#: Without a visitor for so long the summary is let go of.
_FORGET_SECS = 600.0


class WorkloadCell(NamedTuple):
    """What one device has of one workload."""

    records: int
    ok: int
    #: Latency of the fastest candidate; None if none ran.
    best_secs: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """The summary of all devices and workloads; it never changes."""

    #: `loading` until there is a first one; `failed` with a reason.
    state: str = "loading"
    reason: str = ""
    #: The last records of each device (`fleet.dashboard.device_timeline.recent`), and its last A/A run.
    devices: Mapping[str, Json]
    #: By workload and device.
    cells: Mapping[str, Mapping[str, WorkloadCell]]
    #: Facts of each workload for its page (`facts_of`).
    workloads: Mapping[str, Json]

    def progress(self) -> dict[str, str]:
        """Whether it is there, JSON-ready."""
        return {"state": self.state, "reason": self.reason}


_NOTHING = StoreSummary(devices={}, cells={}, workloads={})


def facts_of(workload: Workload) -> JsonDict:
    """The facts of a workload for its page, JSON-ready; its module is left out."""
    return {
        "name": workload.name,
        "operator": workload.operator,
        "shapes": [list(shape) for shape in workload.arg_shapes],
        "flops": workload.flops,
        "networks": ", ".join(f"{name} ({weight}x)" for name, weight in workload.networks),
    }


class DashboardStore:
    """A store as the dashboard sees it. Threads may share it.

    Args:
        path: Folder of the store.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._reader: StoreReader | None = None
        self._reader_due_at = self._due_at = 0.0
        self._summary = _NOTHING
        self._thread: threading.Thread | None = None
        self._forgetting: threading.Timer | None = None
        self._is_closed = False

    def reader(self) -> StoreReader:
        """The store as it was some seconds ago at most.

        Raises:
            StoreError: It cannot be read.
        """
        with self._lock:
            if self._reader is None or time.monotonic() >= self._reader_due_at:
                began = time.monotonic()
                self._reader = Store.read(self._path)
                self._reader_due_at = _next_at(began, _READER_SECS)
                self._forget_later()
            return self._reader

    def summary(self) -> StoreSummary:
        """The last summary; a thread makes the next one if it is due."""
        with self._lock:
            is_due = self._thread is None and time.monotonic() >= self._due_at
            if is_due and not self._is_closed:
                self._thread = threading.Thread(target=self._refresh, name="dashboard", daemon=True)
                self._thread.start()
        return self._summary

    def close(self) -> None:
        """Wait for what is read just now."""
        self._is_closed = True
        with self._lock:
            thread, timer = self._thread, self._forgetting
        if timer is not None:
            timer.cancel()
        if thread is not None:
            thread.join(5.0)

    def refresh(self) -> None:
        """Make the next summary now, of devices that have new records.

        Raises:
            FleetError: The store cannot be read.
        """
        before = self._summary
        with StateReader(self._path / STATE) as state:
            tallies, best = state.tallies(), state.best_latencies()
        reader = self.reader()
        cells: dict[str, dict[str, WorkloadCell]] = {}
        for tally in tallies:
            by_device = cells.setdefault(tally.workload_id, {})
            cell = by_device.get(tally.device_id, WorkloadCell(0, 0, None))
            records, ok = cell.records + tally.records, cell.ok + tally.ok
            best_secs = best.get((tally.workload_id, tally.device_id))
            by_device[tally.device_id] = WorkloadCell(records, ok, best_secs)
        names = [WorkloadId(name) for name in cells if name not in before.workloads]
        workloads_by_id = reader.workloads(names) if names else {}
        workloads: dict[str, Json] = dict(before.workloads)
        workloads |= {
            name: facts_of(workloads_by_id[name]) if name in workloads_by_id else {"name": name}
            for name in names
        }
        self._summary = StoreSummary(
            state="ready",
            devices=_devices(reader, tallies, before.devices),
            cells=cells,
            workloads=workloads,
        )

    def _refresh(self) -> None:
        began, reason = time.monotonic(), ""
        try:
            self.refresh()
        except FleetError as error:
            reason = str(error)
        except Exception as error:  # the page must not end the daemon
            _LOG.exception("the dashboard cannot read the store")
            reason = repr(error)
        with self._lock:
            if reason:
                self._summary = replace(self._summary, state="failed", reason=reason)
            self._due_at, self._thread = _next_at(began, _SUMMARY_SECS), None

    def _forget_later(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = threading.Timer(_FORGET_SECS, self.forget)
        self._forgetting.daemon = True
        self._forgetting.start()

    def forget(self) -> None:
        """Let go of what was read."""
        with self._lock:
            self._reader, self._summary, self._due_at = None, _NOTHING, 0.0


def _next_at(began: float, least_secs: float) -> float:
    now = time.monotonic()
    return now + max(least_secs, _LEAST_WAIT * (now - began))


def _devices(reader: StoreReader, tallies: Sequence[Tally], before: Mapping[str, Json]) -> dict[str, Json]:
    """What is shown of each device; only of those with new records, or a new A/A run, is anything read."""
    records: dict[str, int] = {}
    last_at: dict[str, float] = {}
    noise_at: dict[str, float] = {}
    for tally in tallies:
        device_id = tally.device_id
        records[device_id] = records.get(device_id, 0) + tally.records
        last_at[device_id] = max(last_at.get(device_id, 0.0), tally.measured_at)
        noise_at[device_id] = max(noise_at.get(device_id, 0.0), tally.noise_at)

    def changed(key: str, now: Mapping[str, float]) -> dict[str, float]:
        return {
            name: value for name, value in now.items() if value and before.get(name, {}).get(key) != value
        }

    fresh, measured = changed("records", records), changed("noise_at", noise_at)
    rows = _rows_since(reader, RECENT_COLUMNS, {name: last_at[name] - RECENT_SECS for name in fresh})
    is_noise = pc.field("origin") == NOISE
    starts = {name: at - NOISE_RUN_SECS for name, at in measured.items()}
    noise = _rows_since(reader, READING_COLUMNS, starts, is_noise)
    devices = dict(before)
    for name in {*fresh, *measured}:
        device = {"noise": None, **devices.get(name, {})}
        if name in fresh:
            device |= {"records": records[name], **recent(rows.get(DeviceId(name)))}
        if name in measured:
            floor = last_noise(DeviceId(name), noise.get(DeviceId(name)))
            device |= {"noise_at": noise_at[name], "noise": floor}
        devices[name] = device
    return devices


def _rows_since(
    reader: StoreReader,
    names: Sequence[str],
    since: Mapping[str, float],
    where: pc.Expression | None = None,
) -> dict[DeviceId, pa.RecordBatch]:
    """Rows of devices, each from its own moment on."""
    if not since:
        return {}
    is_recent = pc.field("measured_at") >= min(since.values())
    batches = device_rows(reader, names, since, where=is_recent if where is None else is_recent & where)
    return {
        device_id: batch.filter(pc.greater_equal(batch.column("measured_at"), since[device_id]))
        for device_id, batch in batches.items()
    }
