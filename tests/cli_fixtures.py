"""Verbs of `fleet` in this process, as a person types them."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from fleet.cli.app import app
from fleet.errors import FleetError


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """What a verb prints, its exit code, and the error that `fleet.cli.app.run` makes one line of."""
    return CliRunner().invoke(app, arguments, env=env, catch_exceptions=True)


def json_of(*arguments: str, env: dict[str, str] | None = None) -> Any:
    """The JSON that a verb prints."""
    result = run(*arguments, "--json", env=env)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def said(*arguments: str) -> str:
    """What a verb prints, its lines joined."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def refusal(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Why a verb fails."""
    result = run(*arguments, env=env)
    assert isinstance(result.exception, FleetError), result.output
    return str(result.exception)
