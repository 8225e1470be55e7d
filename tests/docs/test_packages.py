"""The packages that are installed: pinned, with sums, and none with a security hole that is known."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.docs.test_walls import MODULES, imports

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *EXTRAS.values())
    for line in lines
    if not line.startswith(PROJECT["name"])
]

#: The last release with a published hole that reaches what this project does, and what it was.
HOLES = """
aiohttp      | 3.14.2  | CVE-2026-69244, read out of bounds in the parser (Ray's dashboard)
cryptography | 49.0.0  | CVE-2026-69247, decryption oracle (Ray)
fastapi      | 0.128.3 | allows no Starlette 1.x
filelock     | 3.20.2  | CVE-2025-68146 and CVE-2026-22701, symbolic links
h11          | 0.14.0  | CVE-2025-43859, request smuggling
jinja2       | 3.1.5   | CVE-2025-27516, sandbox
orjson       | 3.11.5  | CVE-2025-67221, recursion without bound
pillow       | 12.1.1  | CVE-2026-40192 (TensorBoard)
pyarrow      | 23.0.0  | CVE-2026-25087, use after free while reading
pyasn1       | 0.6.3   | CVE-2026-59885, quadratic time (Ray)
ray          | 2.51.0  | CVE-2025-62593, calls without a token
starlette    | 1.3.0   | CVE-2025-62727 (Range header) to CVE-2026-54283
torch        | 2.9.1   | CVE-2026-24747, memory of the unpickler
tornado      | 6.5.4   | CVE-2026-35536 (TVM's RPC tracker)
"""


def _locked() -> dict[str, tuple[Version, int]]:
    """Pinned version and number of sums by package."""
    found = {}
    for block in re.split(r"\n(?=\w)", (ROOT / "constraints.txt").read_text()):
        name = re.match(r"([\w.-]+)==([^\s;]+)", block)
        if name is not None:
            found[canonicalize_name(name[1])] = Version(name[2]), block.count("--hash=sha256:")
    return found


def test_every_requirement_is_pinned_within_its_bounds_and_every_pin_has_a_sum() -> None:
    locked = _locked()
    assert len(locked) > 100
    assert [name for name, (_, sums) in locked.items() if not sums] == []
    outside = [one for one in REQUIREMENTS if locked[canonicalize_name(one.name)][0] not in one.specifier]
    assert outside == []


@pytest.mark.parametrize("line", HOLES.strip().splitlines())
def test_no_release_with_a_known_hole_is_admitted(line: str) -> None:
    name, version, hole = (cell.strip() for cell in line.split("|"))
    bounds = [one.specifier for one in REQUIREMENTS if canonicalize_name(one.name) == name]
    assert bounds, f"{name} has no lower bound in pyproject.toml"
    assert not any(bound.contains(version) for bound in bounds), hole


def asked(*extras: str) -> set[str]:
    """Names of the packages that `make` asks for."""
    command = [sys.executable, ROOT / ".ci/requirements.py", *extras]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {canonicalize_name(Requirement(line).name) for line in done.stdout.splitlines()}


def test_a_client_needs_no_heavy_package() -> None:
    heavy = {"apache-tvm", "torch", "ray", "pyarrow", "deltalake", "xgboost-cpu"}
    assert asked().isdisjoint(heavy)
    assert heavy <= asked("daemon")
    assert "torch" not in asked("measure")
    assert asked("train").isdisjoint({"apache-tvm", "ray"})


def test_every_package_that_is_imported_is_asked_for() -> None:
    named = {name.split(".")[0] for path in MODULES for name in imports(path)}
    # Named otherwise than their packages, brought by TVM, or of an extra that a message names.
    known = {"tvm", "tvm_ffi", "yaml", "xgboost", "ml_dtypes", "pynvml", "lightgbm", "pandas", "tensorboard"}
    known |= {"torchvision", "openvino"}
    named -= {*sys.stdlib_module_names, "agents", "fleet", "transfer", "benchmarks", *known}
    assert {canonicalize_name(name) for name in named} - asked("daemon") - asked("networks") == set()


def test_a_client_without_the_heavy_packages_works_and_names_the_extra() -> None:
    code = """
import sys
store, measure, train = "deltalake filelock numpy orjson psutil pyarrow scipy", "tvm tvm_ffi", "torch xgboost"
sys.modules |= dict.fromkeys(f"{store} {measure} {train} safetensors fastapi ray uvicorn".split())
import fleet
from fleet.cli.app import run
try:
    fleet.connect("http://127.0.0.1:9", "token")
except fleet.FleetError as error:
    print(error)
assert run(["--version"]) == 0
assert run(["config", "show", "--json"]) == 0
assert run(["requests", "list"]) == 1
assert run(["workloads"]) == 1
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "no daemon answers" in done.stdout
    assert "no daemon runs" in done.stderr
    assert "pip install 'tensor-fleet[store]'" in done.stderr


def test_a_wheel_holds_all_that_is_read_at_run_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("fleet", "agents", "transfer"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        found = set(packed.namelist())
    wanted = {
        str(path.relative_to(source))
        for package in ("fleet", "agents", "transfer")
        for path in (source / package).rglob("*")
        if path.is_file() and "egg-info" not in str(path)
    }
    assert wanted - found == set()
