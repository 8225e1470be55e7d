"""The views of the dashboard as plain values: what `fleet.api.dashboard` sends and `fleet compare` prints.

Each view is made from copies: the coordinator's last view, the registry's files, and columns of the store
that a thread has read (`fleet.dashboard.table_follower`). Nothing here waits for the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.dashboard.fleet_rows import KEYS, TEXTS, champion_rows, fleet_counts, fleet_rows
from fleet.dashboard.pages import PageQuery, cut
from fleet.dashboard.table_follower import TableFollower, TableState
from fleet.models.registry_reader import RegistryError, RegistryReader, as_json
from fleet.models.views import champion_notes

#: Gives the coordinator's last view.
View = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The table of the fleet, and what it was made from."""

    view: Mapping[str, Any]
    table: TableState
    champions: object
    rows: list[dict[str, Any]]


class Dashboard:
    """Makes the views. Threads may share it.

    Args:
        view: Gives the coordinator's last view.
        registry: The model versions.
        store: Folder of the store.
    """

    def __init__(self, view: View, registry: RegistryReader, store: Path) -> None:
        self.view, self._registry = view, registry
        self._follower = TableFollower(store)
        self._lock = threading.Lock()
        self._rows: _Rows | None = None

    def close(self) -> None:
        """End what reads the store."""
        self._follower.close()

    def marks(self) -> tuple[object, ...]:
        """Changes whenever a view may have changed; cheap."""
        table = self._follower.state
        return self.view()["now"], table.state, table.version, table.done

    def fleet(self, query: PageQuery) -> dict[str, Any]:
        """The table of the fleet.

        Raises:
            PageError: There is no such page.
        """
        made = self._made_rows()
        view, counts = made.view, fleet_counts(made.rows)
        return {
            "now": view["now"],
            "started_at": view["started_at"],
            "coordinator": dict(view["coordinator"]),
            "store": dict(view["store"]),
            "jobs": dict(view["jobs"]),
            "training": dict(view["training"]),
            "digest": made.table.progress(),
            "counts": counts,
            **cut(made.rows, query, KEYS, TEXTS),
        }

    def _made_rows(self) -> _Rows:
        """The rows of the present view; made once for all who ask meanwhile."""
        view, table = self.view(), self._follower.look()
        try:
            champions: object = self._registry.state()
        except RegistryError:
            champions = None
        with self._lock:
            made = self._rows
            if (
                made is None
                or made.view is not view
                or made.table is not table
                or made.champions is not champions
            ):
                rows = fleet_rows(view, table, self._champions())
                made = self._rows = _Rows(view=view, table=table, champions=champions, rows=rows)
        return made

    def _champions(self) -> dict[str, dict[str, Any]]:
        try:
            found = {str(one): as_json(champion) for one, champion in self._registry.champions().items()}
        except RegistryError:
            # `fleet models` says how to mend it; that must not hide the devices.
            return {}
        return champion_rows(found, champion_notes(self._registry))


__all__ = ["Dashboard", "View"]
