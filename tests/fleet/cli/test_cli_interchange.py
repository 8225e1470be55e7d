from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.store.store import Store
from tests.cli_fixtures import json_of, refusal, run, said
from tests.log_fixtures import CUDA_TARGET, ansor, autotvm, write_log

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_import_tells_what_became_of_every_line() -> None:
    write_log(Path("logs/resnet-18/xgb.jsonl"), [*(autotvm(n) for n in range(5)), "junk", "# note"])
    write_log(Path("logs/README.md"), ["about"])
    lines = said("import", "logs", "--device", "board-7", "--store", "kept")
    for words in (
        *("device board-7", "imported 5 new records", "rejected 1 not JSON", "not meant 1 comment line"),
        *("networks: resnet-18", "not logs: README.md", "outcomes: ok 5"),
        f"first not JSON: {Path('logs/resnet-18/xgb.jsonl').absolute()}:6: begins with 'junk'",
    ):
        assert words in lines
    assert Store.read("kept").counts().keys() == {"board-7"}


def test_import_as_json_has_the_documented_keys() -> None:
    write_log(Path("log.json.gz"), [*(ansor(n) for n in range(5)), ansor(0), "junk"])
    found = json_of("import", "log.json.gz", "--device", "board-7", "--network", "net")
    counts = [found[name] for name in ("lines", "imported", "duplicates", "unaccounted_lines")]
    assert counts == [7, 5, 1, 0]
    assert found["rejected_by_reason"] == {"not JSON": 1}
    assert found["first_examples"] == {"not JSON": f"{Path('log.json.gz').absolute()}:7: begins with 'junk'"}
    assert (found["dialects"], found["outcomes"], found["networks"]) == ({"ansor": 6}, {"ok": 6}, ["net"])
    again = json_of("import", "log.json.gz", "--device", "board-7", "--network", "net")
    assert (again["imported"], again["duplicates"], again["files_known"]) == (0, 6, 1)


def test_wrong_usage_is_told() -> None:
    write_log(Path("log.json"), [ansor(0)])
    assert run("import", "log.json").exit_code == 2
    assert run("import", "--device", "x").exit_code == 2
    assert run("import", "log.json", "--device", "x", "--dialect", "tenset").exit_code == 2
    assert run("export", "out", "--format", "tar").exit_code == 2


@pytest.mark.parametrize(
    ("path", "device", "words"),
    [
        ("missing", "x", ""),
        ("empty", "x", ""),
        ("log.json", "No Device", ""),
        ("README.md", "board-7", "README.md: expected files of"),
    ],
)
def test_an_import_of_nothing_makes_no_store(path: str, device: str, words: str) -> None:
    write_log(Path("log.json"), [ansor(0)])
    write_log(Path("README.md"), ["# about", "text"])
    Path("empty").mkdir()
    assert words in refusal("import", path, "--device", device, "--store", "new")
    assert not Path("new").exists()


@pytest.mark.parametrize("lines", [["# about", "text"], [autotvm(0), autotvm(1, target=CUDA_TARGET)]])
@pytest.mark.parametrize("is_there", [False, True])
def test_an_import_that_fails_leaves_no_new_store_behind(lines: list[Any], is_there: bool) -> None:
    write_log(Path("log.json"), lines)
    store = Path("some/where/store")
    if is_there:
        store.mkdir(parents=True)
    for _ in range(2):
        refusal("import", "log.json", "--device", "board-7", "--store", str(store))
        assert list(store.iterdir()) == [] if is_there else not Path("some").exists()
    # One that holds anything stays as it was.
    write_log(Path("good.json"), [autotvm(0)])
    json_of("import", "good.json", "--device", "board-7", "--store", str(store))
    refusal("import", "log.json", "--device", "board-8", "--store", str(store))
    assert Store.read(store).rows == 1


def test_export_hands_on_what_was_asked() -> None:
    write_log(Path("log.json"), [ansor(n) for n in range(5)])
    said("import", "log.json", "--device", "board-7")
    found = json_of("export", "out.json", "--format", "ansor", "--device", "board-7")
    assert (found["format"], found["records"], found["files"]) == ("ansor", 5, ["out.json"])
    assert "written" in said("export", "out.json", "--format", "ansor", "--replace")
    back = json_of("import", "out.json", "--device", "board-7")
    assert (back["imported"], back["duplicates"]) == (0, 5)
