"""Verbs whose options are the arguments of a request (`fleet.requests.request_kind`).

Called by the modules of verbs while the command line is put together. A verb gets the request, read and
checked, and the options of the engine; it has the request done and prints what came of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from fleet.cli.options import (
    DEFAULT_MODELS,
    AddressOption,
    DetachOption,
    MinutesOption,
    ModelsOption,
    StoreOption,
)
from fleet.cli.output import ConfigOption, JsonOption, SetOption, parse_changes
from fleet.public_engine import EngineOptions
from fleet.requests.request_kind import Flag, RequestArguments, RequestRefused

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
        fields = {name: field for name, field in kind.model_fields.items() if _flag_of(field) is not None}
        measuring, models = kind.needs_engine, kind.uses_models
        engine = {**(_MEASURING if measuring else {}), **(_MODELS if models else {}), **_COMMON}

        def command(**values: Any) -> None:
            given = {name: _as_argument(values[name], field) for name, field in fields.items()}
            request = read_request(
                kind,
                {
                    name: value
                    for name, value in given.items()
                    if value is not None and value != fields[name].default
                },
            )
            more = {parameter.name: values[parameter.name] for parameter in own}
            verb(request, _engine_options(values), values["as_json"], **more)

        parameters = [
            *(_parameter(name, field) for name, field in fields.items()),
            *own,
            *(_keyword(name, option, default) for name, (option, default) in engine.items()),
        ]
        command.__name__, command.__doc__ = verb.__name__, kind.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        return command

    return decorate


def read_request(kind: type[RequestArguments], values: Mapping[str, Any]) -> Any:
    """Read a request that a user typed.

    Raises:
        typer.BadParameter: It is none; the text is that of the request's own refusal.
    """
    try:
        return kind.read(values)
    except RequestRefused as error:
        raise typer.BadParameter(str(error)) from None


def _engine_options(values: Mapping[str, Any]) -> EngineOptions:
    from fleet.cli.requests import follow_aloud
    from fleet.terminal_console import TerminalConsole

    return EngineOptions(
        store=values["store"],
        models=values.get("models", DEFAULT_MODELS),
        config=values["config"],
        settings=parse_changes(values["changes"] or []),
        address=values.get("address"),
        minutes=values.get("minutes"),
        is_detached=values["is_detached"],
        console=TerminalConsole(stderr=values["as_json"]),
        follow=follow_aloud,
    )


def _flag_of(field: FieldInfo) -> Flag | None:
    return next((part for part in field.metadata if isinstance(part, Flag)), None)


def _as_argument(value: Any, field: FieldInfo) -> Any:
    """What a request holds of what a user gave: whole paths, and no empty list."""
    if isinstance(value, list):
        return [_as_argument(part, field) for part in value] or None
    return str(value.absolute()) if isinstance(value, Path) else value


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """An argument of a request as an option, or as a place without one."""
    flag = _flag_of(field)
    assert flag is not None
    value_type, is_list, choices = _shape(field.annotation)
    value_type = Path if flag.is_path else value_type
    value_type = list[value_type] if is_list else value_type  # type: ignore[valid-type]
    metavar = f"[{'|'.join(choices)}]" if choices else None
    if flag.name.startswith("-"):
        option = typer.Option(flag.name, help=field.description, metavar=metavar)
    else:
        option = typer.Argument(metavar=flag.name, help=field.description)
    if field.is_required():
        return _keyword(name, Annotated[value_type, option])
    if is_list or field.default is None:
        return _keyword(name, Annotated[value_type | None, option], None)
    return _keyword(name, Annotated[value_type, option], field.default)


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shape(annotation: Any) -> tuple[Any, bool, tuple[str, ...]]:
    """The type of a value without bounds and None, whether there are several, and the words it may be."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape(inner[0])
    if origin in (Union, UnionType):
        return _shape(next(part for part in inner if part is not NoneType))
    if origin is Literal:
        return str, False, inner
    if origin is list:
        return _shape(inner[0])[0], True, ()
    return annotation, False, ()
