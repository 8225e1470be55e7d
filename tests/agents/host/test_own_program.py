"""Programs of the project, started from folders of users."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

import agents
from agents.host.llvm_features import ask_llvm
from agents.host.process_control import environment

HERE = str(Path(agents.__file__).parents[1])


@pytest.fixture
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder; it holds modules with names that others need."""
    for name in ("random", "agents"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the user was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


@pytest.mark.tvm
@pytest.mark.usefixtures("users_folder")
def test_modules_in_the_users_folder_are_not_run() -> None:
    assert ask_llvm({"kind": "llvm"}, platform.machine())[1] == ()


@pytest.mark.parametrize("before", ["", "/a", f"/a{os.pathsep}{os.pathsep}/b", HERE])
def test_a_program_finds_the_project_that_started_it(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", before)
    given = [one for one in before.split(os.pathsep) if one not in ("", HERE)]
    assert environment()["PYTHONPATH"].split(os.pathsep) == [HERE, *given]


def test_an_installed_project_does_not_come_before_the_standard_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a")
    monkeypatch.setattr("site.getsitepackages", lambda: [HERE])
    assert environment()["PYTHONPATH"] == "/a"
