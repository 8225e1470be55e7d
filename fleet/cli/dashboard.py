"""The verbs about what the dashboard shows: `fleet dashboard`. Loads nothing heavy before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.options import load_settings
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json
from fleet.errors import FleetError
from fleet.terminal_text import say


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to a command-line app."""
    app.command("dashboard")(dashboard)


def dashboard(
    root: Annotated[Path | None, typer.Option("--root", help="The daemon's folder (daemon.root).")] = None,
    should_open: Annotated[bool, typer.Option("--open", help="Open it in this host's browser.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    changes: SetOption = None,
) -> None:
    """Print a link to the dashboard of the running daemon. It logs one browser in, within 15 minutes.

    Example: fleet dashboard --open
    """
    from fleet.api.client import find_daemon

    settings = load_settings(config, {"daemon.root": str(root) if root else None}, changes)
    daemon = find_daemon(Path(settings.daemon.root))
    if daemon is None:
        raise FleetError(f"no daemon runs on {settings.daemon.root}; start one with `fleet up`")
    url = daemon.login_url()
    if as_json:
        print_json({"url": url})
    else:
        say(url)
    if should_open:
        import webbrowser

        webbrowser.open(url)
