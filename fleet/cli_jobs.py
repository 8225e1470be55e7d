"""Verbs that do the work: `fleet demo`, `collect`, `train`, `eval`, `onboard` and `status`.

Registered by `fleet.cli`. Each verb reads settings, calls the module that does the step, and prints what came
of it; readers print one JSON value with `--json`. Loads nothing heavy before a verb runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.cli_output import ConfigOption, JsonOption, SetOption, parse_changes, print_json, print_rows

if TYPE_CHECKING:
    from fleet.config import FleetConfig

_Devices = Annotated[
    list[str] | None, typer.Option("--device", help="Device id; may be given again (all that fit this host).")
]
_Store = Annotated[Path | None, typer.Option("--store", help="Folder of the store (store.path).")]
_Models = Annotated[Path, typer.Option("--models", help="Folder of the model versions.")]
_Epochs = Annotated[
    int | None, typer.Option("--epochs", min=1, help="Passes over the data (training.epochs).")
]
_Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of everything random (training.seed).")]

DEFAULT_MODELS = Path("runs/models")
DEFAULT_DEMO = Path("runs/demo")


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to a command-line app."""
    for verb in (demo, collect, train, onboard, status):
        app.command(verb.__name__)(verb)
    app.command("eval")(evaluate)


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
    as_json: JsonOption = False,
) -> None:
    """Do the whole job on this host: measure, train, onboard one more profile, report.

    Takes up to ten minutes on two cores. Run again after an interruption, it goes on.

    Example: fleet demo --workloads 12 --samples 16
    """
    from rich.console import Console

    from fleet.config import load_fleet, select_devices
    from fleet.demo import DemoSettings, run_demo, start_over
    from fleet.demo_report import build_report
    from fleet.progress import Display
    from fleet.report import to_json, write
    from fleet.summary import print_summary

    settings = DemoSettings(
        workloads=workloads,
        samples=samples,
        support=support,
        folds=folds,
        repeats=repeats,
        epochs=epochs,
        seed=seed,
    )
    specs = list(select_devices(load_fleet(config).config).values())
    if fresh:
        start_over(folder)
    display = Display(Console(stderr=as_json))
    report = build_report(run_demo(specs, folder, settings, display))
    _, page = write(report, folder)
    if as_json:
        print_json(to_json(report))
    else:
        print_summary(report, page)


def collect(
    device: _Devices = None,
    store: _Store = None,
    workloads: Annotated[int | None, typer.Option(min=1, help="Workloads (workloads.count).")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Candidates each (workloads.samples).")] = None,
    remeasure: Annotated[int, typer.Option(min=0, help="Candidates of each device to measure again.")] = 0,
    noise: Annotated[
        int | None, typer.Option(min=1, help="Only measure this many known candidates twice (A/A run).")
    ] = None,
    seed: _Seed = None,
    config: ConfigOption = None,
    changes: SetOption = None,
) -> None:
    """Measure candidates on devices of this host, the same ones on each, into the store.

    What the store holds already is not measured again. Workloads that take more of their networks' time get
    more candidates; some are random, some evolve from the best measured ones. Once a day it measures a few
    twice, which tells the device's noise floor. It ends with where the time went.

    Example: fleet collect --device x86-64-v3 --workloads 20 --samples 32
    """
    from rich.console import Console

    from fleet.jobs import collect_records
    from fleet.progress import Display
    from fleet.spending import print_spending

    if noise is not None and remeasure:
        raise typer.BadParameter("--noise makes an A/A run and nothing else: leave out --remeasure")
    settings = _settings(
        config,
        changes,
        {
            "devices.ids": tuple(device) if device else None,
            "store.path": str(store) if store else None,
            "workloads.count": workloads,
            "workloads.samples": samples,
            "training.seed": seed,
        },
    )
    display = Display(Console())
    spent = collect_records(settings, display, remeasure=remeasure, noise=noise)
    display.finish()
    print_spending(spent)
    _print_status(Path(settings.store.path), DEFAULT_MODELS)


def train(
    store: _Store = None,
    models: _Models = DEFAULT_MODELS,
    device: _Devices = None,
    epochs: _Epochs = None,
    seed: _Seed = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one model with a head for each device of the store, and keep it as the next version.

    Example: fleet train --store runs/store
    """
    from fleet.jobs import train_version

    settings = _learning_settings(config, store, epochs, seed)
    trained = train_version(settings, models, tuple(device or ()))
    if as_json:
        print_json(trained)
    else:
        print_rows(
            ("model", str(trained["version"])), [(key, _text(value)) for key, value in trained.items()]
        )


def evaluate(
    store: _Store = None,
    device: _Devices = None,
    epochs: _Epochs = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Parts of the workloads (training.folds).")] = None,
    seed: _Seed = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how well each head ranks workloads that it never saw: every workload is held out once.

    Example: fleet eval --folds 5
    """
    from fleet.jobs import judge_heads

    settings = _learning_settings(config, store, epochs, seed, folds)
    scores = judge_heads(settings, tuple(device or ()))
    if as_json:
        print_json({"folds": settings.training.folds, "seed": settings.training.seed, "heads": scores})
        return
    columns = ("top1", "random_top1", "top5", "random_top5", "pairwise", "tau")
    rows = [
        (
            name,
            *(f"{score[column]:.3f}" for column in columns),
            "{:.3f} to {:.3f}".format(*score["top1_interval"]),
        )
        for name, score in scores.items()
    ]
    print_rows(("head", *(column.replace("_", " ") for column in columns), "90 % of top1"), rows)


def onboard(
    device: Annotated[str, typer.Argument(help="Id of the new device; its file must exist.")],
    samples: Annotated[
        int | None, typer.Option(min=8, help="Candidates to measure (onboarding.samples).")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="multitask or scratch (onboarding.strategy).")] = None,
    store: _Store = None,
    models: _Models = DEFAULT_MODELS,
    epochs: _Epochs = None,
    seed: _Seed = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a new device its head: measure a few candidates that its siblings know, adapt, keep a version.

    Needs a store with other devices of its family and a model of them.

    Example: fleet onboard x86-64-v4 --samples 64
    """
    from rich.console import Console

    from fleet.onboarding import onboard_device
    from fleet.progress import Display

    changes = {"onboarding.samples": samples, "onboarding.strategy": strategy}
    settings = _learning_settings(config, store, epochs, seed, more=changes)
    display = Display(Console(stderr=as_json))
    result = onboard_device(settings, device, models, display)
    display.finish()
    if as_json:
        print_json(result)
    else:
        print_rows(("device", device), [(key, _text(value)) for key, value in result.items()])


def status(
    store: _Store = None,
    models: _Models = DEFAULT_MODELS,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the store holds of each device, and which models there are.

    Example: fleet status --store runs/demo/store
    """
    settings = _settings(config, None, {"store.path": str(store) if store else None})
    path = Path(settings.store.path)
    if as_json:
        from fleet.status import read_status

        print_json(read_status(path, models))
    else:
        _print_status(path, models)


def _print_status(store: Path, models: Path) -> None:
    from fleet.status import read_status

    found = read_status(store, models)
    columns = ("records", "failed", "rejected", "suspect", "quarantined", "noise", "last")
    rows = [(name, *_status_cells(entry)) for name, entry in found["devices"].items()]
    print_rows(("device", *columns), rows)
    typer.echo(
        "failed: all but ok, rejected too. suspect: measured while the device drifted.\n"
        "quarantined: candidates that kill their process. noise: median change of the\n"
        "same program measured twice (A/A run), unless the device drifted meanwhile."
    )
    known = ", ".join(found["models"]) or "none yet"
    typer.echo(f"store {found['store']}, table version {found['table_version']}; models: {known}")


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
        time.strftime("%m-%d %H:%M", time.localtime(entry["last_at"])) if entry["last_at"] else "never",
    )


def _settings(config: Path | None, changes: list[str] | None, flags: dict[str, Any]) -> FleetConfig:
    from fleet.config import load_fleet

    return load_fleet(config, {**parse_changes(changes or []), **_given(flags)}).config


def _learning_settings(
    config: Path | None,
    store: Path | None,
    epochs: int | None,
    seed: int | None,
    folds: int | None = None,
    more: dict[str, Any] | None = None,
) -> FleetConfig:
    flags = {
        "store.path": str(store) if store else None,
        "training.epochs": epochs,
        "training.seed": seed,
        "training.folds": folds,
        **(more or {}),
    }
    return _settings(config, None, flags)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None}


def _text(value: Any) -> str:
    """A value for people: short numbers, lists with commas, mappings as pairs."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return "not known" if value is None else str(value)
