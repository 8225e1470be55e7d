"""Every benchmark that lacks a package says so in one line, before it begins."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.extras import EXTRAS, needed_modules

ROOT = Path(__file__).parents[2]
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
RUNNABLE = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()
)


def test_every_benchmark_says_what_it_needs() -> None:
    assert sorted(EXTRAS) == RUNNABLE


@pytest.mark.parametrize("name", RUNNABLE)
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
    seen: set[str] = set()
    others: set[str] = set()
    modules = [f"benchmarks.{name}"]
    while modules:
        module = modules.pop()
        path = ROOT.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module in seen or not path.exists():
            continue
        seen.add(module)
        for imported in imports(path, is_all=module.startswith("benchmarks.")):
            package = imported.split(".")[0]
            if package in PROJECT:
                modules.append(imported)
            elif package not in sys.stdlib_module_names:
                others.add(package)
    assert others - ALWAYS <= set(needed_modules(name))


@cache
def imports(path: Path, *, is_all: bool) -> frozenset[str]:
    return frozenset(_names(ast.parse(path.read_text()).body, is_all))


def _names(nodes: Iterable[ast.AST], is_all: bool) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif is_all or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _names(ast.iter_child_nodes(node), is_all)
