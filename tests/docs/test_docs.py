"""What the documentation tells people to type is what the program takes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import fields, replace

from agents.host.device_kinds import environment_id
from agents.records import DeviceKind, DeviceSpec, Protocol
from fleet.config.choices import Strategy
from tests.host_fixtures import local_spec

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
#: The pages of today. Decisions and results are of their day.
CURRENT = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
)


def test_every_fleet_on_a_cluster_names_its_devices() -> None:
    commands = [
        (page.name, command)
        for page in PAGES
        for command in re.findall(r"fleet up --address [^`\n]*", page.read_text())
    ]
    assert len(commands) >= 3
    assert [one for one in commands if "--device" not in one[1]] == []


def shell_blocks(text: str) -> list[str]:
    """The code blocks of a page that a person types in a shell."""
    # Each block is matched, output too: the fence that ends one would begin the next otherwise.
    blocks = re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```", text)
    return [block for language, block in blocks if language in ("", "sh", "bash")]


def fleet_commands() -> Iterator[tuple[str, list[str]]]:
    """Every `fleet ...` line of a code block, and every span that is one, with its page."""
    for page in CURRENT:
        text = page.read_text()
        lines = [line.strip() for block in shell_blocks(text) for line in block.splitlines()]
        spans = re.findall(r"`(fleet [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for line in [*lines, *spans]:
            # Sketches, messages, and options of the command itself are no commands of a verb.
            is_other = re.search(r"[\[|…]|\.\.\.|--debug|^fleet is up", line)
            if line.startswith("fleet ") and not is_other:
                command = re.split(r"\s#| > |; |\n", line)[0].rstrip(" \\")
                yield page.name, shlex.split(command.replace("\n", " "))[1:]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    # With --quiet no warning reaches --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Every page can be reached from every other one.
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    links = set(re.findall(r'href="(?:\./)?([\w./-]+\.html)"', (tmp_path / "index.html").read_text()))
    assert {str(page) for page in pages if page.parent.name != "decisions"} - links == set()
    # It works offline.
    index = (tmp_path / "index.html").read_text()
    assert not re.findall(r"(?:src|href)=\"https?://(?:fonts|cdn|unpkg)", index)


def test_promises_name_tests_that_are_there() -> None:
    for page in ("SECURITY.md", "docs/guarantees.md"):
        named = set(re.findall(r"\btest_\w+\.py", (ROOT / page).read_text()))
        assert len(named) > 10
        assert sorted(named - {path.name for path in (ROOT / "tests").rglob("test_*.py")}) == []


def test_the_index_of_decisions_has_every_number() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    listed = {int(number): name for number, name in re.findall(r"\| (\d+) \| \[.*\]\((.*)\) \|", index)}
    assert listed == {int(path.name[:4]): path.name for path in folder.glob("0*.md")}
    unused = {int(number) for number in re.findall(r"\d+", index.split("| number")[0].replace("(0065", "("))}
    assert set(range(1, max(listed) + 1)) - listed.keys() == unused - listed.keys()


def test_the_name_of_a_test_file_stands_once() -> None:
    # Documents name a test by its file alone, and pytest imports it by that name.
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_paths_and_modules_that_pages_name_are_there() -> None:
    folders = "agents|benchmarks|configs|docs|examples|fleet|tests|transfer"
    named = set()
    for page in CURRENT:
        text = page.read_text()
        modules = re.findall(rf"python -m ((?:{folders})(?:\.[a-z]\w*)+)", text)
        named |= {(page.name, module.replace(".", "/") + ".py") for module in modules}
        spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        named |= {(page.name, one) for one in spans if re.fullmatch(rf"(?:{folders})(?:/[\w.*-]*)+", one)}
    assert len(named) > 50
    assert [one for one in sorted(named) if not list(ROOT.glob(one[1].rstrip("/")))] == []


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose: no code, tables or headings; a span of code counts as a word."""
    prose = []
    for line in re.sub(r"(?ms)^```.*?^```", "\n", text).splitlines():
        is_prose = not re.match(r"\s*(?:\||#|<|!\[)", line)
        # A list item begins a paragraph; so does what follows a table or a heading.
        if not prose or not is_prose or not line.strip() or re.match(r"\s*(?:[-*>]|\d+\.) ", line):
            prose.append("")
        if is_prose:
            prose[-1] += f" {line.strip()}"
    for paragraph in prose:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "Code", paragraph))
        yield from re.split(r"(?<=[.!?:;]) +(?=[A-Z*\"(])", plain.strip())


def test_sentences_are_short() -> None:
    words = [
        (len(re.findall(r"[A-Za-z][\w'-]*", one)), page.name, one)
        for page in CURRENT
        for one in sentences(page.read_text())
    ]
    counted = [one for one in words if one[0] >= 3]
    assert len(counted) > 800
    assert [one for one in counted if one[0] > 35] == []
    assert sum(one[0] > 30 for one in counted) <= 0.02 * len(counted)


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in CURRENT:
        links = re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:)([^)\s\"]+)", page.read_text())
        for link in links:
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            headings = (
                re.findall(r"(?m)^#+ (.+)$", target.read_text())
                if target.suffix == ".md" and target.is_file()
                else []
            )
            anchors = {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}
            if not target.exists() or (anchor and anchor not in anchors):
                broken.append((page.name, link))
    assert broken == []


def test_the_strategies_of_the_table_are_those_of_the_option() -> None:
    text = (ROOT / "docs/onboarding.md").read_text()
    table = re.search(r"\| name \| k = 0 \|.*?\n\n", text, re.DOTALL)
    named = set()
    for row in table[0].strip().splitlines()[2:]:
        offered, _, _ = row.split("|")[1].partition("in code only")
        named.update(re.findall(r"`([^`]+)`", offered))
    assert named == set(get_args(Strategy)) - {"auto"}


#: A snapshot of a host, and the parts of it that the table names, each with another value.
_SNAPSHOT: dict[str, Any] = json.loads("""{
    "arch": "x86_64", "cpu_model": "Example CPU", "kernel": "6.1.0", "python": "3.11.7", "cores": [0],
    "versions": {"apache-tvm": "0.27", "apache-tvm-ffi": "0.1", "cuda-driver": "535"},
    "governor": ["performance"], "turbo": "on", "load": [0.1, 0.2, 0.3], "affinity": [0, 1],
    "memory_available_bytes": 1073741824, "clock_mhz": [2600.0], "temperature_c": 40.0,
    "memory_pressure": 0.0, "steal_ticks": 3, "gpu": {"sm_clock_mhz": 1980}
}""")


def _other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case dict():
            return {name: f"{one}x" for name, one in value.items()}
        case _:
            return [*value, value[0] * 2 if value and isinstance(value[0], str) else 7]


def _changes(spec: DeviceSpec) -> Iterator[tuple[tuple[str, str], dict[str, Any], DeviceSpec, Protocol]]:
    """Each single change of a host, a device or a protocol, and the cell of the table that tells of it."""
    for key, value in _SNAPSHOT.items():
        if key != "versions":
            yield (key, "host"), {**_SNAPSHOT, key: _other(value)}, spec, Protocol()
    for name, value in _SNAPSHOT["versions"].items():
        versions = {**_SNAPSHOT["versions"], name: f"{value}x"}
        yield (f"versions {name}", "host"), {**_SNAPSHOT, "versions": versions}, spec, Protocol()
    for field in fields(DeviceSpec):
        if field.name not in ("kind", "family", "protocol_changes", "replay"):
            value = getattr(spec, field.name)
            text = '{"kind":"llvm","mcpu":"other"}' if field.name == "target_json" else _other(value)
            other = replace(spec, **{field.name: tuple(text) if isinstance(value, tuple) else text})
            yield (field.name, "device"), _SNAPSHOT, other, Protocol()
    for field in fields(Protocol):
        value = getattr(Protocol(), field.name)
        other_value = value / 2 if field.name == "check_share" else _other(value)
        yield (field.name, "protocol"), _SNAPSHOT, spec, replace(Protocol(), **{field.name: other_value})


def test_the_table_says_what_makes_an_environment() -> None:
    text = (ROOT / "docs/measuring-protocol.md").read_text()
    table = re.search(r"\| part \| from \|.*?\n\n", text, re.DOTALL)
    said = {}
    for row in table[0].strip().splitlines()[2:]:
        part, source, *kinds = (cell.strip() for cell in row.strip("|").split("|"))
        names = re.findall(r"`([^`]+)`", part)
        for name in names if len(names) == 1 else [f"versions {one}" for one in names[1:]]:
            said[name, source] = [kind == "yes" for kind in kinds]
    found = {}
    for kind in (DeviceKind.LOCAL, DeviceKind.CUDA, DeviceKind.RPC):
        spec = replace(local_spec({"mcpu": "x86-64-v3"}), kind=kind)
        same = environment_id(_SNAPSHOT, spec, Protocol())
        for cell, snapshot, other, protocol in _changes(spec):
            found.setdefault(cell, []).append(environment_id(snapshot, other, protocol) != same)
    assert said == {cell: enters for cell, enters in found.items() if any(enters)}
