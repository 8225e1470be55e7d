"""How `fleet --help` looks: paragraphs that the terminal wraps, flags without a type, verbs in groups.

Loads nothing heavy: help must be instant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from fleet.cli.options import with_settings

#: Characters of choices that the column of types shows without breaking a word.
_LONGEST_CHOICES = 20


class Panel(StrEnum):
    """Groups of verbs, in the order of the help."""

    START = "Start"
    MEASURE = "Measure"
    LEARN = "Learn"
    USE = "Use"
    OPERATE = "Operate"
    DATA = "Data"


class HelpCommand(TyperCommand):
    """A verb whose help shows no type for an option that takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Give the parameters; `--json <bool>` would look as if a value must follow."""
        return _tidy(super().get_params(ctx))


class HelpGroup(TyperGroup):
    """A group of verbs with such a help; verbs stand in the order of `Panel`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """See `HelpCommand.get_params`."""
        return _tidy(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Give the names of the verbs, panel by panel."""
        panels = list(Panel)
        names: list[str] = super().list_commands(ctx)

        def place(name: str) -> int:
            panel = getattr(self.commands[name], "rich_help_panel", None)
            return panels.index(Panel(panel)) if isinstance(panel, str) else len(panels)

        return sorted(names, key=place)


def _tidy(parameters: list[Any]) -> list[Any]:
    """Flags without a type, arguments in capitals, and long lists of choices in the help text."""
    for parameter in parameters:
        if isinstance(parameter, TyperArgument):
            parameter.metavar = parameter.metavar or str(parameter.name).upper()
        elif isinstance(parameter, TyperOption):
            if parameter.is_flag:
                parameter.metavar = ""
            elif len("|".join(choices := _choices(parameter))) > _LONGEST_CHOICES:
                parameter.metavar = "NAME"
                parameter.help = f"{parameter.help} One of {', '.join(choices)}."
    return parameters


def _choices(option: TyperOption) -> list[str]:
    """The words that an option takes; none if it takes any, or after they went into its help text."""
    if option.metavar is not None:
        return option.metavar.strip("[]").split("|") if "|" in option.metavar else []
    return [str(getattr(choice, "value", choice)) for choice in option.type_descriptor.choices or ()]


def add_verb(
    group: typer.Typer, name: str, function: Callable[..., None], panel: Panel | None = None
) -> None:
    """Add a verb, whose help is the docstring of its function."""
    verb = with_settings(function)
    group.command(name, cls=HelpCommand, help=_unwrapped(function), rich_help_panel=panel)(verb)


def _unwrapped(function: Callable[..., None]) -> str:
    """The docstring with one line per paragraph: a terminal of any width wraps it once."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
