"""The views of the dashboard as plain values: what `fleet.api.dashboard` sends.

Each view is made from copies: the coordinator's last view, the registry's files, and columns of the store
that a thread has read (`fleet.dashboard.table_follower`). Nothing here waits for the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.records import DeviceId
from fleet.dashboard import alerts, workload_view
from fleet.dashboard.candidate_view import candidate_view
from fleet.dashboard.champion_ladder import champion_ladder, model_alerts
from fleet.dashboard.compared import compare
from fleet.dashboard.device_timeline import TIMELINE_COLUMNS, DeviceTimeline
from fleet.dashboard.fleet_rows import (
    KEYS,
    REQUEST_KEYS,
    REQUEST_TEXTS,
    TEXTS,
    champion_rows,
    fleet_counts,
    fleet_rows,
    request_rows,
    storage_view,
)
from fleet.dashboard.onboarding_curve import onboarding_curve
from fleet.dashboard.pages import PageQuery, cut
from fleet.dashboard.store_reads import ReadCache, device_rows
from fleet.dashboard.table_follower import TableFollower, TableState
from fleet.dashboard.workload_view import CandidateMatrix
from fleet.errors import FleetError
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import RegistryReader
from fleet.models.views import champion_notes
from fleet.store.reader import StoreReader

#: Gives the coordinator's last view (`fleet.engine.fleet_view`), and all requests as its desk shows them.
View = Callable[[], Mapping[str, Any]]
Requests = Callable[[], Iterable[Mapping[str, Any]]]


class DashboardMissing(FleetError):  # noqa: N818 - a state of what was asked for, named so
    """There is no such thing to show."""


class DashboardWaits(FleetError):  # noqa: N818 - likewise
    """What was asked for is being read; ask again in a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The table of the fleet, and what it was made from."""

    view: Mapping[str, Any]
    table: TableState
    champions: object
    rows: list[dict[str, Any]]


class Dashboard:
    """Makes the views. Threads may share it."""

    def __init__(
        self, view: View, registry: RegistryReader, store: Path, requests: Requests = lambda: ()
    ) -> None:
        self.view, self._registry, self._requests = view, registry, requests
        self._follower = TableFollower(store)
        self._lock = threading.Lock()
        self._rows: _Rows | None = None
        self._reads = ReadCache()

    def close(self) -> None:
        """End what reads the store."""
        self._follower.close()

    def marks(self) -> tuple[object, ...]:
        """Changes whenever a view may have changed; cheap."""
        table = self._follower.state
        return self.view()["now"], table.state, table.version, table.done

    def reader(self) -> StoreReader:
        """The store at the version that has been read.

        Raises:
            DashboardWaits: It is being read.
        """
        self._follower.look()
        reader = self._follower.reader()
        if reader is None:
            state = self._follower.state
            reason = (
                f"the store cannot be read: {state.reason}" if state.reason else "the store is being read"
            )
            raise DashboardWaits(f"{reason}; this page asks again")
        return reader

    # ---- the fleet and its devices ----

    def fleet(self, query: PageQuery) -> dict[str, Any]:
        """The table of the fleet.

        Raises:
            PageError: There is no such page.
        """
        snapshot = self._made_rows()
        view = snapshot.view
        return {
            "now": view["now"],
            "started_at": view["started_at"],
            "coordinator": dict(view["coordinator"]),
            "store": dict(view["store"]),
            "jobs": dict(view["jobs"]),
            "training": dict(view["training"]),
            "digest": snapshot.table.progress(),
            "counts": fleet_counts(snapshot.rows),
            **cut(snapshot.rows, query, KEYS, TEXTS),
        }

    def device(self, device_id: str) -> dict[str, Any]:
        """One device: its row, its timeline, its champions and its onboarding.

        Raises:
            DashboardMissing: The fleet has no such device.
        """
        snapshot = self._made_rows()
        row = next((row for row in snapshot.rows if row["device_id"] == device_id), None)
        if row is None:
            raise DashboardMissing(
                f"no device {device_id!r:.80} in this fleet; the list of the fleet has all"
            )
        return {
            "now": snapshot.view["now"],
            "digest": snapshot.table.progress(),
            "device": row,
            "timeline": self._timeline(device_id),
            "ladder": self._ladder(device_id),
            "onboarding": onboarding_curve(device_id, self._requests(), self._registry.folder.parent),
            "alerts": [alert for alert in self.all_alerts() if alert["device_id"] == device_id][:10],
        }

    def _timeline(self, device_id: str) -> list[dict[str, Any]] | None:
        """The environments of a device; None while the store is being read."""
        try:
            reader = self.reader()
        except DashboardWaits:
            return None

        def read() -> list[dict[str, Any]]:
            timeline = DeviceTimeline(DeviceId(device_id))
            for _, batch in device_rows(reader, TIMELINE_COLUMNS, [device_id]):
                timeline.add(batch)
            return timeline.to_json()

        # Its own records decide, not the table's version, which changes with those of others.
        records = self._follower.state.devices.get(device_id, {}).get("records", 0)
        environments: list[dict[str, Any]] = self._reads.get(("timeline", device_id, records), read)
        return environments

    def _ladder(self, device_id: str) -> dict[str, Any]:
        """The steps of a device's champions; `damaged` says why nothing is known."""
        try:
            ladder = self._reads.get(
                ("ladder", device_id, *self._registry_mark()),
                lambda: champion_ladder(self._registry, device_id),
            )
            return {**ladder, "damaged": ""}
        except RegistryError as error:
            return {"champion": None, "steps": [], "of": 0, "damaged": str(error)}

    # ---- comparisons ----

    def compare(self, sides: tuple[str, str], query: PageQuery, *, shows_all: bool) -> dict[str, Any]:
        """Two things side by side; see `fleet.dashboard.compared.compare`."""
        return compare(self.reader, self._registry, sides, query, shows_all=shows_all)

    def comparable(self) -> dict[str, Any]:
        """Names that may be compared: devices and versions."""
        names = sorted(str(device_id) for device_id in self.view()["devices"])
        return {
            "devices": names[:500],
            "devices_of": len(names),
            "versions": self._registry.versions()[-100:],
        }

    # ---- workloads and candidates ----

    def workloads(self, query: PageQuery) -> dict[str, Any]:
        """The list of workloads with records."""
        table = self._follower.look()
        rows = self._reads.get(
            ("workloads", table.version, table.done),
            lambda: workload_view.workload_rows(self._follower.cells(), table.workloads),
        )
        return {
            "digest": table.progress(),
            **cut(rows, query, workload_view.KEYS, workload_view.TEXTS),
        }

    def workload(self, workload_id: str, query: PageQuery, candidates_from: int) -> dict[str, Any]:
        """One workload: its devices with their spread of latencies, and its candidates on them.

        Raises:
            DashboardMissing: No record names it.
            DashboardWaits: The store is being read.
        """
        reader = self.reader()
        by_device = self._follower.cells().get(workload_id)
        if not by_device:
            raise DashboardMissing(
                f"no record of workload {workload_id!r:.80}; the list of workloads has all"
            )
        query = replace(query, size=min(query.size, workload_view.PAGE_DEVICES))
        devices = cut(workload_view.device_rows(by_device), query, workload_view.DEVICE_KEYS, ("device_id",))
        names = [row["device_id"] for row in devices["rows"]]
        matrix = self.matrix(reader, workload_id, names)
        spreads = matrix.spreads()
        devices["rows"] = [{**row, "spread": spreads[row["device_id"]]} for row in devices["rows"]]
        return {
            "workload_id": workload_id,
            "workload": dict(self._follower.state.workloads.get(workload_id, {"name": workload_id})),
            "devices": devices,
            "matrix": matrix.page(candidates_from, workload_view.PAGE_CANDIDATES),
        }

    def matrix(self, reader: StoreReader, workload_id: str, device_ids: list[str]) -> CandidateMatrix:
        """The candidates of a workload on some devices."""

        def read() -> CandidateMatrix:
            matrix = CandidateMatrix(workload_id, device_ids)
            columns = workload_view.MATRIX_COLUMNS
            for device_id, batch in device_rows(reader, columns, device_ids, workload_id=workload_id):
                matrix.add(str(device_id), batch)
            return matrix

        matrix: CandidateMatrix = self._reads.get(("matrix", workload_id, *device_ids, reader.moment), read)
        return matrix

    def candidate(self, workload_id: str, candidate_id: str, best_on: str) -> dict[str, Any]:
        """One candidate; see `fleet.dashboard.candidate_view`.

        Raises:
            CandidateError: There is none.
            DashboardWaits: The store is being read.
        """
        reader = self.reader()
        cells = self._follower.cells().get(workload_id, {})
        # The device that somebody comes from is looked at first.
        devices = sorted(cells, key=lambda device_id: (device_id != best_on, device_id))
        facts = self._follower.state.workloads.get(workload_id, {"name": workload_id})
        candidate = self._reads.get(
            ("candidate", workload_id, candidate_id, best_on, reader.moment),
            lambda: candidate_view(reader, workload_id, candidate_id, devices, best_on),
        )
        return {"workload": dict(facts), **candidate}

    # ---- alerts and storage ----

    def alerts(self, query: PageQuery) -> dict[str, Any]:
        """What people should know, the newest first."""
        every_alert = self.all_alerts()
        if not query.sort:
            query = replace(query, sort="at", is_descending=True)
        return {
            "now": self.view()["now"],
            "is_cut_off": len(every_alert) >= alerts.MOST_ALERTS,
            **cut(every_alert, query, alerts.KEYS, alerts.TEXTS),
        }

    def storage(self) -> dict[str, Any]:
        """Where records are on their way, how much room is left, and what budgets are spent."""
        return storage_view(self.view())

    def requests(self, query: PageQuery) -> dict[str, Any]:
        """The requests, those that have not ended first."""
        rows = request_rows(self._requests())
        return {"now": self.view()["now"], **cut(rows, query, REQUEST_KEYS, REQUEST_TEXTS)}

    def all_alerts(self) -> list[dict[str, Any]]:
        """All alerts, the newest first."""
        view = self.view()
        try:
            mark: tuple[object, ...] = self._registry_mark()
            changes = self._reads.get(("alerts", *mark), lambda: model_alerts(self._registry))
        except RegistryError as error:
            mark = (str(error),)
            changes = [{"at": view["now"], "device_id": "", "text": str(error), "kind": "training"}]
        every_alert: list[dict[str, Any]] = self._reads.get(
            (
                "all alerts",
                len(view["alarms"]),
                view["alarms"][-1]["at"] if view["alarms"] else 0,
                *mark,
            ),
            lambda: alerts.alert_list(view["alarms"], changes),
        )
        return every_alert

    # ---- small things ----

    def _registry_mark(self) -> tuple[object, ...]:
        """What changes with the registry. A training may add a version and remove one: names, no number."""
        return self._registry.state().serial, tuple(self._registry.versions())

    def _made_rows(self) -> _Rows:
        """The rows of the present view; made once for all who ask meanwhile."""
        view, table = self.view(), self._follower.look()
        try:
            champions: object = self._registry.state()
        except RegistryError:
            champions = None
        with self._lock:
            snapshot = self._rows
            is_old = snapshot is None or snapshot.view is not view or snapshot.table is not table
            if snapshot is None or is_old or snapshot.champions is not champions:
                rows = fleet_rows(view, table, self._champions())
                snapshot = self._rows = _Rows(view=view, table=table, champions=champions, rows=rows)
        return snapshot

    def _champions(self) -> dict[str, dict[str, Any]]:
        try:
            champions = self._registry.champions()
        except RegistryError:
            # `fleet models` says how to mend it; that must not hide the devices.
            return {}
        return champion_rows(champions, champion_notes(self._registry))
