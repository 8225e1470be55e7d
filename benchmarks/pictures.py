"""The pictures of README: `python -m benchmarks.pictures --report runs/tuned/DEVICE/report.html`.

A browser opens the report of a real `fleet tune`, and the dashboard of the daemon that runs on `--root`. It
takes both in light and in dark and writes `docs/pictures/NAME-SCHEME.png`. Each must be smaller than 200 KB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from benchmarks.dashboard import CHROMIUM
from benchmarks.harness import Figures, Option, benchmark
from fleet.api.client import find_daemon
from fleet.errors import FleetError

FOLDER = Path(__file__).parents[1] / "docs/pictures"
SCHEMES = ("light", "dark")
MOST_BYTES = 200_000
_WAIT_MS = 60_000
_WINDOW = {"width": 1100, "height": 860}


@dataclass(frozen=True)
class Options:
    """What is taken."""

    report: Annotated[Path | None, Option("report.html of a search")] = None
    root: Annotated[Path | None, Option("folder of a running daemon, such as runs/fleet")] = None


def take(options: Options) -> Figures:
    """Take the pictures.

    Raises:
        FleetError: There is no browser, no report or no daemon, or a picture is too large.
    """
    if not CHROMIUM.exists():
        raise FleetError(f"{CHROMIUM} is missing: apt-get install chromium")
    pages = {}
    if options.report is not None:
        if not options.report.is_file():
            raise FleetError(f"there is no report at {options.report}; `fleet tune` writes one")
        pages["tuning-report"] = options.report.absolute().as_uri()
    if options.root is not None:
        daemon = find_daemon(options.root)
        if daemon is None:
            raise FleetError(f"no daemon runs on {options.root}; `fleet up` starts one")
        pages["dashboard"] = ""
    sizes = {}
    for name, address in pages.items():
        for scheme in SCHEMES:
            picture = FOLDER / f"{name}-{scheme}.png"
            picture.write_bytes(_picture(address or _login(options.root), scheme))
            sizes[picture.name] = picture.stat().st_size
    if large := [name for name, size in sizes.items() if size > MOST_BYTES]:
        raise FleetError(f"more than {MOST_BYTES:,} bytes: {', '.join(large)}")
    return {"bytes": sizes}


def _login(root: Path | None) -> str:
    """A link that logs in; each works once."""
    daemon = None if root is None else find_daemon(root)
    if daemon is None:
        raise FleetError("the daemon has stopped")
    return str(daemon.login_url())


def _picture(address: str, scheme: Any) -> bytes:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport=_WINDOW, color_scheme=scheme)
        page.set_default_timeout(_WAIT_MS)
        page.goto(address)
        page.wait_for_selector("svg, tbody tr")
        # Numbers that come with the first reading of the store.
        page.wait_for_timeout(3000)
        picture: bytes = page.screenshot()
        browser.close()
    return picture


main = benchmark("pictures", __doc__, Options, take)

if __name__ == "__main__":
    main()
