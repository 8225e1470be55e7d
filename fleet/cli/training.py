"""Verbs that learn and judge: `fleet train`, `eval` and `onboard`.

Registered by `fleet.cli.app`. Each verb reads settings, calls the module that does the step, and prints what
came of it; with `--json` one JSON value. Loads nothing heavy before a verb runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agents.records import Family
from fleet.cli.options import (
    DEFAULT_MODELS,
    AddressOption,
    DetachOption,
    EpochsOption,
    KnownDevicesOption,
    MinutesOption,
    ModelsOption,
    SeedOption,
    StoreOption,
    learning_settings,
    say_places,
)
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json, value_text
from fleet.errors import FleetError
from fleet.terminal_text import print_rows, say

if TYPE_CHECKING:
    from fleet.api.client import DaemonClient


class SplitOption(StrEnum):
    """The values of `transfer.data.splits.SplitKind`, which help must not load."""

    BY_WORKLOAD = "by-workload"
    WITHIN_WORKLOAD = "within-workload"
    BY_NETWORK = "by-network"
    BY_DEVICE = "by-device"


class ComputeOption(StrEnum):
    """The values of `transfer.train.training.DEVICE_CHOICES`, which help must not load."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class ModelOption(StrEnum):
    """The keys of `transfer.model.kinds.KINDS`."""

    FLEET_TLP = "fleet_tlp"
    MTL_TLP = "mtl_tlp"
    BOTH = "both"


def train(
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    device: KnownDevicesOption = None,
    family: Annotated[
        Family | None, typer.Option("--family", help="Only devices of this family (one model each).")
    ] = None,
    model: Annotated[
        ModelOption | None,
        typer.Option("--model", help="Ours, the published MTL-TLP, or the better of both (training.model)."),
    ] = None,
    epochs: EpochsOption = None,
    compute: Annotated[
        ComputeOption, typer.Option("--compute", help="Where; auto takes a GPU where there is one.")
    ] = ComputeOption.AUTO,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Let it serve the devices where it wins, or none.")
    ] = True,
    detach: DetachOption = False,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train one model with a head for each device of the store, and keep it as the next version.

    CPUs and GPUs share no model: with devices of both, one model is trained for each family.
    Where a daemon writes this store and trains into this folder, it gets a request for each family, and this
    command follows it; --model, --compute, --epochs or --seed train here.
    Every epoch is kept: run again after an interruption, it goes on. With 40 workloads or more, a tenth of
    them tells when to stop. Curves are written beside the models, in `training`.

    Example: fleet train --store runs/store --model both
    """
    from fleet.cli.training_request import each_family, request_trainings
    from fleet.models.training import train_version
    from fleet.public_engine import daemon_of

    more = {"training.model": None if model is None else model.value}
    settings = learning_settings(config, store, epochs, seed, changes, more)
    is_of_its_own = (
        model is not None or compute is not ComputeOption.AUTO or epochs or seed is not None or changes
    )
    daemon = None if is_of_its_own else daemon_of(settings)
    if daemon is not None and _trains(daemon, models):
        named = [one for names in each_family(settings, device or (), family) for one in names]
        request_trainings(daemon, named, is_detached=detach, as_json=as_json)
        return
    if detach:
        raise FleetError(
            "--detach leaves the training to a daemon, but none trains for this store and folder"
        )
    made = []
    for names in each_family(settings, device or (), family):
        with _training_progress() as told:
            trained = train_version(
                settings,
                models,
                names,
                compute=compute.value,
                publish=publish,
                on_progress=told,
            )
        made.append(trained)
        if not as_json:
            _print_trained(trained)
    if as_json:
        print_json(made if len(made) > 1 else made[0])


def _print_trained(trained: dict[str, Any]) -> None:
    rows = [(key, value_text(value)) for key, value in trained.items()]
    print_rows(("model", str(trained["version"])), rows)


def _trains(daemon: DaemonClient, models: Path) -> bool:
    """Whether a daemon trains into a folder of models."""
    view = daemon.get("/v1/status") or {}
    return bool(view.get("training", {}).get("models") == str(models.absolute()))


@contextmanager
def _training_progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error with the time left, by the epochs of a training."""
    from fleet.collection.progress import TerminalDisplay
    from fleet.terminal_console import TerminalConsole

    display = TerminalDisplay(TerminalConsole(stderr=True))
    with display.live():
        has_begun = False

        def show_epoch(done: int, total: int) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                # A training that goes on has some epochs already.
                display.phase("train", total - done + 1)
            display.step(1, "")

        yield show_epoch
        display.finish()


def evaluate(
    store: StoreOption = None,
    device: KnownDevicesOption = None,
    split: Annotated[
        SplitOption | None,
        typer.Option("--split", help="What is new about the candidates judged (by-workload)."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Runs with other splits and weights (3).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="VERSION", help="Judge a kept model (or: latest) on newer records."),
    ] = None,
    models: ModelsOption = DEFAULT_MODELS,
    epochs: EpochsOption = None,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Most parts of the workloads (training.folds).")
    ] = None,
    seed: SeedOption = None,
    detach: DetachOption = False,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how well the heads rank candidates that they never saw.

    Trains on a part of the store and judges on the rest, several times, so that every workload (or network,
    or device) is held out. Beside it stand a random choice, and measuring twice where that was done.
    Where a daemon writes the store, it does the work; with --set, or other models than the daemon's, it is
    done here.

    Example: fleet eval --split by-network --seeds 1
    """
    from fleet.cli.requests import finish, run_request
    from fleet.collection.progress import TerminalDisplay
    from fleet.core.request_words import RequestKind
    from fleet.drivers.work import judge_heads
    from fleet.models.evaluation_table import print_evaluation
    from fleet.public_engine import NOBODY_TO_DETACH_TO, daemon_of
    from fleet.requests.arguments import EvaluationArguments
    from fleet.terminal_console import TerminalConsole

    settings = learning_settings(config, store, epochs, seed, changes, {"training.folds": folds})
    training = {
        "--split": split,
        "--seeds": seeds,
        "--epochs": epochs,
        "--folds": folds,
    }
    unused = [flag for flag, value in training.items() if value is not None]
    if model is not None and unused:
        raise typer.BadParameter(f"--model judges a model that is there: leave out {', '.join(unused)}")
    asked = {
        "devices": device,
        "version": model,
        "split": split.value if split is not None else None,
        "seeds": seeds,
        "epochs": epochs,
        "folds": folds,
        "seed": seed,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    daemon = None if changes else daemon_of(settings)
    if daemon is not None and (model is None or _trains(daemon, models)):
        ended = run_request(daemon, RequestKind.EVALUATION.value, given, is_detached=detach)
        if detach:
            return
        finish(ended, is_printed=False)
        found = ended["result"]
    elif detach:
        raise FleetError(NOBODY_TO_DETACH_TO)
    else:
        display = TerminalDisplay(TerminalConsole(stderr=True))
        found = judge_heads(settings, EvaluationArguments.model_validate(given), models, display)
    if as_json:
        print_json(found)
    else:
        print_evaluation(found)


def onboard(
    device: Annotated[str, typer.Argument(help="Id of the new device; its file must exist.")],
    samples: Annotated[
        int | None,
        typer.Option(min=0, help="Most candidates to measure, earlier ones included (onboarding.samples)."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="auto, or one strategy by name (onboarding.strategy).")
    ] = None,
    selector: Annotated[
        str | None, typer.Option(help="How candidates are chosen (onboarding.selector).")
    ] = None,
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Measure nothing: a recorded device answers, and the truth is told."),
    ] = False,
    store: StoreOption = None,
    models: ModelsOption = DEFAULT_MODELS,
    address: AddressOption = None,
    minutes: MinutesOption = None,
    detach: DetachOption = False,
    epochs: EpochsOption = None,
    seed: SeedOption = None,
    config: ConfigOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a new device its head: measure a few candidates, adapt, tell what to expect.

    It measures what other devices of the store know, and starts from a model of them. Without such a model it
    starts from the one that comes with the program. Asked for more samples later, it goes on from what was
    measured. Where a daemon runs on the store, it does the work; this command follows it.

    Example: fleet onboard x86-64-v4 --samples 64
    """
    from fleet import public_work
    from fleet.cli.requests import engine_options
    from fleet.onboarding.text import lines_of

    options = engine_options(
        store, models, config, changes, address, minutes, is_detached=detach, as_json=as_json
    )
    say_places(options.read(), config)
    asked: dict[str, Any] = {
        "samples": samples,
        "strategy": strategy,
        "selector": selector,
        "epochs": epochs,
        "seed": seed,
    }
    result: dict[str, Any] | None
    if replay:
        from fleet.onboarding.replay import onboard_recorded

        flags = {f"onboarding.{key}": asked[key] for key in ("samples", "strategy", "selector")}
        settings = learning_settings(config, store, epochs, seed, changes, flags)
        result = onboard_recorded(settings, device, models)
    else:
        result = public_work.onboard(device, **asked, options=options)
    if result is None:
        return
    if as_json:
        print_json(result)
    else:
        for line in lines_of(result):
            say(line)
