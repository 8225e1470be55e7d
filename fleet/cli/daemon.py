"""The verb `fleet up`: the daemon. Loads nothing heavy before it runs."""

from __future__ import annotations

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
from fleet.cli.output import ConfigOption, SetOption

if TYPE_CHECKING:
    from fleet.api.server import ApiServer
    from fleet.engine.coordinator import Coordinator


def register(app: typer.Typer) -> None:
    """Add the verb of this module to a command-line app."""
    app.command("up")(up)


def up(
    device: DevicesOption = None,
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    root: RootOption = None,
    address: AddressOption = None,
    for_secs: Annotated[
        float | None, typer.Option("--for", min=0, help="Stop after so many seconds.", metavar="SECS")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Measure what is planned, then stop.")] = False,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
) -> None:
    """Collect and refresh without end, on the devices of this host or of a cluster.

    Whatever is killed, the same command goes on where it was. SIGTERM and Ctrl-C end it in order: batches
    that run are waited for, nothing else begins.

    Example: fleet up --device x86-64-v3 --for 3600
    """
    from fleet.daemon.daemon import UpOptions, run_daemon
    from fleet.terminal_console import TerminalConsole

    settings = load_settings(
        config,
        {
            "devices.ids": tuple(device) if device else None,
            "store.path": str(store) if store else None,
            "daemon.root": str(root) if root else None,
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
        from fleet.api.server import ApiOptions, ApiServer
        from fleet.dashboard.dashboard import Dashboard
        from fleet.dashboard.webhook import Webhook
        from fleet.models.registry_reader import RegistryReader

        registry, store_path = RegistryReader(models), Path(settings.store.path)
        shown = Dashboard(coordinator.view, registry, store_path, coordinator.desk.listed)
        sources = ApiSources(
            view=coordinator.view,
            registry=registry,
            desk=coordinator.desk,
            scoring=ScoreSettings(models=models, store=store_path, cores=quiet_cores),
            dashboard=shown,
            webhook=Webhook(daemon.webhook_url, shown.all_alerts) if daemon.webhook_url else None,
        )
        return ApiServer(sources, folder, ApiOptions(host=daemon.api_host, port=daemon.api_port))

    run_daemon(settings, options, TerminalConsole(), serve=serve if daemon.api_host else None)
