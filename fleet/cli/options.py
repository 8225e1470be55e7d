"""Options that the verbs of measuring and of learning share, and the settings that they make.

Used by `fleet.cli.jobs` and `fleet.cli.training`. Loads nothing heavy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.cli.output import parse_changes

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

DevicesOption = Annotated[
    list[str] | None, typer.Option("--device", help="Device id; may be given again (all that fit this host).")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="Folder of the store (store.path).")]
ModelsOption = Annotated[Path, typer.Option("--models", help="Folder of the model versions.")]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, help="Passes over the data (training.epochs).")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", min=0, help="Of everything random (training.seed).")
]

DEFAULT_MODELS = Path("runs/models")


def load_settings(
    config: Path | None, flags: dict[str, Any], changes: list[str] | None = None
) -> FleetConfig:
    """Read the settings of a verb.

    Args:
        config: The fleet file, or None for the usual one.
        flags: Values of flags by the key that they set; None where a flag was not given.
        changes: `KEY=VALUE` texts of `--set`.

    Raises:
        FleetError: A file or a text cannot be read.
    """
    from fleet.config.settings import load_fleet

    given = {key: value for key, value in flags.items() if value is not None}
    return load_fleet(config, {**parse_changes(changes or []), **given}).config


def learning_settings(
    config: Path | None, store: Path | None, epochs: int | None, seed: int | None, **more: Any
) -> FleetConfig:
    """Settings of the verbs that learn; `more` holds other flags, `section__key=value`."""
    flags = {
        "store.path": str(store) if store else None,
        "training.epochs": epochs,
        "training.seed": seed,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return load_settings(config, flags)
