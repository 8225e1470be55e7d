"""Every benchmark answers `--help`, takes the commands of the documents, and finds the logs by default.

The default commands run at small size on a cut of the real logs, in which every device that is named by its
folder is there under that name.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpus, imports, learning, onboarding, onboarding_parts, training
from benchmarks.onboarding_parts import LOGGED
from benchmarks.training import LOGS
from tests.log_fixtures import AUTOTVM_LOGS, DATA

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = sorted(
    path.stem
    for path in FOLDER.glob("*.py")
    if "ArgumentParser(" in (text := path.read_text(encoding="utf-8")) and '"__main__"' in text
)
ROOT = FOLDER.parent
_DOCUMENTED = re.compile(r"python -m benchmarks\.([a-z_]+)([^`|\n#]*)")
#: Of every device the same: workloads of a network, and lines of each.
NETWORKS, MOST_WORKLOADS, MOST_LINES = ("mobilenet", "resnet-18"), 4, 24


def documented() -> list[tuple[str, str]]:
    """(benchmark, arguments) of every command in README, documents and results."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [pair for page in pages for pair in _DOCUMENTED.findall(page.read_text(encoding="utf-8"))]
    return sorted({(name, arguments.strip()) for name, arguments in found})


class ParsedError(Exception):
    """The command line was understood."""


@pytest.mark.parametrize(("name", "arguments"), documented())
def test_documented_commands_are_understood(
    name: str, arguments: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, *given: Any) -> None:
        parse(parser, *given)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", *shlex.split(arguments)])
    with pytest.raises(ParsedError):
        importlib.import_module(f"benchmarks.{name}").main()


def cut(source: Path, target: Path) -> None:
    """The first lines of the first workloads of a log."""
    target.parent.mkdir(parents=True)
    counts: dict[bytes, int] = {}
    with gzip.open(source) as read, gzip.open(target, "wb") as write:
        for line in read:
            workload = line.partition(b'"config"')[0]
            if workload not in counts and len(counts) == MOST_WORKLOADS:
                continue
            counts[workload] = counts.get(workload, 0) + 1
            if counts[workload] <= MOST_LINES:
                write.write(line)


@pytest.fixture(scope="module")
def few_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cut of the logs, where the benchmarks look for them when nothing else is said."""
    if not DATA.is_dir():
        pytest.skip("../shared/data is not beside the checkout")
    folder = tmp_path_factory.mktemp("data")
    for device in sorted(path.name for path in AUTOTVM_LOGS.iterdir() if path.is_dir()):
        for network in NETWORKS:
            place = Path(device, network, "gridsearch.jsonl.gz")
            if (AUTOTVM_LOGS / place).is_file():
                cut(AUTOTVM_LOGS / place, folder / "autotvm_dropletsearch" / place)
    (folder / "kernel_tuner_hub").symlink_to(DATA / "kernel_tuner_hub")
    with pytest.MonkeyPatch.context() as patch:
        for module in (learning, training, onboarding_parts):
            patch.setattr(module, "LOGS", folder / "autotvm_dropletsearch")
        patch.setattr(onboarding_parts, "DEMO_STORE", folder / "none")
        patch.setattr(imports, "DATA", folder)
        yield folder


Told = Callable[[Any, str], Any]


@pytest.fixture
def told(few_logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """What a benchmark prints that reads few logs."""

    def run(module: Any, words: str) -> Any:
        monkeypatch.setattr(sys, "argv", [module.__name__, "--json", *words.split()])
        module.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.data
@pytest.mark.slow
def test_onboarding_finds_the_logs(told: Told) -> None:
    few = "--quick --epochs 1 --workers 1 --held mobilenet --samples 0 8 --parts --choices nearest"
    found = told(onboarding, f"{few} --target x86-amd3700x --baselines")
    assert found["used"] == ["Devices of imported logs"]
    [table] = found["tables"]
    assert table["devices"] == ["x86-amd3700x"]
    assert set(table["regimes"]["both-new"]) >= {"0", "8"}


@pytest.mark.data
@pytest.mark.slow
def test_learning_finds_the_logs(told: Told) -> None:
    found = told(learning, "--epochs 1 --seeds 1 --held mobilenet --rankers model xgboost")
    assert "skipped" not in found
    assert len(found["devices"]) == len(LOGGED)


@pytest.mark.data
@pytest.mark.slow
def test_training_finds_the_logs(told: Told, few_logs: Path) -> None:
    found = told(training, "--rounds 1 --rows 64 --no-memory")
    assert found["rows"] > 0
    logged = {path.name.lower().replace("_", "-") for path in few_logs.glob("autotvm_dropletsearch/*")}
    assert set(found["devices"]) & logged == set(found["devices"]) != set()
    assert found["ratio_samples_per_s"] > 0


@pytest.mark.data
@pytest.mark.slow
def test_imports_finds_the_logs(told: Told) -> None:
    found = told(imports, "")
    assert set(found["dialects"]) == {"autotvm", "knobs"}
    assert found["unaccounted_lines"] == 0
    assert all(one["imported"] > 0 for one in found["dialects"].values())
    assert all(one["again_imported"] == 0 for one in found["dialects"].values())


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_gpus_finds_the_caches(told: Told) -> None:
    found = told(gpus, "--quick --most 8")
    assert "skipped" not in found
    assert found["best_at_32"] is None or 0 < found["best_at_32"] <= 1


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


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("learning", ["--store", "nowhere"]),
        ("training", ["--store", "nowhere"]),
        ("onboarding", ["--store", "nowhere"]),
        ("search", ["--store", "nowhere", "--device", "x86-64-v3"]),
        ("pretrained", ["--dataset", "nowhere"]),
    ],
)
def test_records_that_are_not_there_are_one_line(
    name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit, match="nowhere"):
        importlib.import_module(f"benchmarks.{name}").main()
