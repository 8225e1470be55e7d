"""Every benchmark answers `--help`, and what it reads by default is there where the data is."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from benchmarks.onboarding_parts import LOGGED
from benchmarks.training import LOGS
from tests.log_fixtures import DATA

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = sorted(
    path.stem
    for path in FOLDER.glob("*.py")
    if "ArgumentParser(" in (text := path.read_text(encoding="utf-8")) and '"__main__"' in text
)


def test_there_are_commands() -> None:
    assert {"gpus", "imports", "onboarding", "learning"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not beside the checkout")
def test_default_paths_are_there() -> None:
    assert [name for name in LOGGED if not (LOGS / name).is_dir()] == []
    missing = []
    for name in COMMANDS:
        module = importlib.import_module(f"benchmarks.{name}")
        paths = [value for value in vars(module).values() if isinstance(value, Path)]
        missing += [f"{name}: {path}" for path in paths if DATA in path.parents and not path.exists()]
    assert missing == []
