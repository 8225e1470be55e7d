"""Options that verbs share, the settings that they make, and the line that names both.

Loads nothing heavy.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fleet.cli.output import ConfigOption, SetOption, parse_changes
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

#: Options by their key in `Settings...`, and the setting that each replaces.
_SETTING_OPTIONS: Mapping[str, tuple[Any, str]] = {
    "store": (StoreOption, "store.path"),
    "root": (RootOption, "daemon.root"),
    "folder": (FolderOption, "devices.folder"),
}
# The parameter `settings` of a verb: `with_settings` puts the options that make it in its place.
if TYPE_CHECKING:
    Settings = FleetConfig
    StoreSettings = FleetConfig
    RootSettings = FleetConfig
    FolderSettings = FleetConfig
else:
    Settings, StoreSettings = Annotated[Any, ()], Annotated[Any, ("store",)]
    RootSettings, FolderSettings = Annotated[Any, ("root",)], Annotated[Any, ("folder",)]


def with_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes `settings` the options `--config`, `--set` and those of its settings."""
    parameters = inspect.signature(verb, eval_str=True).parameters
    if "settings" not in parameters:
        return verb
    _, names = get_args(parameters["settings"].annotation)

    def command(**values: Any) -> None:
        flags = {_SETTING_OPTIONS[name][1]: values.pop(name) for name in names}
        verb(settings=load_settings(values.pop("config"), flags, values.pop("changes")), **values)

    own = [parameter for name, parameter in parameters.items() if name != "settings"]
    options = {name: _SETTING_OPTIONS[name][0] for name in names}
    options |= {"config": ConfigOption, "changes": SetOption}
    added = [option_parameter(name, option, None) for name, option in options.items()]
    return described(command, verb.__name__, verb.__doc__, [*own, *added])


def described(
    command: Callable[..., None], name: str, help_text: str | None, parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """A command with these parameters, as typer reads them."""
    command.__name__, command.__doc__ = name, help_text
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return command


def option_parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """A parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
