"""What `fleet status` prints while a daemon runs: a line a device, then coordinator, jobs, training, alarms.

Reads the view of `fleet.engine.fleet_view` as the API gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.cli.output import short_moment
from fleet.terminal_console import TerminalConsole
from fleet.terminal_table import print_rows
from transfer.model.kinds import FLEET_TLP

_COLUMNS = ("device", "state", "records", "failed", "late", "per s", "batch", "last", "champion")
_ALARMS = 5


def print_daemon(view: Mapping[str, Any]) -> None:
    """Print a view on standard output."""
    devices: Mapping[str, Mapping[str, Any]] = view["devices"]
    print_rows(_COLUMNS, [(name, *_cells(found)) for name, found in devices.items()])
    console = TerminalConsole()

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    for name, found in devices.items():
        if why := found["reason"] or found["closed"]:
            say(f"{name}: {why}")
        # There is no room beside the version; what is not said is a FleetTLP.
        if (kind := found.get("model_kind", "")) and kind != FLEET_TLP:
            say(f"{name}: {found['champion']} is of kind {kind}")
        if kept := found.get("retained"):
            say(f"{name}: {found['champion']} stays; {kept}")
    coordinator, store, jobs = view["coordinator"], view["store"], view["jobs"]
    since = short_moment(view["started_at"])
    say(
        f"daemon {coordinator['state']} since {since} (process {coordinator['pid']}); "
        "jobs: " + ", ".join(f"{count} {state}" for state, count in jobs.items())
    )
    waiting = f", {store['waiting']} on their way there" if store.get("waiting") else ""
    say(f"store {store['path']}: {store['records']} records{waiting}, table version {store['table_version']}")
    if store.get("refused"):
        say(f"{store['refused']} records that the store refuses are set aside", style="yellow")
    training = view["training"]
    last = f"; last: {training['last']}" if training.get("last") else ""
    say(f"training: {training['state']}{last}")
    alarms: Sequence[Mapping[str, Any]] = view["alarms"]
    for alarm in alarms[-_ALARMS:]:
        say(f"{short_moment(alarm['at'])} {alarm['device_id']}: {alarm['text']}", style="yellow")


def _cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    leases = found["leases"]
    done, size = sum(one["done"] for one in leases), sum(one["of"] for one in leases)
    return (
        found["state"],
        str(found["records"]),
        str(found["failed"]),
        str(found["late"]),
        f"{found['records_per_s']:.1f}",
        f"{done}/{size}" if leases else "-",
        short_moment(found["last_record_at"]),
        (found["champion"] or "-") + (" (pinned)" if found.get("pinned") else ""),
    )
