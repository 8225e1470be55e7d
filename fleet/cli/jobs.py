"""Verbs that do the work: `fleet demo`, `collect`, `tune` and `status`.

Registered by `fleet.cli.app`. Each verb reads settings, calls the module that does the step, and prints what
came of it; readers print one JSON value with `--json`. Loads nothing heavy before a verb runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.cli.options import (
    DEFAULT_MODELS,
    AddressOption,
    DetachOption,
    DevicesOption,
    MinutesOption,
    ModelsOption,
    SeedOption,
    StoreOption,
    load_settings,
    say_places,
)
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json, short_moment
from fleet.terminal_text import print_rows, say

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
    folder: Annotated[
        Path, typer.Option("--folder", help="Where everything of the demo goes.")
    ] = DEFAULT_DEMO,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of going on.")] = False,
    workloads: Annotated[int, typer.Option(min=4, help="Workloads to measure.")] = 32,
    samples: Annotated[int, typer.Option(min=4, help="Candidates of each workload on each device.")] = 12,
    support: Annotated[int, typer.Option(min=8, help="Candidates that the new device may show first.")] = 32,
    folds: Annotated[int, typer.Option(min=2, help="Parts of the workloads, each held out once.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Times to judge, with other samples and weights.")] = 4,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do the whole job on this host: measure, train, onboard one more profile, report.

    Takes about ten minutes on two cores. Run again after an interruption, it goes on.

    Example: fleet demo --workloads 12 --samples 16
    """
    from fleet.report.demo import DemoSettings, run_demo, start_over
    from fleet.report.demo_report import build_report
    from fleet.report.report import write
    from fleet.report.summary import print_summary
    from fleet.terminal_console import TerminalConsole

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


def collect(
    device: DevicesOption = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            "--network",
            help="A name of ours, a .pt2 or .onnx file, transformers:NAME; may be given again.",
        ),
    ] = None,
    store: StoreOption = None,
    workloads: Annotated[int | None, typer.Option(min=1, help="Workloads (workloads.count).")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Candidates each (workloads.samples).")] = None,
    remeasure: Annotated[int, typer.Option(min=0, help="Candidates of each device to measure again.")] = 0,
    noise: Annotated[
        int | None, typer.Option(min=1, help="Only measure this many known candidates twice (A/A run).")
    ] = None,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="Only measure the reference programs of onboardings.")
    ] = False,
    models: ModelsOption = DEFAULT_MODELS,
    address: AddressOption = None,
    minutes: MinutesOption = None,
    detach: DetachOption = False,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure candidates on devices of this host or a cluster, the same ones on each, into the store.

    Where a daemon runs on the store, it does the work, and this command follows it. What the store holds
    already is not measured again. Workloads that take more of their networks' time get more candidates; some
    are random, some evolve from the best measured ones. Once a day it measures a few twice, which tells the
    device's noise floor. It ends with where the time went.

    Example: fleet collect --device x86-64-v3 --workloads 20 --samples 32
    """
    from fleet import public_work
    from fleet.api.client import find_daemon
    from fleet.cli.collected import collected, print_collected
    from fleet.cli.requests import engine_options
    from fleet.collection.time_spent import print_spending, spent_from

    if noise is not None and remeasure:
        raise typer.BadParameter("--noise makes an A/A run and nothing else: leave out --remeasure")
    if fingerprint and (remeasure or noise is not None):
        raise typer.BadParameter("--fingerprint measures nothing else: leave out --remeasure and --noise")
    options = engine_options(
        store, models, config, changes, address, minutes, is_detached=detach, as_json=as_json
    )
    settings = options.read()
    say_places(settings, config, store)
    began_at = time.time()
    if fingerprint:
        result = public_work.fingerprint(device, options=options)
    else:
        result = public_work.collect(
            device,
            networks=network,
            workloads=workloads,
            samples=samples,
            remeasure=remeasure,
            noise=noise,
            seed=seed,
            options=options,
        )
    if result is None:
        return
    path = Path(settings.store.path)
    came = collected(path, began_at)
    if as_json:
        print_json({**result, "collected": came})
        return
    if not fingerprint:
        print_spending(spent_from(result["spent"]))
    for name, ran in result.get("ran", {}).items():
        say(f"{name}: {ran} reference programs ran")
    _print_status(path, beside(path, models))
    daemon = find_daemon(Path(settings.daemon.root))
    print_collected(came, None if daemon is None else daemon.pid)


def tune(
    device: Annotated[str, typer.Argument(help="Id of the device to tune for.")],
    network: Annotated[
        str | None,
        typer.Argument(
            help="A name such as bert-tiny, a .pt2 or .onnx file, transformers:NAME or torchvision:NAME."
        ),
    ] = None,
    networks: Annotated[
        list[str] | None,
        typer.Option("--network", help="The same as an option; may be given again (workloads.networks)."),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="Only this one of the networks' workloads; may be given again."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Candidates to measure.")] = 256,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of database, library and report (runs/tuned/DEVICE).")
    ] = None,
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    address: AddressOption = None,
    minutes: MinutesOption = None,
    detach: DetachOption = False,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search fast programs for a network on one device; write a database, a compiled library and a report.

    The device's champion ranks drawn candidates, so that only promising ones are measured. What is measured
    goes into the store. Run again, the search goes on from the best that is known. Where a daemon runs on the
    store, it does the work, and this command follows it.

    Example: fleet tune x86-64-v4 nets/mine.pt2 --trials 200
    """
    from fleet import public_work
    from fleet.cli.requests import engine_options
    from fleet.tuning.report import print_tuning

    options = engine_options(
        store, models, config, changes, address, minutes, is_detached=detach, as_json=as_json
    )
    say_places(options.read(), config, store)
    found = public_work.tune(
        device,
        networks=[*([network] if network else []), *(networks or [])] or None,
        workloads=workload,
        trials=trials,
        out=out,
        seed=seed,
        options=options,
    )
    if found is None:
        return
    if as_json:
        print_json(found)
    else:
        print_tuning(found)


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
    """Show what the fleet does and has: asks the daemon where one runs, else reads the store.

    With --store it reads that store, and names the models beside it unless --models is given. The JSON has
    what the store says, and under `daemon` what the daemon says (null where none runs).

    Example: fleet status --store runs/demo/store
    """
    from fleet.terminal_console import TerminalConsole

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
    from fleet.api.client import ask

    path = Path(settings.store.path)
    models = beside(path, models)
    view = None if is_named else ask(Path(settings.daemon.root), "/v1/status")
    if as_json:
        from fleet.report.status import read_status

        print_json({**read_status(path, models), "daemon": view})
    elif view is not None:
        from fleet.cli.daemon import print_daemon

        print_daemon(view)
    elif not is_named and not path.exists():
        say(f"no store at {path}; `fleet collect` makes one, and `fleet demo` shows the whole job")
    else:
        _print_status(path, models)


def beside(store: Path, models: Path) -> Path:
    """Folder of the models: the one that was named, else the one beside the store."""
    return store.parent / "models" if models == DEFAULT_MODELS else models


def _print_status(store: Path, models: Path) -> None:
    from fleet.report.status import read_status

    found = read_status(store, models)
    rows = [(name, *_status_cells(entry)) for name, entry in found["devices"].items()]
    print_rows(_STATUS_COLUMNS, rows, _NARROW_STATUS_COLUMNS)
    say("failed: all but ok, rejected too. suspect: measured while the device drifted.")
    say("quarantined: candidates that kill their process. noise: median change of the")
    say("same program measured twice (A/A run), unless the device drifted meanwhile.")
    known = ", ".join(found["models"]) or "none yet"
    say(f"store {found['store']}, table version {found['table_version']}; models: {known}")
    for name, note in found["champions"].items():
        if note["pinned"] or note["retained"]:
            kind = f"{note['model_kind'] or 'damaged'}{', pinned' if note['pinned'] else ''}"
            kept = f"; {note['retained']}" if note["retained"] else ""
            say(f"{name} is served by {note['version']} ({kind}){kept}")


def _status_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    noise, share = entry["noise"], entry["suspect_share"]
    unknown = "drifted" if entry["noise_suspect"] else "-"
    return (
        str(entry["records"]),
        str(entry["failed"]),
        str(entry["rejected"]),
        "-" if share is None else f"{share:.1%}",
        str(entry["quarantined"]),
        f"{noise['median_change']:.2%}" if noise else unknown,
        short_moment(entry["last_at"]),
    )
