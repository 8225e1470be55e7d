"""The packages that are installed: pinned, with sums, and none with a security hole that is known."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [Requirement(line) for lines in PROJECT["optional-dependencies"].values() for line in lines]

#: The last release with a published hole that reaches what this project does, and what it was.
HOLES = {
    "aiohttp": ("3.14.2", "CVE-2026-69244, read out of bounds in the parser (Ray's dashboard)"),
    "cryptography": ("49.0.0", "CVE-2026-69247, decryption oracle (Ray)"),
    "fastapi": ("0.128.3", "allows no Starlette 1.x"),
    "filelock": ("3.20.2", "CVE-2025-68146 and CVE-2026-22701, symbolic links"),
    "h11": ("0.14.0", "CVE-2025-43859, request smuggling"),
    "jinja2": ("3.1.5", "CVE-2025-27516, sandbox"),
    "orjson": ("3.11.5", "CVE-2025-67221, recursion without bound"),
    "pillow": ("12.1.1", "CVE-2026-40192 (matplotlib)"),
    "pyarrow": ("23.0.0", "CVE-2026-25087, use after free while reading"),
    "pyasn1": ("0.6.3", "CVE-2026-59885, quadratic time (Ray)"),
    "ray": ("2.51.0", "CVE-2025-62593, calls without a token"),
    "starlette": ("1.3.0", "CVE-2025-62727 (Range header) to CVE-2026-54283"),
    "torch": ("2.9.1", "CVE-2026-24747, memory of the unpickler"),
    "tornado": ("6.5.4", "CVE-2026-35536 (TVM's RPC tracker)"),
}


def _locked() -> dict[str, tuple[Version, int]]:
    """Pinned version and number of sums by package."""
    found = {}
    for block in re.split(r"\n(?=\w)", (ROOT / "constraints.txt").read_text()):
        name = re.match(r"([\w.-]+)==([^\s;]+)", block)
        if name is not None:
            found[canonicalize_name(name[1])] = Version(name[2]), block.count("--hash=sha256:")
    return found


def test_every_pin_has_a_sum() -> None:
    locked = _locked()
    assert len(locked) > 100
    assert [name for name, (_, sums) in locked.items() if not sums] == []


@pytest.mark.parametrize("requirement", [*REQUIREMENTS, *EXTRAS], ids=str)
def test_every_requirement_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    version, _ = _locked()[canonicalize_name(requirement.name)]
    assert version in requirement.specifier


@pytest.mark.parametrize("name", HOLES)
def test_no_release_with_a_known_hole_is_admitted(name: str) -> None:
    bounds = [one.specifier for one in REQUIREMENTS if canonicalize_name(one.name) == name]
    assert bounds, f"{name} has no lower bound in pyproject.toml"
    version, hole = HOLES[name]
    assert not any(bound.contains(version) for bound in bounds), hole
