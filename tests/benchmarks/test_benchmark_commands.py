"""Every benchmark answers `--help`, takes the commands of the documents, and does a little of its work.

The default commands run at small size on a cut of the real logs, in which every device that is named by its
folder is there under that name.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpus, imports, learning, onboarding, onboarding_parts, training
from benchmarks.extras import EXTRAS, needed_modules
from benchmarks.harness import parser_of
from benchmarks.onboarding_parts import LOGGED
from benchmarks.training import LOGS
from tests.docs.test_walls import imports as imported_names
from tests.log_fixtures import AUTOTVM_LOGS, DATA
from tests.table_fixtures import rows

FOLDER = Path(__file__).parents[2] / "benchmarks"
TEXTS = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
#: Benchmarks, and with them the programs that they start.
COMMANDS = sorted(name for name, text in TEXTS.items() if "\nmain = benchmark(" in text)
RUNNABLE = sorted(name for name, text in TEXTS.items() if '__name__ == "__main__"' in text)
ROOT = FOLDER.parent
_DOCUMENTED = re.compile(r"python -m benchmarks\.([a-z_]+)([^`|\n#]*)")
#: Of every device the same: workloads of a network, and lines of each.
NETWORKS, MOST_WORKLOADS, MOST_LINES = ("mobilenet", "resnet-18"), 4, 24
#: Small ones of the spaces of knobs: all have thirty times as many configurations.
SPACES = ("pnpoly",)


def documented() -> list[tuple[str, str]]:
    """(benchmark, arguments) of every command in README, documents and results."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [pair for page in pages for pair in _DOCUMENTED.findall(page.read_text())]
    return sorted({(name, arguments.strip()) for name, arguments in found})


@pytest.mark.parametrize(("name", "arguments"), documented())
def test_documented_commands_are_understood(name: str, arguments: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    parser_of(name, module.__doc__, module.Options).parse_args(shlex.split(arguments))


def cut(source: Path, target: Path) -> None:
    """The first lines of the first workloads of a log."""
    target.parent.mkdir(parents=True)
    counts = {}
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
    (folder / "kernel_tuner_hub").mkdir()
    for name in ("kernels", *SPACES):
        (folder / "kernel_tuner_hub" / name).symlink_to(DATA / "kernel_tuner_hub" / name)
    with pytest.MonkeyPatch.context() as patch:
        for module in (learning, training, onboarding_parts):
            patch.setattr(module, "LOGS", folder / "autotvm_dropletsearch")
        patch.setattr(onboarding_parts, "DEMO_STORE", folder / "none")
        yield folder


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("module", "words", "is_right"),
    [
        (
            onboarding,
            "--quick --epochs 1 --workers 1 --held mobilenet --samples 0 8 --parts "
            "--target x86-amd3700x --baselines",
            lambda found: (
                found["used"] == ["Devices of imported logs"]
                and [table["devices"] for table in found["tables"]] == [["x86-amd3700x"]]
                and set(found["tables"][0]["regimes"]["both-new"]) >= {"0", "8"}
            ),
        ),
        (
            learning,
            "--epochs 1 --seeds 1 --held mobilenet --rankers model xgboost",
            lambda found: len(found["devices"]) == len(LOGGED),
        ),
        (
            training,
            "--rounds 1 --rows 64 --no-memory",
            lambda found: (
                found["ratio_samples_per_s"] > 0
                and {name.lower().replace("_", "-") for name in LOGGED} <= set(found["devices"])
            ),
        ),
        (
            imports,
            "--data FEW",
            lambda found: (
                set(found["dialects"]) == {"autotvm", "knobs"}
                and found["unaccounted_lines"] == 0
                and all(one["imported"] > 0 == one["again_imported"] for one in found["dialects"].values())
            ),
        ),
        (
            gpus,
            "--quick --most 8 --data FEW/kernel_tuner_hub",
            lambda found: found["best_at_32"] is None or 0 < found["best_at_32"] <= 1,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_logs_are_found(
    few_logs: Path,
    module: Any,
    words: str,
    is_right: Callable[[Any], bool],
    capsys: pytest.CaptureFixture[str],
) -> None:
    module.main(["--json", *words.replace("FEW", str(few_logs)).split()])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "skipped" not in found
    assert is_right(found), found


#: A benchmark at small size, and keys of what it prints.
LITTLE = """
    store --small-batches 2 --large-batches 2 --records 500         -> append_64 append_1000 store
    scale --part taking --devices 100 --records 8000                -> records_per_s memory_growth_mb
    scale --part scheduling --devices 20 --decisions 400            -> decision_ms_median
    scale --part start --devices 5 --open-records 1000 --repeats 1  -> secs after_kill
"""


@pytest.mark.slow
@pytest.mark.parametrize(("command", "keys"), rows(LITTLE))
def test_a_little_gives_the_keys(command: str, keys: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *words = command.split()
    importlib.import_module(f"benchmarks.{name}").main([*words, "--json"])
    assert set(keys.split()) <= set(json.loads(capsys.readouterr().out))


def test_there_are_commands() -> None:
    assert {"gpus", "imports", "onboarding", "learning", "chaos", "hostile", "scale", "unlike"} <= set(
        COMMANDS
    )
    assert sorted(EXTRAS) == RUNNABLE


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
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
    "command",
    [
        *(f"{name} --store nowhere" for name in ("learning", "training", "onboarding")),
        *("search --store nowhere --device x86-64-v3", "pretrained --dataset nowhere"),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_records_that_are_not_there_are_one_line(command: str) -> None:
    name, *words = command.split()
    with pytest.raises(SystemExit, match="nowhere"):
        importlib.import_module(f"benchmarks.{name}").main(words)


# ---- what each needs beside the standard library ----

PROJECT = ("agents", "benchmarks", "fleet", "transfer")
#: What the distribution itself needs is there whatever its extras.
ALWAYS = {"h11", "httpx", "msgspec", "pydantic", "rich", "typer", "yaml"}
#: An import hook that hides one package, run by each Python that finds its folder.
HOOK = """
import os, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == os.environ["HIDDEN"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize("name", ["store", "pretrained"])
def test_a_benchmark_without_a_package_ends_at_once_with_the_extra(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    hidden = next(iter(needed_modules(name)))
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "HIDDEN": hidden},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    extras = ",".join(EXTRAS[name])
    line = f"benchmarks.{name} needs {hidden}, not installed here: pip install 'tensor-fleet[{extras}]'"
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (1, "", [line])


@pytest.mark.parametrize("name", RUNNABLE)
def test_what_a_benchmark_imports_is_in_its_extras(name: str) -> None:
    """Of the project's modules what they import at their top, of the benchmark's own all that they import."""
    seen = set()
    others = set()
    modules = [f"benchmarks.{name}"]
    while modules:
        module = modules.pop()
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module in seen or not path.exists():
            continue
        seen.add(module)
        for imported in imported_names(path, top_level_only=not module.startswith("benchmarks.")):
            package = imported.split(".")[0]
            if package in PROJECT:
                modules.append(imported)
            elif package not in sys.stdlib_module_names:
                others.add(package)
    assert others - ALWAYS <= set(needed_modules(name))
