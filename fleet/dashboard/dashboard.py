"""The views of the dashboard as plain values. `fleet.api.dashboard` has the path of each.

Each view is made from the coordinator's last view, the registry's files, and what `DashboardStore` reads.
Nothing here waits for the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
from fastapi import Depends, Query

from agents.files import read_regular
from fleet.comparison.compared import compare
from fleet.comparison.device_rows import device_rows
from fleet.dashboard import alerts, fleet_rows, workload_view
from fleet.dashboard.device_timeline import (
    TIMELINE_COLUMNS,
    champion_ladder,
    device_timeline,
    model_alerts,
    onboardings,
)
from fleet.dashboard.store_view import (
    MOST_TEXT,
    DashboardMissing,
    DashboardStore,
    PageQuery,
    StoreSummary,
    page_of_comparison,
)
from fleet.dashboard.workload_view import CandidateMatrix, candidate_view
from fleet.json_types import Json, JsonDict
from fleet.models.registry_file import RegistryError
from fleet.models.registry_reader import RegistryReader
from fleet.models.views import champion_notes, list_versions
from fleet.store.reader import StoreReader

#: Versions that are listed, the newest; and the size of a report.
_MOST_VERSIONS, _MOST_REPORT_BYTES = 100, 16 << 20

#: Gives the coordinator's last view (`fleet.engine.fleet_view`), and all requests as its desk shows them.
View = Callable[[], Json]
Requests = Callable[[], Iterable[Json]]
#: Values of a request's query.
PageOf = Annotated[PageQuery, Depends()]
Name = Annotated[str, Query(max_length=MOST_TEXT)]


class Dashboard:
    """Makes the views. Threads may share it.

    Methods raise `StoreError` where the store cannot be read, and `PageError` where a list has no such page.
    """

    def __init__(
        self, view: View, registry: RegistryReader, store: Path, requests: Requests = lambda: ()
    ) -> None:
        self.view, self._registry, self._requests = view, registry, requests
        self.store = DashboardStore(store)
        #: Values from the registry's files by name; made again when these change.
        self._registry_mark: tuple[object, ...] = ()
        self._of_registry: JsonDict = {}

    def close(self) -> None:
        """End what reads the store."""
        self.store.close()

    def fleet(self, query: PageOf) -> JsonDict:
        """The table of the fleet."""
        view, summary, rows = self._rows()
        return {
            "now": view["now"],
            **{name: dict(view[name]) for name in ("coordinator", "store", "jobs")},
            "digest": summary.progress(),
            "counts": fleet_rows.fleet_counts(rows),
            **fleet_rows.DEVICES.page(rows, query),
        }

    def device(self, device_id: str) -> JsonDict:
        """One device: its row, its timeline, its champions and its onboarding.

        Raises:
            DashboardMissing: The fleet has no such device.
        """
        view, summary, rows = self._rows()
        row = next((row for row in rows if row["device_id"] == device_id), None)
        if row is None:
            raise DashboardMissing(
                f"no device {device_id!r:.80} in this fleet; the list of the fleet has all"
            )
        batches = device_rows(self.store.reader(), TIMELINE_COLUMNS, [device_id])
        return {
            "now": view["now"],
            "digest": summary.progress(),
            "device": row,
            "timeline": [
                environment for name, batch in batches.items() for environment in device_timeline(name, batch)
            ],
            "ladder": self._ladder(device_id),
            "onboarding": onboardings(device_id, self._requests(), self._registry.folder.parent),
            "alerts": [alert for alert in self.all_alerts() if alert["device_id"] == device_id][:10],
        }

    def _rows(self) -> tuple[Json, StoreSummary, list[JsonDict]]:
        view, summary = self.view(), self.store.summary()
        return view, summary, fleet_rows.fleet_rows(view, summary, champion_notes(self._registry))

    def _ladder(self, device_id: str) -> JsonDict:
        """The steps of a device's champions; `damaged` has the reason if the registry cannot be read."""
        try:
            ladder = self._of_files(f"ladder {device_id}", lambda: champion_ladder(self._registry, device_id))
            return {**ladder, "damaged": ""}
        except RegistryError as error:
            return {"champion": None, "steps": [], "of": 0, "damaged": str(error)}

    def _of_files(self, name: str, make: Callable[[], Any]) -> Any:
        """A value made from the registry's files, which stays as long as these are the same.

        A training may add a version and remove one, so their names are compared, not their number.
        """
        mark = self._registry.state().serial, *self._registry.versions()
        if mark != self._registry_mark:
            self._registry_mark, self._of_registry = mark, {}
        of_registry = self._of_registry
        if name not in of_registry:
            of_registry[name] = make()
        return of_registry[name]

    def models(self) -> JsonDict:
        """All versions, the newest first, and the champion of each device with its figures."""
        try:
            versions = self._of_files("versions", lambda: list_versions(self._registry))
        except RegistryError as error:
            return {"damaged": str(error), "versions": [], "notes": {}}
        notes = self._of_files("notes", lambda: champion_notes(self._registry))
        return {"damaged": "", "versions": versions[::-1][:_MOST_VERSIONS], "notes": notes}

    def tunings(self) -> JsonDict:
        """How fast networks are; see `fleet.dashboard.fleet_rows`."""
        return {"now": self.view()["now"], "tunings": fleet_rows.tuning_rows(self._requests())}

    def report(self, request_id: str) -> bytes:
        """The page that a tuning wrote.

        Raises:
            DashboardMissing: No such tuning has one, or its file is gone.
        """
        tunings = (each for each in self._requests() if each["kind"] == "tuning")
        path = next((each["result"].get("report") for each in tunings if each["id"] == request_id), "")
        if not path:
            raise DashboardMissing(f"no tuning {request_id!r:.80} has a report")
        try:
            return read_regular(Path(path), _MOST_REPORT_BYTES)
        except OSError as error:
            raise DashboardMissing(f"{path} cannot be read: {error.strerror}") from None

    def compare(self, query: PageOf, before: Name = "", after: Name = "", all: bool = False) -> JsonDict:
        """Two devices, days (`DEVICE@YYYY-MM-DD`) or versions; insignificant rows with `all` only.

        The names of devices and versions come along, and alone without two sides.
        """
        devices = sorted(str(device_id) for device_id in self.view()["devices"])
        names = {"devices": devices[:500], "versions": self._registry.versions()[-100:]}
        if not (before and after):
            return names
        comparison = compare(self.store.reader, self._registry, (before, after), shows_all=all)
        return names | page_of_comparison(comparison, query)

    def workloads(self, query: PageOf) -> JsonDict:
        """The list of workloads with records."""
        summary = self.store.summary()
        rows = workload_view.workload_rows(summary.cells, summary.workloads)
        return {"digest": summary.progress(), **workload_view.WORKLOADS.page(rows, query)}

    def workload(self, workload_id: str, query: PageOf, candidates_from: int = 0) -> JsonDict:
        """One workload: its devices with their spread of latencies, and its candidates on them.

        Raises:
            DashboardMissing: No record names it.
        """
        summary = self.store.summary()
        by_device = summary.cells.get(workload_id)
        if not by_device:
            raise DashboardMissing(
                f"no record of workload {workload_id!r:.80}; the list of workloads has all"
            )
        query = replace(query, size=min(query.size, workload_view.PAGE_DEVICES))
        rows = workload_view.workload_device_rows(by_device)
        devices = workload_view.DEVICES.page(rows, query)
        names = [row["device_id"] for row in devices["rows"]]
        matrix = self.matrix(self.store.reader(), workload_id, names)
        spreads = matrix.spreads()
        devices["rows"] = [{**row, "spread": spreads[row["device_id"]]} for row in devices["rows"]]
        return {
            "workload_id": workload_id,
            "workload": dict(summary.workloads.get(workload_id, {"name": workload_id})),
            "devices": devices,
            "matrix": matrix.page(max(0, candidates_from), workload_view.PAGE_CANDIDATES),
        }

    def matrix(self, reader: StoreReader, workload_id: str, device_ids: list[str]) -> CandidateMatrix:
        """The candidates of a workload on some devices."""
        where = pc.field("workload_id") == workload_id
        rows = device_rows(reader, workload_view.MATRIX_COLUMNS, device_ids, where=where)
        return CandidateMatrix(device_ids, rows)

    def candidate(self, workload_id: str, candidate_id: str, best_on: Name = "") -> JsonDict:
        """One candidate; see `fleet.dashboard.workload_view`.

        Raises:
            DashboardMissing: There is none.
        """
        summary = self.store.summary()
        # The device of the page before is looked at first.
        cells = summary.cells.get(workload_id, {})
        devices = sorted(cells, key=lambda device_id: (device_id != best_on, device_id))
        facts = summary.workloads.get(workload_id, {"name": workload_id})
        view = candidate_view(self.store.reader(), workload_id, candidate_id, devices, best_on)
        return {"workload": dict(facts), **view}

    def alerts(self, query: PageOf) -> JsonDict:
        """What people should know, the newest first."""
        every_alert = self.all_alerts()
        return {
            "now": self.view()["now"],
            "is_cut_off": len(every_alert) >= alerts.MOST_ALERTS,
            **alerts.ALERTS.page(every_alert, query),
        }

    def all_alerts(self) -> list[JsonDict]:
        """All alerts, the newest first."""
        view = self.view()
        try:
            changes = self._of_files("alerts", lambda: model_alerts(self._registry))
        except RegistryError as error:
            changes = [{"at": view["now"], "device_id": "", "text": str(error), "kind": "training"}]
        return alerts.alert_list(view["alarms"], changes)

    def requests(self, query: PageOf) -> JsonDict:
        """The requests, the open ones first."""
        rows = fleet_rows.request_rows(self._requests())
        return {"now": self.view()["now"], **fleet_rows.REQUESTS.page(rows, query)}
