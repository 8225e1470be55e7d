"""The command as a person meets it: exit codes, one clear line, instant help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from fleet.cli.app import app, run
from fleet.cli.options import load_settings, say_places
from fleet.store.store import Store
from tests.record_fixtures import make_descriptor, make_spec

ROOT = Path(__file__).parents[3]
VERBS = (
    *("init", "probe", "doctor", "demo", "collect", "train", "eval", "onboard", "status", "import", "export"),
    *("tune", "up", "show", "workloads", "datasets", "config show"),
    *(f"models {verb}" for verb in ("list", "show", "diff", "rollback", "pin", "unpin")),
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, without settings of the caller."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FLEET_")]:
        monkeypatch.delenv(name)


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail with exit 1 and one line; return the line."""
    assert run(arguments) == 1
    captured = capsys.readouterr()
    # Verbs that measure name settings and store first.
    lines = [line for line in captured.err.strip().splitlines() if not line.startswith("settings: ")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("fleet: ")
    assert "Traceback" not in captured.err
    return lines[0]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*verb.split(), "--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"Example: (\w+=\w+ )?fleet {verb}", output)


def test_every_verb_that_reads_settings_can_change_them() -> None:
    def verbs(group: Any, path: str) -> Iterator[tuple[str, set[str]]]:
        for name, one in group.commands.items():
            if hasattr(one, "commands"):
                yield from verbs(one, f"{path} {name}")
            else:
                yield f"{path} {name}", {flag for each in one.params for flag in each.opts}

    flags = dict(verbs(typer.main.get_command(app), "fleet"))
    assert len(flags) > 30
    assert [name for name, has in flags.items() if "--config" in has and "--set" not in has] == []


@pytest.mark.parametrize("verb", ["status", "workloads", "export out.parquet", "store verify", "show abcdef"])
def test_a_setting_holds_for_verbs_that_read(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run([*verb.split(), "--set", "store.path=elsewhere/store"])
    said = capsys.readouterr()
    assert (code == 0) == (verb == "status")
    assert "elsewhere/store" in said.out + said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-verb"],
        ["status", "--no-such-flag"],
        ["demo", "--folds", "1"],
        ["collect", "--noise", "5", "--remeasure", "5"],
        ["collect", "--noise", "0"],
        *(["models", "no-such"], ["models", "show"], ["models", "diff", "v000001"]),
    ],
)
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    assert run(arguments) == 2


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"tensor-fleet {version('tensor-fleet')}"


def test_the_installed_command_fails_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fleet.cli", "status", "--store", "nowhere"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        *((f"{verb} --store no-store", "no-store") for verb in ("status", "train", "eval")),
        # /sys refuses even root.
        ("demo --folder /sys/tensor-fleet", "/sys/tensor-fleet"),
    ],
)
def test_a_place_that_cannot_be_is_named(
    arguments: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in failure(arguments.split(), capsys)
    assert not Path("no-store").exists()


def test_an_unknown_device_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("configs/hardware").mkdir(parents=True)
    for name in ("x86-64-v2", "x86-64-v3"):
        Path(f"configs/hardware/{name}.yaml").write_text((ROOT / f"configs/hardware/{name}.yaml").read_text())
    line = failure(["collect", "--device", "x86-64-v33"], capsys)
    assert "x86-64-v33" in line
    assert "x86-64-v3" in line.replace("x86-64-v33", "")
    assert not Path("runs").exists()


def test_all_faults_of_a_configuration_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text(
        "schema: 1\nprotocol:\n  repeats: 3\n  min_repeat_ms: fast\nstoer:\n  path: x\n"
    )
    assert run(["collect", "--config", "fleet.yaml"]) == 1
    errors = capsys.readouterr().err
    assert "repeats" in errors
    assert "repeat" in errors.replace("repeats", "")
    assert "min_repeat_ms" in errors
    assert "stoer" in errors
    assert "store" in errors.replace("stoer", "")
    assert "Traceback" not in errors


def test_a_file_where_the_store_should_be_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("store").write_text("mine")
    assert "store" in failure(["collect", "--store", "store", "--workloads", "1", "--samples", "1"], capsys)
    assert Path("store").read_text() == "mine"


def test_settings_and_store_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    store = Path("data/mine")
    say_places(load_settings(None, {"store.path": str(store)}), None, store)
    assert capsys.readouterr().err == (
        f"settings: built-in ones, as {Path.cwd()} has no configs/fleet.yaml; "
        "store: data/mine, which is not there yet\n"
    )
    store.mkdir(parents=True)
    Path("configs").mkdir()
    Path("configs/fleet.yaml").write_text("schema: 1\nstore: {path: data/mine}\n")
    say_places(load_settings(None, {}), None)
    assert capsys.readouterr().err == "settings: configs/fleet.yaml; store: data/mine\n"


def test_a_mistyped_store_is_asked_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert "no store was made at stoer" in failure(["collect", "--store", "stoer"], capsys)
    assert not Path("stoer").exists()


def test_a_full_disk_is_one_line_with_advice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "runs/models/v000001")

    monkeypatch.setattr("fleet.models.training.train_version", full)
    Path("runs").mkdir()
    with Store.open(Path("runs/store")) as store:
        store.put_device(make_spec("dev-a"), make_descriptor())
    line = failure(["train"], capsys)
    assert "the disk is full at runs/models/v000001: free some space" in line


def test_status_without_a_store_says_what_makes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status"]) == 0
    assert "no store at runs/store; `fleet collect` makes one" in capsys.readouterr().out


def test_onboarding_without_a_model_says_what_to_run_first_and_starts_no_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.daemon.embedded.run_embedded", None)
    without = ["--set", "onboarding.shipped=false"]
    assert "fleet train" in failure(["onboard", "x86-64-v2", "--samples", "8", *without], capsys)


@pytest.mark.ray
@pytest.mark.tvm
def test_a_missing_package_of_tvm_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken" / "tvm"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import no_such_extra_of_tvm\n")
    environment = {**os.environ, "PYTHONPATH": str(broken.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "fleet.cli", "collect", "--workloads", "1", "--samples", "1"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    # On a busy host Ray may need a second attempt, and says so.
    places, *lines = [
        line for line in done.stderr.strip().splitlines() if not line.startswith("Ray did not start")
    ]
    assert places.startswith("settings: built-in ones")
    assert len(lines) == 1, done.stderr
    assert "no_such_extra_of_tvm" in lines[0]
    assert "fleet doctor" in lines[0]
