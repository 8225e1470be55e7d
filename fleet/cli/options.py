"""Options that verbs share, the settings that they make, and the line that names both.

Loads nothing heavy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.cli.output import parse_changes
from fleet.errors import FleetError
from fleet.terminal_text import print_text

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

DevicesOption = Annotated[
    list[str] | None, typer.Option("--device", help="Device id; may be given again (all that fit this host).")
]
KnownDevicesOption = Annotated[
    list[str] | None, typer.Option("--device", help="Device id; may be given again (all of the store).")
]
StoreOption = Annotated[Path | None, typer.Option("--store", help="Folder of the store (store.path).")]
RootOption = Annotated[Path | None, typer.Option("--root", help="The daemon's folder (daemon.root).")]
FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="Folder of the device files (default: devices.folder).")
]
ModelsOption = Annotated[Path, typer.Option("--models", help="Folder of the model versions.")]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", min=1, help="Passes over the data (training.epochs).")
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Random seed (training.seed).")]

AddressOption = Annotated[
    str | None, typer.Option("--address", help="Join the Ray cluster with this head, as host:port.")
]
DetachOption = Annotated[
    bool, typer.Option("--detach", help="Submit to the running daemon and return at once.")
]
MinutesOption = Annotated[
    float | None, typer.Option("--minutes", min=0.1, help="Start no new work after this many minutes.")
]

DEFAULT_MODELS = Path("runs/models")


def load_settings(
    config: Path | None, flags: dict[str, Any], changes: list[str] | None = None
) -> FleetConfig:
    """Read the settings of a verb.

    Args:
        config: The fleet file, or None for the usual one.
        flags: Values of flags, or paths, by the key that they set; None if a flag was not given.
        changes: `KEY=VALUE` texts of `--set`.

    Raises:
        FleetError: A file or a text cannot be read.
    """
    from fleet.config.settings import load_fleet

    flag_values = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in flags.items()
        if value is not None
    }
    return load_fleet(config, {**parse_changes(changes or []), **flag_values}).config


def say_places(settings: FleetConfig, config: Path | None, named_store: Path | str | None = None) -> None:
    """Name settings and store on standard error: the first line of each verb that measures.

    In a terminal, it asks before `--store` makes a new store: a mistyped name must not split a dataset.

    Raises:
        FleetError: The answer was no.
    """
    from fleet.config.settings import DEFAULT_FLEET

    file = config or DEFAULT_FLEET
    origin = f"settings: {file}"
    if config is None and not file.exists():
        origin = f"settings: built-in ones, as {Path.cwd()} has no {file}"
    path = Path(settings.store.path)
    if path.exists():
        print_text(f"{origin}; store: {path}", error=True)
        return
    print_text(f"{origin}; store: {path}, which is not there yet", error=True)
    is_asked = named_store is not None and sys.stdin.isatty()
    if is_asked and not typer.confirm(f"make a new store at {path.absolute()}?", err=True):
        raise FleetError(f"no store was made at {path}; `fleet datasets` lists the stores that there are")
