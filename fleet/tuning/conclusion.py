"""The end of a search: what was found becomes a database, libraries of whole networks, and a report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.networks.network_name import read_network_name
from agents.records import DeviceId
from fleet.collection.clock import Clock
from fleet.collection.settings import Display
from fleet.store.reader import StoreReader
from fleet.tuning.database import update_database
from fleet.tuning.delivery import deliver_all
from fleet.tuning.report import report_search


def conclude(
    found: Mapping[str, Any],
    store: StoreReader,
    labels: Mapping[str, str],
    out: Path,
    clock: Clock,
    display: Display,
) -> dict[str, Any]:
    """Write what a search leaves.

    Args:
        found: What the search tells of itself; `device` is in it.
        store: With all that was measured.
        labels: The name that records keep of each network, by its spelling.
        out: Folder for all of it.
        clock: Of the search; two parts come to it.
        display: Hears what is going on.

    Returns:
        `whole_networks` (see `fleet.tuning.delivery`), `seconds` by part, and the paths `database` and
        `report`.

    Raises:
        FleetError: The folder holds what is not to be replaced, or nothing ran.
    """
    device_id = DeviceId(found["device"])
    with clock.part("export"):
        database = update_database(store, device_id, out)
    if any(read_network_name(one).is_graph for one in labels):
        display.say("compiling the network with its schedules, and timing it beside other ways to run it")
    with clock.part("compile"):
        whole = deliver_all(labels, store.devices()[device_id], database.best_traces(), out)
    told = {"whole_networks": whole, "seconds": clock.parts, "database": str(out)}
    networks = " ".join(f"--network {shlex.quote(one)}" for one in labels)
    again = f"fleet tune {shlex.quote(device_id)} {networks} --out {shlex.quote(str(out))}"
    page = report_search({**found, **told}, out, time.time(), again)
    return {**told, "report": str(page)}
