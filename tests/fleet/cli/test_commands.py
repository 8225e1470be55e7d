"""The command line as people type it: sessions of commands (`sessions.txt`), and what every verb does."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace

from agents.records import Family
from fleet.cli.app import app, run
from fleet.models.registry import Registry
from fleet.store.store import Store
from tests.cli_fixtures import play_session
from tests.host_fixtures import x86_host
from tests.log_fixtures import ansor, autotvm, write_log
from tests.record_fixtures import make_descriptor, make_record, make_spec, make_workload
from tests.refresh_fixtures import small_model

ROOT = Path(__file__).parents[3]
WORKLOAD = make_workload(1)
RECORD = make_record(1, workload=WORKLOAD.workload_id, measured_at=100.0)


@pytest.fixture(autouse=True)
def _elsewhere(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86 box of level 4 with four cores, in an empty folder, without settings of the caller."""
    for name in [name for name in os.environ if name.startswith("FLEET_")]:
        monkeypatch.delenv(name)
    for module in ("agents.host.probe", "fleet.config.init"):
        monkeypatch.setattr(f"{module}.probe", x86_host)
    monkeypatch.setattr("fleet.config.init.core_groups", lambda: ((0,), (1,), (2,), (3,)))


# ---- what a session begins with ----


def an_empty_folder() -> None:
    write_log(Path("log.json"), [ansor(0)])
    write_log(Path("README.md"), ["# about", "text"])
    Path("file").write_text("mine")
    Path("broken.yaml").write_text(
        "schema: 1\nprotocol:\n  repeats: 3\n  min_repeat_ms: fast\nstoer:\n  path: x\n"
    )


def a_store() -> None:
    """Two CPUs and a GPU with records, in the usual place."""
    with Store.open(Path("runs/store")) as store:
        gpu = replace(make_spec("gpu-a"), family=Family.GPU)
        for spec in (make_spec("dev-a"), make_spec("dev-b"), gpu):
            store.put_device(spec, make_descriptor())
        store.put_workloads([WORKLOAD], own=True)
        for name in ("dev-a", "dev-b", "gpu-a"):
            store.append([replace(RECORD, device_id=name)])
    broken = Path("runs/broken/records/_delta_log")
    broken.mkdir(parents=True)
    (broken / "00000000000000000000.json").write_text("{")


def models() -> None:
    """Two versions of two devices; the second one serves one of them."""
    registry = Registry(Path("runs/models"), clock=lambda: 1.795e9)
    judged = {"top1": [0.8, 0.7, 0.9], "top5": [0.9, 0.85, 0.95], "tau": [0.5, 0.4, 0.6], "workloads": 7}
    facts = {
        **{"table_version": 42, "candidates": 100, "workloads": 9, "seed": 3, "records": {"box.a": 1234}},
        **{"trained_workloads": ["a", "b"], "data_until": {"box.a": 1.795e9, "box.b": None}},
        "verdicts": {"box.a": {"reason": "better <script>|", "judged": judged}},
    }
    registry.publish(registry.add(small_model("box.a", "box.b"), facts), {"box.a": {}, "box.b": {}})
    verdicts = {"box.a": {"reason": "better: 80 % of the pairs right"}, "box.b": {"reason": "worse: no"}}
    more = {**facts, "candidates": 150, "trained_workloads": ["b", "c"], "warm_start": "v000001"}
    version_2 = registry.add(small_model("box.a", "box.b", seed=1), {**more, "verdicts": verdicts})
    registry.publish(version_2, {"box.a": verdicts["box.a"]})


def damaged_models() -> None:
    models()
    (Path("runs/models/v000002") / "model.safetensors").write_bytes(b"torn")
    shutil.copytree("runs/models", "other/models")
    (Path("other/models/v000002") / "manifest.json").write_text('{"heads": [')


def device_files() -> None:
    shutil.copytree(Path(__file__).with_name("device_files"), Path(), dirs_exist_ok=True)


def logs() -> None:
    write_log(Path("logs/resnet-18/xgb.jsonl"), [*(autotvm(n) for n in range(5)), "junk", "# note"])
    write_log(Path("logs/README.md"), ["about"])
    write_log(Path("logs/.hidden.json"), [autotvm(9)])
    Path("no-logs").mkdir()


# ---- the sessions ----


def sessions() -> dict[str, str]:
    """The sessions of `sessions.txt` by name."""
    values = {
        "version": version("tensor-fleet"),
        **{"record": RECORD.record_id[:8], "longer_record": RECORD.record_id[:12]},
        **{"workload": WORKLOAD.name, "workload_id": WORKLOAD.workload_id},
    }
    _, *parts = re.split(r"^\[(\w+)\]\n", Path(__file__).with_name("sessions.txt").read_text(), flags=re.M)
    return {name: text.format(**values) for name, text in zip(parts[::2], parts[1::2], strict=True)}


SESSIONS = sessions()
BEGINNINGS = {
    begin.__name__: begin for begin in (an_empty_folder, a_store, models, damaged_models, device_files, logs)
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SESSIONS)
def test_a_session(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    BEGINNINGS[name]()
    play_session(SESSIONS[name], capsys)
    assert not Path("new").exists()
    assert not Path("no-store").exists()


def test_a_card_escapes_names() -> None:
    models()
    for form in ("md", "html"):
        assert run(["models", "show", "v000001", "--card", f"card.{form}"]) == 0
        text = Path(f"card.{form}").read_text()
        for words in ("v000001", "1,234", "42", "0.800 (0.70 to 0.90)", "not judged", "Limits"):
            assert words in text
        assert "<script>" not in text


# ---- every verb ----


def verbs(group: Any = None, path: str = "") -> Iterator[tuple[str, Any]]:
    group = typer.main.get_command(app) if group is None else group
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_every_verb_has_help_with_an_example_and_can_change_the_settings_that_it_reads() -> None:
    commands = dict(verbs())
    assert len(commands) > 30
    for name, command in commands.items():
        assert re.search(rf"Example: (\w+=\w+ )?fleet {name}", " ".join((command.help or "").split())), name
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert "--config" not in flags or "--set" in flags, name
    assert run(["--help"]) == 0


def test_a_mistyped_store_is_asked_about(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    assert run(["collect", "--store", "stoer"]) == 1
    err = capsys.readouterr().err
    settings = f"settings: built-in ones, as {Path.cwd()} has no configs/fleet.yaml; store: stoer"
    assert err.startswith(f"{settings}, which is not there yet\n")
    assert "no store was made at stoer" in err
    assert not Path("stoer").exists()


def test_a_full_disk_is_one_line_with_advice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "runs/models/v000001")

    monkeypatch.setattr("fleet.models.training.train_version", full)
    with Store.open(Path("runs/store")) as store:
        store.put_device(make_spec("dev-a"), make_descriptor())
    assert run(["train"]) == 1
    assert "the disk is full at runs/models/v000001: free some space" in capsys.readouterr().err
