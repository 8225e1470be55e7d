"""Verbs whose options are the arguments of a request (`fleet.requests.request_kind`).

Called by the modules of verbs while the command line is put together. A verb gets the request, read and
checked, and the options of the engine; it has the request done and prints the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fleet.cli.options import (
    DEFAULT_MODELS,
    AddressOption,
    DetachOption,
    MinutesOption,
    ModelsOption,
    StoreOption,
    described,
    option_parameter,
)
from fleet.cli.output import ConfigOption, JsonOption, SetOption, parse_changes
from fleet.daemon.engine_options import EngineOptions
from fleet.requests.request_kind import Argument, RequestArguments, RequestRefused, arguments_of

#: Options of the engine with their defaults, in the order of the help.
_MEASURING: Mapping[str, tuple[Any, Any]] = {
    "address": (AddressOption, None),
    "minutes": (MinutesOption, None),
}
_MODELS: Mapping[str, tuple[Any, Any]] = {"models": (ModelsOption, DEFAULT_MODELS)}
_COMMON: Mapping[str, tuple[Any, Any]] = {
    "store": (StoreOption, None),
    "is_detached": (DetachOption, False),
    "config": (ConfigOption, None),
    "changes": (SetOption, None),
    "as_json": (JsonOption, False),
}


def request_command(kind: type[RequestArguments]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a verb of the command line from a function `(request, options, as_json, ...)`.

    Its options are the request's arguments that have a flag, what the function takes beyond those three, and
    the options of the engine. Its help is the docstring of the request's class.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[3:]
        arguments = [argument for argument in arguments_of(kind) if argument.flag is not None]
        measuring, models = kind.needs_engine, kind.uses_models
        engine = {**(_MEASURING if measuring else {}), **(_MODELS if models else {}), **_COMMON}

        def command(**values: Any) -> None:
            argument_values = {part.name: _as_argument(values[part.name]) for part in arguments}
            request = read_request(
                kind,
                {
                    part.name: argument_values[part.name]
                    for part in arguments
                    if argument_values[part.name] not in (None, part.default)
                },
            )
            more = {parameter.name: values[parameter.name] for parameter in own}
            options = _engine_options(values, is_reader=kind.is_reader)
            verb(request, options, values["as_json"], **more)

        parameters = [
            *map(_parameter, arguments),
            *own,
            *(option_parameter(name, option, default) for name, (option, default) in engine.items()),
        ]
        return described(command, verb.__name__, kind.__doc__, parameters)

    return decorate


def read_request(kind: type[RequestArguments], values: Mapping[str, Any]) -> Any:
    """Read a request that a user typed.

    Raises:
        typer.BadParameter: It is refused; the text names the option.
    """
    try:
        return kind.read(values)
    except RequestRefused as error:
        raise typer.BadParameter(_with_option(kind, str(error))) from None


def _with_option(kind: type[RequestArguments], text: str) -> str:
    """A refusal with the option in place of the argument: `--trials: expected ...`."""
    text = text.removeprefix(f"{kind.kind}: ")
    name, colon, fault = text.partition(": ")
    flags = {part.name: part.flag.name for part in arguments_of(kind) if part.flag is not None}
    return f"{flags[name]}{colon}{fault}" if name in flags else text


def _engine_options(values: Mapping[str, Any], *, is_reader: bool) -> EngineOptions:
    from fleet.cli.requests import follow_aloud
    from fleet.terminal_text import TerminalConsole

    return EngineOptions(
        store=values["store"],
        models=values.get("models", DEFAULT_MODELS),
        config=values["config"],
        settings=parse_changes(values["changes"] or []),
        address=values.get("address"),
        minutes=values.get("minutes"),
        is_detached=values["is_detached"],
        # What readers print may go into a file.
        console=TerminalConsole(stderr=is_reader or values["as_json"]),
        follow=follow_aloud,
    )


def _as_argument(value: Any) -> Any:
    """What a request holds of what a user gave: whole paths, and no empty list."""
    if isinstance(value, list):
        return list(map(_as_argument, value)) or None
    return str(value.absolute()) if isinstance(value, Path) else value


def _parameter(argument: Argument) -> inspect.Parameter:
    """An argument of a request as an option, or as a place without one."""
    name, default, flag = argument.name, argument.default, argument.flag
    assert flag is not None
    value_type = Path if flag.is_path else argument.type
    value_type = list[value_type] if argument.is_list else value_type  # type: ignore[valid-type]
    metavar = f"[{'|'.join(argument.choices)}]" if argument.choices else None
    if flag.name.startswith("-"):
        option = typer.Option(flag.name, help=argument.help, metavar=metavar)
    else:
        option = typer.Argument(metavar=flag.name, help=argument.help)
    if default is msgspec.NODEFAULT:
        return option_parameter(name, Annotated[value_type, option])
    if argument.is_list or default is None:
        return option_parameter(name, Annotated[value_type | None, option], None)
    return option_parameter(name, Annotated[value_type, option], default)
