"""`fleet models`: what people and scripts see, and the exit codes that they rely on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.app import run
from fleet.models.registry import Registry
from tests.cli_fixtures import json_of, said
from tests.refresh_fixtures import small_model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two versions of two devices; the second one serves one of them."""
    registry = Registry(tmp_path / "models", clock=lambda: 1000.0)
    facts: dict[str, Any] = {"table_version": 3, "candidates": 100, "trained_workloads": ["a", "b"]}
    registry.publish(registry.add(small_model("box.a", "box.b"), facts), {"box.a": {}, "box.b": {}})
    verdicts = {"box.a": {"reason": "better: 80 % of the pairs right"}, "box.b": {"reason": "worse: no"}}
    more = {
        "table_version": 5,
        "candidates": 150,
        "trained_workloads": ["b", "c"],
        "warm_start": "v000001",
        "reasons": ["50 new records"],
        "verdicts": verdicts,
    }
    version = registry.add(small_model("box.a", "box.b", seed=1), more)
    registry.publish(version, {"box.a": verdicts["box.a"]})
    return registry.folder


def told(arguments: list[str], models: Path) -> Any:
    return json_of("models", *arguments, "--models", str(models))


def shown(arguments: list[str], models: Path) -> str:
    return said("models", *arguments, "--models", str(models))


def test_the_list_tells_whom_each_version_serves(models: Path) -> None:
    first, second = told(["list"], models)
    assert (first["serves"], second["serves"]) == (["box.b"], ["box.a"])
    assert (second["warm_start"], second["reasons"]) == ("v000001", ["50 new records"])
    assert "v000002" in shown(["list"], models)


def test_the_list_goes_on_past_a_damaged_version(models: Path) -> None:
    (models / "v000001" / "manifest.json").write_text('{"heads": [')
    first, second = told(["list"], models)
    assert "v000001/manifest.json: not JSON" in first["damaged"]
    assert (first["heads"], first["candidates"]) == ([], None)
    assert (second["damaged"], "box.a" in second["serves"]) == (None, True)
    text = shown(["list"], models)
    assert "v000001 damaged" in text
    assert "fleet models rollback DEVICE" in text


def test_what_the_list_says_of_a_damaged_version_cures_it_and_it_stops_no_other_one(models: Path) -> None:
    (models / "v000002" / "manifest.json").write_text("")
    for _ in range(2):
        assert Registry(models).add(small_model("box.a"), {"run": "r"}) == "v000003"
    assert told(["rollback", "box.a"], models)["version"] == "v000001"
    shutil.rmtree(models / "v000002")
    assert [one["damaged"] for one in told(["list"], models)] == [None, None]


@pytest.mark.parametrize("size", [None, 100])
def test_damaged_tensors_are_one_line(
    size: int | None, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = models / "v000002" / "model.safetensors"
    raw = tensors.read_bytes()
    tensors.unlink()
    if size is not None:
        tensors.write_bytes(raw[:size])
    assert run(["models", "diff", "v000001", "v000002", "--models", str(models)]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"fleet: {tensors}: {'missing' if size is None else 'torn or changed'}")
    assert "restore it or roll back" in line


def test_an_empty_folder_has_no_versions_and_that_is_no_failure(tmp_path: Path) -> None:
    assert told(["list"], tmp_path) == []
    assert "`fleet train` makes one" in shown(["list"], tmp_path)
    # As with a store: a folder that was named must be there.
    assert run(["models", "list", "--models", str(tmp_path / "none")]) == 1


def test_show_tells_why_a_head_serves_or_not(models: Path) -> None:
    found = told(["show", "v000002"], models)
    assert list(found["serves"]) == ["box.a"]
    assert found["serves"]["box.a"]["before"] == ["v000001"]
    assert found["manifest"]["candidates"] == 150
    assert [one["to"] for one in found["changes"]] == ["v000002"]
    assert found["sha256"] == Registry(models).sha256("v000002")
    text = shown(["show", "v000002"], models)
    assert "worse: no" in text
    assert found["sha256"][:16] in text


def test_show_tells_moments_as_dates(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", clock=lambda: 1.795e9)
    registry.add(small_model("box.a"), {"data_until": {"box.a": 1.795e9, "box.b": None}})
    text = shown(["show", "v000001"], registry.folder)
    assert "e+09" not in text
    assert re.search(r"made \d{4}-\d\d-\d\d \d\d:\d\d", text)
    assert re.search(r"data_until box\.a \d{4}-\d\d-\d\d \d\d:\d\d, box\.b not known", text)


def test_diff_tells_data_weights_and_verdicts(models: Path) -> None:
    found = told(["diff", "v000001", "v000002"], models)
    assert found["manifest"]["candidates"] == [100, 150]
    assert found["workloads"] == {"both": 1, "added": 1, "removed": 1}
    assert set(found["weights"]) == {"backbone", "box.a", "box.b"}
    assert all(distance > 0 for distance in found["weights"].values())
    assert found["judged"]["v000002"]["box.b"]["reason"] == "worse: no"
    same = told(["diff", "v000001", "v000001"], models)
    assert set(same["weights"].values()) == {0.0}
    assert same["manifest"] == {}
    text = shown(["diff", "v000001", "v000002"], models)
    assert "workloads learnt from: 1 by both, 1 only by v000002, 1 only by v000001" in text


def test_rollback_changes_one_device_keeps_the_reason_and_makes_no_folder(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(["rollback", "box.a", "--reason", "slower since Monday"], models)
    assert text == "box.a is served by v000001 from now on (slower since Monday)"
    assert {one.version for one in Registry(models).champions().values()} == {"v000001"}
    back = told(["rollback", "box.a", "--to", "v000002"], models)
    assert (back["version"], back["reason"]) == ("v000002", "by hand")
    assert run(["models", "rollback", "box.a", "--models", str(tmp_path / "none")]) == 1
    assert f"no model under {tmp_path / 'none'}" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_pin_is_shown_and_holds_until_it_is_let_go(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(["pin", "box.a", "v000001"], models) == (
        "box.a is pinned to v000001; to let it go: fleet models unpin box.a"
    )
    assert run(["models", "rollback", "box.a", "--to", "v000002", "--models", str(models)]) == 1
    assert "box.a is pinned to v000001; let it go first: fleet models unpin" in capsys.readouterr().err
    Registry(models).publish("v000002", {"box.b": {}})
    first, _ = told(["list"], models)
    assert (first["champions"][0]["device_id"], first["champions"][0]["pinned_at"] > 0) == ("box.a", True)
    Registry(models).retain({"box.b": "v000007: worse"})
    text = shown(["list"], models)
    assert "v000007: worse" in text
    assert "pinned" in text
    assert told(["unpin", "box.a"], models)["pinned_at"] is None
    assert told(["rollback", "box.a", "--to", "v000002"], models)["rolled_back_from"] == "v000002"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "v000009"], "no model version 'v000009'"),
        (["diff", "v000001", "../x"], "no model version '../x'"),
        (["rollback", "box.z"], "device 'box.z' has no champion"),
        (["rollback", "box.b"], "box.b has no champion before v000001"),
        (["pin", "box.z"], "device 'box.z' has no champion"),
        (["unpin", "box.b"], "box.b is not pinned; v000001 serves it"),
    ],
)
def test_a_failure_is_one_clear_line_and_exit_1(
    arguments: list[str], line: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", *arguments, "--models", str(models)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("fleet: ")
    assert line in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_card_says_what_a_version_is_and_escapes_names(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry(tmp_path / "models")
    judged = {"top1": [0.8, 0.7, 0.9], "top5": [0.9, 0.85, 0.95], "tau": [0.5, 0.4, 0.6], "workloads": 7}
    about = {
        "records": {"box.a": 1234},
        "table_version": 42,
        "candidates": 100,
        "workloads": 9,
        "seed": 3,
        "verdicts": {"box.a": {"judged": judged, "reason": "better <script>|"}},
    }
    registry.publish(registry.add(small_model("box.a", "box.b"), about), {"box.a": {}})
    card = tmp_path / f"card.{form}"
    assert run(["models", "show", "v000001", "--models", str(registry.folder), "--card", str(card)]) == 0
    text = card.read_text()
    for words in ("v000001", "1,234", "42", "0.800 (0.70 to 0.90)", "not judged", "Limits"):
        assert words in text
    assert "<script>" not in text
    assert run(["models", "show", "v000001", "--models", str(registry.folder), "--card", "card.pdf"]) == 1
    assert "ends in .md or .html" in capsys.readouterr().err
