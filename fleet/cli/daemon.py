"""The verb `fleet up`, and the table of its daemon. Loads nothing heavy before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.cli.options import (
    DEFAULT_MODELS,
    AddressOption,
    DevicesOption,
    ModelsOption,
    RootOption,
    SeedOption,
    StoreOption,
    load_settings,
    say_places,
)
from fleet.cli.output import ConfigOption, SetOption, short_moment
from fleet.json_types import Json
from fleet.terminal_text import print_rows

if TYPE_CHECKING:
    from fleet.api.server import ApiServer
    from fleet.engine.coordinator import Coordinator

_COLUMNS = ("device", "state", "records", "failed", "late", "per s", "batch", "last", "champion")
_ALARMS = 5


def up(
    device: DevicesOption = None,
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    root: RootOption = None,
    address: AddressOption = None,
    for_secs: Annotated[
        float | None, typer.Option("--for", min=0, help="Stop after this many seconds.", metavar="SECS")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Measure what is planned, then stop.")] = False,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
) -> None:
    """Collect and refresh without end, on the devices of this host or of a cluster.

    After a crash or a kill, the same command continues where it stopped. SIGTERM and Ctrl-C end it in order:
    it waits for running batches and starts no new ones.

    Example: fleet up --device x86-64-v3 --for 3600
    """
    from fleet.daemon.daemon import UpOptions, run_daemon
    from fleet.terminal_text import TerminalConsole

    settings = load_settings(
        config,
        {
            "devices.ids": tuple(device) if device else None,
            "store.path": store,
            "daemon.root": root,
            "training.seed": seed,
        },
        changes,
    )
    say_places(settings, config, store)
    options = UpOptions(models=models, address=address, for_secs=for_secs, once=once)
    daemon = settings.daemon

    def serve(coordinator: Coordinator, folder: Path, quiet_cores: tuple[int, ...]) -> ApiServer:
        from fleet.api.app import ApiSources
        from fleet.api.score_service import ScoreSettings
        from fleet.api.server import ApiServer
        from fleet.api.webhook import Webhook
        from fleet.dashboard.dashboard import Dashboard
        from fleet.models.registry_reader import RegistryReader

        registry, store_path = RegistryReader(models), Path(settings.store.path)
        dashboard = Dashboard(coordinator.view, registry, store_path, coordinator.desk.listed)
        sources = ApiSources(
            view=coordinator.view,
            registry=registry,
            desk=coordinator.desk,
            scoring=ScoreSettings(models=models, store=store_path, cores=quiet_cores),
            dashboard=dashboard,
            webhook=Webhook(daemon.webhook_url, dashboard.all_alerts) if daemon.webhook_url else None,
        )
        return ApiServer(sources, folder, host=daemon.api_host, port=daemon.api_port)

    run_daemon(settings, options, TerminalConsole(), serve=serve if daemon.api_host else None)


def print_daemon(view: Json) -> None:
    """Print the status of a running daemon: devices, coordinator, jobs, training, alarms.

    Args:
        view: Of `fleet.engine.fleet_view`, as the API gives it.
    """
    from fleet.terminal_text import TerminalConsole
    from transfer.model.kinds import FLEET_TLP

    devices: Mapping[str, Json] = view["devices"]
    print_rows(_COLUMNS, [(name, *_cells(device)) for name, device in devices.items()])
    print_line = TerminalConsole().print
    for name, device in devices.items():
        if why := device["reason"] or device["closed"]:
            print_line(f"{name}: {why}")
        # The table has no room for the kind; FleetTLP is the usual one.
        if (kind := device.get("model_kind", "")) and kind != FLEET_TLP:
            print_line(f"{name}: {device['champion']} is of kind {kind}")
        if shipped := device.get("shipped"):
            print_line(f"{name}: {device['champion']} is of the shipped model {shipped}")
        if retention := device.get("retained"):
            print_line(f"{name}: {device['champion']} stays; challenger {retention}")
    coordinator, store, jobs = view["coordinator"], view["store"], view["jobs"]
    since = short_moment(view["started_at"])
    print_line(
        f"daemon {coordinator['state']} since {since} (process {coordinator['pid']}); "
        "jobs: " + ", ".join(f"{count} {state}" for state, count in jobs.items())
    )
    waiting = f", {store['waiting']} on their way there" if store.get("waiting") else ""
    print_line(
        f"store {store['path']}: {store['records']} records{waiting}, table version {store['table_version']}"
    )
    if store.get("refused"):
        print_line(f"{store['refused']} records that the store refused are set aside", style="yellow")
    training = view["training"]
    last = f"; last: {training['last']}" if training.get("last") else ""
    print_line(f"training: {training['state']}{last}")
    alarms: Sequence[Json] = view["alarms"]
    for alarm in alarms[-_ALARMS:]:
        print_line(f"{short_moment(alarm['at'])} {alarm['device_id']}: {alarm['text']}", style="yellow")


def _cells(device: Json) -> tuple[object, ...]:
    leases = device["leases"]
    done, size = sum(lease["done"] for lease in leases), sum(lease["of"] for lease in leases)
    return (
        "measuring" if device["state"] == "leased" else device["state"],
        device["records"],
        device["failed"],
        device["late"],
        f"{device['records_per_s']:.1f}",
        f"{done}/{size}" if leases else "-",
        short_moment(device["last_record_at"]),
        (device["champion"] or "-") + (" (pinned)" if device.get("pinned") else ""),
    )
