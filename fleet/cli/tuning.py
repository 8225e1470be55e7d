"""The verb `fleet tune`: search fast programs on one device. Loads nothing heavy before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.options import (
    DEFAULT_MODELS,
    AddressOption,
    DetachOption,
    MinutesOption,
    ModelsOption,
    SeedOption,
    StoreOption,
    say_places,
)
from fleet.cli.output import ConfigOption, JsonOption, SetOption, print_json


def register(app: typer.Typer) -> None:
    """Add the verb of this module to a command-line app."""
    app.command("tune")(tune)


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
