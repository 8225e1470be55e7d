"""Verbs that do the work: `fleet demo`, `collect`, `tune` and `status`.

Registered by `fleet.cli.app`. Each verb reads settings, calls the module that does the step, and prints what
came of it; readers print one JSON value with `--json`. Loads nothing heavy before a verb runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.api.client import ask, find_daemon
from fleet.cli.options import DEFAULT_MODELS, ModelsOption, StoreOption, load_settings, say_places
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json, short_moment
from fleet.cli.request_command import read_request, request_command
from fleet.daemon.engine_options import EngineOptions
from fleet.requests.collect import Collect
from fleet.requests.fingerprint import FingerprintDevices
from fleet.requests.request_kind import RequestArguments
from fleet.requests.tune import Tune
from fleet.terminal_text import print_rows, print_text

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

DEFAULT_DEMO = Path("runs/demo")
_WATCH_SECS = 2.0

_STATUS_COLUMNS = ("device", "records", "failed", "rejected", "suspect", "quarantined", "noise", "last")
#: Headings where names of devices are long: no column wider than its numbers.
_NARROW_STATUS_COLUMNS = tuple(
    {"rejected": "re-\njected", "suspect": "sus-\npect", "quarantined": "quaran-\ntined"}.get(name, name)
    for name in _STATUS_COLUMNS
)


def demo(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of all files of the demo.")] = DEFAULT_DEMO,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing.")] = False,
    workloads: Annotated[int, typer.Option(min=4, help="Workloads to measure.")] = 32,
    samples: Annotated[int, typer.Option(min=4, help="Candidates per workload and device.")] = 12,
    support: Annotated[
        int, typer.Option(min=8, help="Candidates that the new device may measure first.")
    ] = 32,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the workloads, each held out once.")] = 4,
    repeats: Annotated[
        int, typer.Option(min=1, help="Evaluations, each with other samples and weights.")
    ] = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do the whole job on this host: measure, train, onboard one more profile, report.

    Takes about ten minutes on two cores. After an interruption, the same command continues.

    Example: fleet demo --workloads 12 --samples 16
    """
    from fleet.report.demo import DemoSettings, run_demo, start_over
    from fleet.report.demo_report import build_report
    from fleet.report.page import print_summary, write
    from fleet.terminal_text import TerminalConsole

    settings = DemoSettings(
        workloads=workloads,
        samples=samples,
        support=support,
        folds=folds,
        repeats=repeats,
        epochs=epochs,
        seed=seed,
    )
    if fresh:
        start_over(folder)
    console = TerminalConsole(stderr=as_json)
    fleet = load_settings(config, {"store.path": folder / "store"}, changes)
    say_places(fleet, config)
    report = build_report(run_demo(fleet, folder, settings, console))
    _, page = write(report, folder)
    if as_json:
        print_json(report)
    else:
        print_summary(report, page)


@request_command(Collect)
def collect(
    request: Collect,
    options: EngineOptions,
    as_json: bool,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="Only measure the reference programs of onboardings.")
    ] = False,
) -> None:
    """Have a collection done, or fingerprints measured; print what came and what the store holds."""
    from fleet.cli.collected import collected, print_collected
    from fleet.daemon.embedded import run
    from fleet.planner.settings import Spent, print_spending

    arguments: RequestArguments = request
    if fingerprint:
        if unused := sorted(request.values().keys() - {"devices"}):
            raise typer.BadParameter(f"--fingerprint measures nothing else: leave out {', '.join(unused)}")
        arguments = read_request(FingerprintDevices, request.values())
    settings = options.read(arguments.setting_changes())
    say_places(settings, options.config, options.store)
    began_at = time.time()
    result = run(arguments, options)
    if result is None:
        return
    path = Path(settings.store.path)
    came = collected(path, began_at)
    if as_json:
        print_json({**result, "collected": came})
        return
    if not fingerprint:
        print_spending(Spent(**account) for account in result["spent"])
    for device_id, programs in result.get("ran", {}).items():
        print_text(f"{device_id}: {programs} reference programs ran")
    _print_status(path, beside(path, options.models))
    daemon = find_daemon(Path(settings.daemon.root))
    print_collected(came, None if daemon is None else daemon.pid)


@request_command(Tune)
def tune(
    request: Tune,
    options: EngineOptions,
    as_json: bool,
    network: Annotated[
        str | None, typer.Argument(help="Network to tune, as for --network.", show_default=False)
    ] = None,
) -> None:
    """Have a search done and print what it made faster."""
    from fleet.daemon.embedded import run
    from fleet.tuning.report import print_tuning

    out = request.out or str(Path("runs/tuned", request.device).absolute())
    networks = [*([network] if network else []), *(request.networks or [])]
    network_arguments = {"networks": networks} if networks else {}
    request = read_request(Tune, {**request.values(), "out": out, **network_arguments})
    say_places(options.read(), options.config, options.store)
    result = run(request, options)
    if result is None:
        return
    if as_json:
        print_json(result)
    else:
        print_tuning(result)


def status(
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")
    ] = False,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show devices, records and models of the fleet, from the daemon if one runs, else from the store.

    With --store it reads that store, and the models in the folder next to it unless --models is given. The
    JSON describes the store, and has the state of the daemon under `daemon` (null if none runs).

    Example: fleet status --store runs/demo/store
    """
    from fleet.terminal_text import TerminalConsole

    if watch and as_json:
        raise typer.BadParameter("--watch redraws a terminal: leave out --json")
    settings = load_settings(config, {"store.path": store}, changes)
    while True:
        _show_status(settings, models, is_named=store is not None, as_json=as_json)
        if not watch:
            return
        time.sleep(_WATCH_SECS)
        TerminalConsole().clear()


def _show_status(settings: FleetConfig, models: Path, *, is_named: bool, as_json: bool) -> None:
    path = Path(settings.store.path)
    models = beside(path, models)
    view = None if is_named else ask(Path(settings.daemon.root), "/v1/status")
    has_no_store = not is_named and not path.exists()
    if as_json:
        from fleet.report.status import empty_status, read_status

        print_json({**(empty_status if has_no_store else read_status)(path, models), "daemon": view})
    elif view is not None:
        from fleet.cli.daemon import print_daemon

        print_daemon(view)
    elif has_no_store:
        print_text(f"no store at {path}; `fleet collect` makes one, and `fleet demo` shows the whole job")
    else:
        _print_status(path, models)


def beside(store: Path, models: Path) -> Path:
    """Folder of the models: the given one, or `models` next to the store if that is the default."""
    return store.parent / "models" if models == DEFAULT_MODELS else models


def _print_status(store: Path, models: Path) -> None:
    from fleet.report.status import read_status

    status = read_status(store, models)
    rows = [(name, *_status_cells(entry)) for name, entry in status["devices"].items()]
    print_rows(_STATUS_COLUMNS, rows, _NARROW_STATUS_COLUMNS)
    print_text("failed: every outcome except ok; rejected is one of them. suspect: too")
    print_text("few undisturbed repeats. quarantined: candidates that kill their process.")
    print_text("noise: median change of the same program measured twice (A/A run); - if it was")
    print_text("not measured, drifted if the device drifted meanwhile.")
    versions = ", ".join(status["models"]) or "none yet"
    print_text(f"store {status['store']}, table version {status['table_version']}; models: {versions}")
    for name, note in status["champions"].items():
        kind = note["model_kind"] or "damaged"
        shipped = f", of the shipped model {note['shipped']}" if note["shipped"] else ""
        pinned = ", pinned" if note["pinned"] else ""
        why = note["reason"] or "no reason given"
        print_text(f"{name} is served by {note['version']} ({kind}{shipped}{pinned}): {why}")
        if note["retained"]:
            print_text(f"{name}, challenger {note['retained']}")


def _status_cells(entry: dict[str, Any]) -> tuple[object, ...]:
    noise, share = entry["noise"], entry["suspect_share"]
    unknown = "drifted" if entry["noise_suspect"] else "-"
    return (
        entry["records"],
        entry["failed"],
        entry["rejected"],
        "-" if share is None else f"{share:.1%}",
        entry["quarantined"],
        f"{noise['median_change']:.2%}" if noise else unknown,
        short_moment(entry["last_at"]),
    )
