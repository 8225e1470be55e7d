"""The verbs `fleet dashboard` and `fleet compare`. Loads nothing heavy before one runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.cli.options import DEFAULT_MODELS, ModelsOption, RootSettings, StoreSettings
from fleet.cli.output import JsonOption, print_json
from fleet.cli.requests import running_daemon
from fleet.errors import FleetError
from fleet.terminal_text import print_rows, print_text

#: File of the daemon's folder that leads a browser to the dashboard; its code is good once.
_LOGIN_PAGE = "dashboard.html"


def dashboard(
    settings: RootSettings,
    should_open: Annotated[bool, typer.Option("--open", help="Open it in this host's browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print a link to the dashboard of the running daemon. The link works once, for 15 minutes.

    Example: fleet dashboard --open
    """
    url = running_daemon(settings).login_url()
    if as_json:
        print_json({"url": url})
    else:
        print_text(url)
    if should_open:
        _open_browser(Path(settings.daemon.root) / _LOGIN_PAGE, url)


def _open_browser(page: Path, url: str) -> None:
    """Open a link in a browser by a page that only this user may read.

    The arguments of a browser are there for every user of the host to see, and with them the login code.
    """
    import html
    import webbrowser

    from fleet.private_files import write_private

    target = html.escape(f"0; url={url}")
    head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="{target}"><title>tensor-fleet</title>'
    write_private(page, f"<!doctype html>{head}")
    if not webbrowser.open(page.absolute().as_uri()):
        raise FleetError("no browser can be opened on this host; open the link above in another one")


def compare_sides(
    before: Annotated[str, typer.Argument(help="DEVICE, DEVICE@YYYY-MM-DD or a model version.")],
    after: Annotated[
        str, typer.Argument(help="DEVICE, DEVICE@YYYY-MM-DD or a model version to compare with.")
    ],
    settings: StoreSettings,
    shows_all: Annotated[bool, typer.Option("--all", help="Show changes within the noise too.")] = False,
    models: ModelsOption = DEFAULT_MODELS,
    as_json: JsonOption = False,
) -> None:
    """Compare two devices, two days of a device, or two model versions.

    A change is significant if it reaches three times the noise of its series (docs/dashboard.md).

    Example: fleet compare x86-64-v3@2026-11-23 x86-64-v3@2026-11-24
    """
    from fleet.comparison.compared import compare
    from fleet.dashboard.store_view import MOST_ROWS, PageQuery, page_of_comparison
    from fleet.models.registry_reader import RegistryReader
    from fleet.store.store import Store

    comparison = compare(
        lambda: Store.read(settings.store.path),
        RegistryReader(models),
        (before, after),
        shows_all=shows_all,
    )
    comparison = page_of_comparison(comparison, PageQuery(size=MOST_ROWS))
    if as_json:
        print_json(comparison)
    else:
        _print_comparison(comparison)


def _print_comparison(comparison: dict[str, Any]) -> None:
    summary = comparison["summary"]
    print_text(
        f"{summary['significant']} significant changes (severity of {summary['threshold']:g} or more), "
        f"{summary['insignificant']} within the noise, {summary['unknown']} of unknown noise"
    )
    for note in comparison["notes"]:
        print_text(note)
    if comparison["rows"]:
        from fleet.report.words import latency_unit

        columns = ("series", *comparison["sides"], "change", "noise", "severity")
        timed_rows = [row for row in comparison["rows"] if row["unit"] == "s"]
        unit = latency_unit(row[side] for row in timed_rows for side in ("before", "after"))
        print_rows(columns, [_cells(row, unit) for row in comparison["rows"]], narrow=columns)
        if any(row["kind"] == "latency" for row in comparison["rows"]):
            print_text("Each workload's latencies are of the candidate with the median change.")
    if comparison["hidden"]:
        print_text(f"{comparison['hidden']} changes within the noise are hidden; --all shows them")
    if not comparison["is_last"]:
        print_text(f"cut off: {len(comparison['rows'])} of {comparison['matched']} rows are shown")


def _cells(row: dict[str, Any], unit: str) -> tuple[str, ...]:
    before, after = (_value(row[side], row["unit"], unit) for side in ("before", "after"))
    return (
        row["name"],
        before,
        after,
        f"{row['change']:+.1%}",
        "-" if row["noise"] is None else f"{row['noise']:.2%}",
        "-" if row["severity"] is None else f"{row['severity']:.1f}",
    )


def _value(value: float, unit: str, latency_unit: str) -> str:
    from fleet.report.words import latency

    return latency(value, latency_unit) if unit == "s" else f"{value:.4g} {unit}".strip()
