"""Verbs of `fleet` in this process, as a person types them."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fleet.cli.app import app
from fleet.cli.app import run as app_run
from fleet.errors import FleetError


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """What a verb prints, its exit code, and the error that `fleet.cli.app.run` makes one line of."""
    return CliRunner().invoke(app, arguments, env=env, catch_exceptions=True)


def play_session(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the commands of a session, and find the words below each in what it prints (see `sessions.txt`)."""
    for step in text.split("$ fleet ")[1:]:
        command, *expected = step.strip().splitlines()
        arguments, _, code = command.partition("   # ")
        assert app_run(shlex.split(arguments)) == int(code or 0), (command, capsys.readouterr())
        printed = capsys.readouterr()
        out, err = " ".join(printed.out.split()), " ".join(printed.err.split())
        if code == "1":
            # Verbs that measure name settings and store first.
            last = [text for text in printed.err.strip().splitlines() if not text.startswith("settings: ")]
            assert last, command
            assert all(text.startswith("fleet: ") for text in last), (command, last)
        where = out + err
        for words in map(str.strip, expected):
            where = err if words.startswith("err:") else where
            is_there = words.removeprefix("err:").removeprefix("!") in where
            assert is_there is not words.startswith("!"), (command, words, where)


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
