"""Verbs that train and evaluate models: `fleet train`, `eval` and `onboard`.

Registered by `fleet.cli.app`. Each verb reads settings, calls the module that does the step, and prints what
came of it; with `--json` one JSON value. Loads nothing heavy before a verb runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agents.records import Family
from fleet.cli.options import (
    DEFAULT_MODELS,
    DetachOption,
    EpochsOption,
    KnownDevicesOption,
    ModelsOption,
    SeedOption,
    StoreOption,
    load_settings,
    say_places,
)
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json
from fleet.cli.request_command import request_command
from fleet.cli.requests import finish, run_request
from fleet.config.choices import ModelKind
from fleet.daemon.engine_options import EngineOptions, trains_into
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.requests.evaluate import Evaluate
from fleet.requests.onboard import Onboard
from fleet.terminal_text import print_text

if TYPE_CHECKING:
    from agents.records import DeviceId
    from fleet.api.client import DaemonClient
    from fleet.config.settings import FleetConfig


def train(
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    device: KnownDevicesOption = None,
    family: Annotated[
        Family | None, typer.Option("--family", help="Only devices of this family (one model per family).")
    ] = None,
    model: Annotated[
        ModelKind | None,
        typer.Option(
            "--model", help="FleetTLP, the published MTL-TLP, or the better of both (training.model)."
        ),
    ] = None,
    epochs: EpochsOption = None,
    compute: Annotated[
        Literal["auto", "cpu", "cuda"],
        typer.Option("--compute", help="Processor to train on; auto takes a GPU if there is one."),
    ] = "auto",
    publish: Annotated[
        bool,
        typer.Option(
            "--publish/--no-publish", help="Let it serve the devices on which it is better, or no device."
        ),
    ] = True,
    detach: DetachOption = False,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one model with a head for each device of the store, and keep it as the next version.

    CPUs and GPUs share no model: with devices of both, one model is trained per family.

    If a daemon writes this store and trains into this folder, it gets a request per family, and this command
    follows it. With --model, --compute, --epochs or --seed the training runs here.

    Every epoch is kept: after an interruption, the same command continues. With 40 workloads or more, a tenth
    of them decides when to stop. Curves are written to the folder `training` next to the models.

    Example: fleet train --store runs/store --model both
    """
    from fleet.daemon.engine_options import daemon_of
    from fleet.models.training import train_version

    flags = {
        "store.path": store,
        "training.epochs": epochs,
        "training.seed": seed,
        "training.model": model,
    }
    settings = load_settings(config, flags, changes)
    is_of_its_own = model is not None or compute != "auto" or epochs or seed is not None or changes
    daemon = None if is_of_its_own else daemon_of(settings)
    if daemon is not None and trains_into(daemon, models):
        named = [device_id for names in each_family(settings, device or (), family) for device_id in names]
        request_trainings(daemon, named, is_detached=detach, as_json=as_json)
        return
    if detach:
        raise FleetError(
            "--detach leaves the training to a daemon, but none trains for this store and folder"
        )
    versions = []
    for names in each_family(settings, device or (), family):
        with _training_progress() as show_epoch:
            trained = train_version(
                settings,
                models,
                names,
                compute=compute,
                publish=publish,
                on_progress=show_epoch,
            )
        versions.append(trained)
        if not as_json:
            _print_trained(trained)
    if as_json:
        print_json(versions if len(versions) > 1 else versions[0])


def _print_trained(trained: JsonDict) -> None:
    """Print what a version learned from, and for each device whether it serves and why."""
    version, kind, way = trained["version"], trained["model_kind"], trained["way"]
    print_text(
        f"{version} ({kind if way == kind else f'{kind}, {way}'}): trained in {trained['seconds']:.1f} s on "
        f"{trained['candidates']:,} candidates of {trained['workloads']:,} workloads; heads for "
        f"{', '.join(trained['heads'])}"
    )
    for name, why in sorted(trained["serves"].items()):
        print_text(f"{name} is served by {version}: {why}")
    for name, why in sorted(trained["kept_champions"].items()):
        print_text(f"{name}: {version} is a challenger: {why}")
    for name, why in sorted(trained.get("given_back", {}).items()):
        print_text(f"{name} is served by the shipped model again: {why}")
    if trained["devices_left_out"]:
        print_text(f"devices without a head in it: {', '.join(trained['devices_left_out'])}")
    print_text(f"folder: {trained['path']}; `fleet models show {version}` and --json give every number")
    for other in trained.get("others", ()):
        _print_trained(other)


@contextmanager
def _training_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error with the time left, by the epochs of a training."""
    from fleet.planner.progress import TerminalDisplay
    from fleet.terminal_text import TerminalConsole

    display = TerminalDisplay(TerminalConsole(stderr=True))
    with display.live():
        has_begun = False

        def show_epoch(done: int, total: int) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                # A continued training has some epochs already.
                display.phase("train", total - done + 1)
            display.step(1, "")

        yield show_epoch
        display.finish()


@request_command(Evaluate)
def evaluate(request: Evaluate, options: EngineOptions, as_json: bool) -> None:
    """Have heads evaluated, and print how well they rank."""
    from fleet.daemon.embedded import run
    from fleet.models.evaluation_table import print_evaluation

    evaluation = run(request, options)
    if evaluation is None:
        return
    if as_json:
        print_json(evaluation)
    else:
        print_evaluation(evaluation)


@request_command(Onboard)
def onboard(
    request: Onboard,
    options: EngineOptions,
    as_json: bool,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Simulate with recorded measurements, and show expected next to measured quality.",
        ),
    ] = False,
) -> None:
    """Have a device onboarded and print what to expect of its head."""
    from fleet.daemon.embedded import run
    from fleet.onboarding.text import lines_of

    settings = options.read(request.setting_changes())
    say_places(settings, options.config)
    result: JsonDict | None
    if replay:
        from fleet.onboarding.replay import onboard_recorded

        result = onboard_recorded(settings, request.device)
    else:
        result = run(request, options)
    if result is None:
        return
    if as_json:
        print_json(result)
    else:
        for line in lines_of(result):
            print_text(line)


def request_trainings(
    daemon: DaemonClient, devices: Sequence[str], *, is_detached: bool, as_json: bool
) -> None:
    """Ask a daemon to train each family of the given devices, or all families; follow one after another.

    Raises:
        FleetError: The daemon has no such device, refuses, or a training failed.
    """
    devices_by_id = daemon.get("/v1/devices")
    if devices_by_id is None:
        raise FleetError(
            f"the daemon at {daemon.url} is stopping; start it again, then run this command again"
        )
    families = {device_id: str(device["family"]) for device_id, device in devices_by_id.items()}
    if unknown := [device_id for device_id in devices if device_id not in families]:
        listed = ", ".join(sorted(families)) or "none"
        raise FleetError(f"the daemon knows no device {unknown[0]!r}; it has: {listed}")
    ended: list[JsonDict] = []
    for family in sorted({families[device_id] for device_id in devices or families}):
        named = sorted({device_id for device_id in devices if families[device_id] == family})
        arguments = {"devices": named} if named else {"family": family}
        ended.append(run_request(daemon, "training", arguments, is_detached=is_detached))
    if as_json:
        print_json(ended)
    for request in ended:
        finish(request, is_printed=not as_json)


def each_family(settings: FleetConfig, devices: Collection[str], family: str | None) -> list[tuple[str, ...]]:
    """Group devices by the model to train.

    Args:
        settings: With the store.
        devices: Devices to learn; all of the store if empty.
        family: Only those of this family; None for every family.

    Returns:
        Device ids, one tuple per model; the devices as given if all are of one family.

    Raises:
        FleetError: There is no store, a device is not in it, or there is none of the family with two `ok`
            records.
    """
    from fleet.store.store import Store

    reader = Store.read(Path(settings.store.path))
    entries = reader.devices()
    families: dict[str, list[DeviceId]] = {}
    for device_id, entry in sorted(entries.items()):
        if device_id in devices or not devices:
            families.setdefault(str(entry.spec.family), []).append(device_id)
    if family is None and len(families) <= 1:
        return [tuple(devices)]
    if unknown := sorted(device_id for device_id in devices if device_id not in entries):
        listed = ", ".join(sorted(entries)) or "none"
        raise FleetError(f"device {unknown[0]!r} has no records in {settings.store.path}; it holds: {listed}")
    counts = reader.counts()
    chosen = [
        # A device whose log held next to nothing keeps no other from being learnt.
        tuple(
            device_id
            for device_id in names
            if device_id in devices or (device_id in counts and counts[device_id].ok > 1)
        )
        for of, names in families.items()
        if family is None or of == family
    ]
    if not any(chosen):
        raise FleetError(
            f"no device of family {family or 'any'} has two ok records in {settings.store.path}; "
            "measure more with `fleet collect`, or import a log"
        )
    return [names for names in chosen if names]
