"""The walls between packages: who may import whom, and what the command line may load."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import run_code

ROOT = Path(__file__).parents[2]
PACKAGES = ("agents", "transfer", "fleet")
#: Folders from the lowest to the highest: a module knows those of its own folder and of lower ones. Modules
#: beside the folders come first, for all may know them, but for those of `TOP`.
FOLDERS = {
    package: ("", *folders.split())
    for package, folders in {
        "agents": "host spool programs sandbox networks.rewrites networks device",
        "transfer": "language features data model search train adapt evaluate tvm_cost_model",
        "fleet": """
            core config store.delta state store archive interchange.logs interchange.dialects
            interchange transport coverage drivers models planner onboarding tuning requests engine refresh
            comparison dashboard api daemon report datasets doctor public public_model cli
        """,
    }.items()
}
TOP = {"transfer.tvm_cost_model"} | {f"fleet.{name}" for name in ("public", "public_model")}
MOST_MODULES = 20
#: Words that end in -ing and are nouns of the field.
NOUNS = {
    *("training", "timing", "testing", "onboarding", "tuning", "scheduling", "logging", "ranking", "binding"),
}
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path, *, top_level_only: bool = False) -> tuple[str, ...]:
    """Full names that a module imports; with `top_level_only` those that importing it loads."""
    found = []
    for node in _nodes(parsed(path).body, top_level_only):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


def _nodes(body: list[ast.stmt], top_level_only: bool) -> Iterator[ast.AST]:
    for statement in body:
        if not top_level_only:
            yield from ast.walk(statement)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.dump(statement.test):
            yield from _nodes(statement.body, True)
        elif not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.If):
            yield from ast.walk(statement)


def of(package: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == package}


def module_of(name: str) -> str:
    """The module of this project that an imported name is, or is of."""
    path = ROOT.joinpath(*name.split("."))
    return name if path.with_suffix(".py").exists() or path.is_dir() else name.rpartition(".")[0]


def height(module: str) -> int:
    """Where the folder of a module stands in its package."""
    package, _, rest = module.partition(".")
    folder = rest if module in TOP else rest.rpartition(".")[0]
    return FOLDERS[package].index(folder)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def modules_of(package: str) -> list[Path]:
    return [path for path in MODULES if path.relative_to(ROOT).parts[0] == package]


def test_imports_flow_one_way() -> None:
    for path in modules_of("agents"):
        assert not of("fleet", imports(path)) | of("transfer", imports(path)), relative(path)
    # What a trace may say, whose it is, and how a file of others is opened, are the same everywhere.
    shared = ("agents.records", "agents.files", "agents.programs.trace_rules")
    for path in modules_of("transfer"):
        assert not of("fleet", imports(path)), relative(path)
        assert all(name.startswith(shared) for name in of("agents", imports(path))), relative(path)


def test_a_module_knows_its_own_folder_and_lower_ones() -> None:
    for package in PACKAGES:
        for path in modules_of(package):
            if path.name == "__init__.py":
                continue
            here = height(relative(path)[:-3].replace("/", "."))
            for name in map(module_of, of(package, imports(path))):
                if not ROOT.joinpath(*name.split(".")).is_dir():
                    assert height(name) <= here, f"{relative(path)} imports {name}"


def test_the_architecture_page_shows_the_folders_as_they_are() -> None:
    lines = [
        line for line in (ROOT / "docs/architecture.md").read_text().splitlines() if line.startswith("| `")
    ]
    expected = []
    for package, folders in FOLDERS.items():
        for folder in folders:
            if f"{package}.{folder}" in TOP:
                continue
            path = ROOT.joinpath(package, *filter(None, folder.split(".")))
            module = ast.parse((path / "__init__.py").read_text())
            says = (ast.get_docstring(module) or "").split("\n")[0]
            expected.append(f"| `{relative(path)}` | {says} |")
    assert lines == expected


def test_folders_are_of_a_size_one_can_hold_in_the_head() -> None:
    for folder in {path.parent for path in MODULES}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, relative(folder)


def test_modules_are_named_by_nouns() -> None:
    assert not [relative(path) for path in MODULES if path.stem.endswith("ing") and path.stem not in NOUNS]


def test_a_class_name_stands_for_one_thing() -> None:
    found = {}
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(relative(path))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_each_heavy_package_has_its_places() -> None:
    found = {
        heavy: {relative(path) for path in MODULES if of(heavy, imports(path))}
        for heavy in ("ray", "torch", "tvm")
    }
    assert found["ray"] == {
        "agents/device/ray_actors.py",
        "fleet/transport/ray_cluster.py",
        "fleet/transport/ray_hosts.py",
        "fleet/transport/ray_session.py",
        "fleet/transport/ray_start.py",
    }
    # A network comes from torch, and is timed beside it, in a confined process of its own.
    names = ("first_run", "latency", "outputs", "roundings", "sources", "torch_import", "torch_program")
    read = {f"agents/networks/{name}.py" for name in (*names, "rewrites/attention")}
    # A tuned library runs in the user's own process, on tensors if these are what it is given.
    run = {"fleet/public_library.py"}
    assert {name.split("/")[0] for name in found["torch"] - read - run} == {"transfer"}
    # Programs are made, built and timed beside the devices; TVM's own search and models come to the scorer.
    scored = {"transfer/tvm_cost_model.py"}
    assert {name.split("/")[0] for name in found["tvm"] - scored - run} == {"agents"}


def test_the_core_knows_no_clock_no_disk_and_no_ray() -> None:
    words = ("agents.records", "agents.values", "agents.device.messages")
    ours = ("fleet.core", "fleet.errors", *words)
    impure = {"asyncio", "io", "os", "pathlib", "socket", "subprocess", "tempfile", "threading", "time"}
    for path in (ROOT / "fleet/core").glob("*.py"):
        names = set(imports(path))
        assert not {name.split(".")[0] for name in names} & impure, relative(path)
        assert all(name.startswith(ours) for name in of("fleet", names) | of("agents", names)), relative(path)
        assert not of("transfer", names), relative(path)


@pytest.mark.parametrize(
    "name",
    [
        *("records", "devices", "protocol"),
        *("programs/trace_rules", "programs/index_maps", "programs/derivation"),
    ],
)
def test_shared_words_and_rules_need_declarations_and_the_standard_library_only(name: str) -> None:
    path = ROOT / f"agents/{name}.py"
    assert {one.split(".")[0] for one in imports(path)} <= {*sys.stdlib_module_names, "agents", "msgspec"}
    pure = ("agents.records", "agents.values", "agents.errors")
    rules = ("agents.programs.trace_rules", "agents.programs.index_maps")
    pure += rules if "/" in name else ("agents.devices", "agents.protocol")
    assert all(one.startswith(pure) for one in of("agents", imports(path)))


def test_no_agent_module_loads_tvm_when_it_is_imported() -> None:
    for path in modules_of("agents"):
        assert not of("tvm", imports(path, top_level_only=True)), relative(path)


def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, fleet.cli.app\n"
        "heavy = ('torch', 'tvm', 'ray', 'pyarrow', 'deltalake', 'matplotlib', 'scipy', 'pydantic')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run_code(code, cwd=ROOT) == "[]\n"


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        names = {name.split(".")[0] for name in imports(path)}
        assert not names & {"pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"}, relative(path)
        # Example inputs of a network, whose pickle was compared with the names of tensors before.
        text = path.read_text().replace("torch.load(io.BytesIO(examples), weights_only=True)", "")
        assert "torch.load" not in text, relative(path)
