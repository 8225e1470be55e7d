"""The walls between packages: who may import whom, and what the command line may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("agents", "transfer", "fleet")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Full names that a module imports; with `top_level_only` those that importing it loads."""
    tree = ast.parse(path.read_text())
    for node in _nodes(tree.body, top_level_only):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _nodes(body: list[ast.stmt], top_level_only: bool) -> Iterator[ast.AST]:
    for statement in body:
        if not top_level_only:
            yield from ast.walk(statement)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.dump(statement.test):
            yield from _nodes(statement.body, True)
        elif not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.If):
            yield from ast.walk(statement)


def of(package: str, names: Iterator[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == package}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_flow_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    if package == "agents":
        assert not of("fleet", imports(path))
        assert not of("transfer", imports(path))
    if package == "transfer":
        assert not of("fleet", imports(path))
        # What a trace may say, and whose it is, is the same wherever TVM may see it.
        shared = ("agents.records", "agents.programs.trace_rules", "agents.trust")
        assert all(name.startswith(shared) for name in of("agents", imports(path)))


def test_each_heavy_package_has_its_places() -> None:
    found = {
        heavy: {relative(path) for path in MODULES if of(heavy, imports(path))}
        for heavy in ("ray", "torch", "tvm")
    }
    assert found["ray"] == {
        "agents/device/ray_actors.py",
        "fleet/transport/ray_hosts.py",
        "fleet/transport/ray_session.py",
        "fleet/models/ray_training.py",
    }
    assert {name.split("/")[0] for name in found["torch"]} == {"transfer"}
    # Programs are made, built and timed beside the devices; TVM's own search and models come to the scorer.
    scored = {"transfer/tvm_cost_model.py", "transfer/baselines/tvm_models.py"}
    assert {name.split("/")[0] for name in found["tvm"] - scored} == {"agents"}


@pytest.mark.parametrize("path", sorted((ROOT / "fleet/core").glob("*.py")), ids=relative)
def test_the_core_knows_no_clock_no_disk_and_no_ray(path: Path) -> None:
    ours = ("fleet.core", "fleet.errors", "agents.records", "agents.device.messages", "agents.lease")
    impure = {"asyncio", "io", "os", "pathlib", "socket", "subprocess", "tempfile", "threading", "time"}
    names = set(imports(path))
    assert not {name.split(".")[0] for name in names} & impure
    assert all(name.startswith(ours) for name in of("fleet", iter(names)) | of("agents", iter(names)))
    assert not of("transfer", iter(names))


@pytest.mark.parametrize("name", ["records", "trust", "trace_rules", "index_maps", "derivation"])
def test_shared_words_and_rules_need_the_standard_library_only(name: str) -> None:
    names = {one.split(".")[0] for one in imports(ROOT / f"agents/{name}.py")}
    assert names <= {*sys.stdlib_module_names, "agents"}
    ours = of("agents", imports(ROOT / f"agents/{name}.py"))
    pure = ("agents.records", "agents.errors", "agents.programs.trace_rules", "agents.programs.index_maps")
    assert all(one.startswith(pure) for one in ours) if name != "records" else not ours


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[-2] == "agents"], ids=relative)
def test_no_agent_module_loads_tvm_when_it_is_imported(path: Path) -> None:
    assert not of("tvm", imports(path, top_level_only=True))


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, fleet.cli.app\n"
        "heavy = ('torch', 'tvm', 'ray', 'pyarrow', 'deltalake', 'matplotlib', 'scipy', 'pydantic')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        names = {name.split(".")[0] for name in imports(path)}
        assert not names & {"pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"}, relative(path)
        assert "torch.load" not in path.read_text(), relative(path)
