"""The pictures of README and docs: `python -m benchmarks.pictures --report runs/tuned/DEVICE/report.json`.

A browser opens the report of a real `fleet tune`, and pages of the dashboard of the daemon that runs on
`--root`. It writes `docs/pictures/NAME-SCHEME.png`, each smaller than 200 KB; README's in light and in dark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.dashboard import open_browser
from benchmarks.harness import Figures, benchmark, option, working_folder
from fleet.api.client import find_daemon
from fleet.errors import FleetError
from fleet.tuning.report import render

FOLDER = Path(__file__).parents[1] / "docs/pictures"
MOST_BYTES = 200_000
_WAIT_MS = 60_000
#: Of the window in pixels, which a page fills at least; and how tall a picture of a page is at most.
_VIEWPORT, _MOST_HEIGHT = {"width": 1240, "height": 400}, 960


@dataclass(frozen=True, slots=True)
class Options:
    """What is taken."""

    report: Path | None = option(None, "report.json of a search")
    root: Path | None = option(None, "folder of a running daemon, such as runs/fleet")


class Shot(NamedTuple):
    """One picture of a page, or of a part of it."""

    name: str
    address: str
    #: A part of the page; all of it if empty.
    part: str = ""
    is_both: bool = False


def take(options: Options) -> Figures:
    """Take the pictures.

    Raises:
        FleetError: There is no browser, no report or no daemon, or a picture is too large.
    """
    sizes: dict[str, int] = {}
    with working_folder() as folder, open_browser() as browser:
        page = browser.new_page(viewport=_VIEWPORT)
        page.set_default_timeout(_WAIT_MS)
        shots = [] if options.report is None else _of_report(options.report, folder)
        if options.root is not None:
            shots += _of_dashboard(options.root, page)
        for shot in shots:
            for scheme in ("light", "dark") if shot.is_both else ("light",):
                page.emulate_media(color_scheme=scheme)
                picture = _picture(page, shot)
                (FOLDER / (name := f"{shot.name}-{scheme}.png")).write_bytes(picture)
                sizes[name] = len(picture)
    if large := [name for name, size in sizes.items() if size > MOST_BYTES]:
        raise FleetError(f"more than {MOST_BYTES:,} bytes: {', '.join(large)}; take smaller ones")
    return {"bytes": sizes}


def _of_report(report: Path, folder: Path) -> list[Shot]:
    """A search's page as it looks today, and its curve."""
    if not report.is_file():
        raise FleetError(f"there is no report at {report}; `fleet tune` writes one")
    path = folder / "report.html"
    path.write_text(render(json.loads(report.read_text())))
    whole = Shot("tuning-report", path.as_uri(), is_both=True)
    return [whole, Shot("journey", path.as_uri(), "figure:has(.journey)")]


def _of_dashboard(root: Path, page: Any) -> list[Shot]:
    """Pages of the dashboard; logs in."""
    daemon = find_daemon(root)
    if daemon is None:
        raise FleetError(f"no daemon runs on {root}; `fleet up` starts one")
    page.goto(str(daemon.login_url()))
    page.wait_for_selector("tbody tr")
    home, devices = f"{daemon.url}/#/", daemon.get("/v1/devices") or {}
    busiest = max(devices, key=lambda name: devices[name]["records"], default="")
    return [
        Shot("dashboard", home, is_both=True),
        Shot("dashboard-networks", f"{home}networks"),
        Shot("dashboard-models", f"{home}models"),
        Shot("dashboard-device", f"{home}device/{busiest}", "figure:has-text('Canaries')"),
    ]


def _picture(page: Any, shot: Shot) -> bytes:
    page.goto(shot.address)
    page.wait_for_selector("main svg, main tbody tr, main .empty")
    # Numbers that come with the first reading of the store.
    page.wait_for_timeout(3000)
    if shot.part:
        return bytes(page.locator(shot.part).first.screenshot())
    width, height = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, _MOST_HEIGHT)}
    return bytes(page.screenshot(full_page=True, clip=clip))


main = benchmark("pictures", __doc__, Options, take)

if __name__ == "__main__":
    main()
