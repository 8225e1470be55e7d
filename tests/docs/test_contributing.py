"""Additions that CONTRIBUTING describes: a toy of each, in a copy of the packages, in the files it names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT

GREET = '''"""A greeting: a toy of a request."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from fleet.core.request_words import RequestKind
from fleet.requests.request_kind import Flag, RequestArguments


class Greet(RequestArguments, frozen=True, kw_only=True):
    """Greet somebody."""

    kind: ClassVar = RequestKind.GREETING
    needs_engine: ClassVar = False

    name: Annotated[str, Flag("NAME"), Meta(max_length=8, description="Whom to greet.")]

    def perform(self, work: Any, session: Any, display: Any) -> dict[str, Any]:
        return {"said": f"hello {self.name}"}
'''

GUESS = '''"""A toy of a strategy: the source model's heads as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transfer.adapt.nearest import Nearest


@dataclass(frozen=True, slots=True)
class Guess:
    name: str = "guess"
    least_samples: int = 0

    def adapt(self, *arguments: Any, **options: Any) -> Any:
        return Nearest().adapt(*arguments, **options)
'''

#: Runs in the copy, and prints what it finds of both.
LOOK = """
import json
from fleet.config.settings import FleetConfig
from fleet.core.request_words import Request, RequestKind
from fleet.requests.kinds import check_request, parse_request, read_arguments
from fleet.requests.request_kind import KnownFleet, RequestRefused
from transfer.adapt.registry import NAMES, strategies

fleet = KnownFleet(families={}, trains=False)
body = lambda name: json.dumps({"id": "g", "kind": "greeting", "arguments": {"name": name}}).encode()
request = check_request(parse_request(body("box")), fleet, ())
try:
    check_request(parse_request(body("far too long")), fleet, ())
except RequestRefused as error:
    refusal = str(error)
print(json.dumps({
    "said": read_arguments(request.kind, request.arguments).perform(None, None, None),
    "has_driver": request.kind.has_driver,
    "refusal": refusal,
    "strategy": strategies()["guess"].name,
    "listed": "guess" in NAMES,
    "setting": FleetConfig.model_validate({"onboarding": {"strategy": "guess"}}).onboarding.strategy,
}))
"""


def insert(path: Path, before: str, text: str) -> None:
    """Put some text before another, which the file has once."""
    whole = path.read_text()
    assert whole.count(before) == 1, (path, before)
    path.write_text(whole.replace(before, text + before))


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a copy of the packages does with a toy request and a toy strategy."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("agents", "fleet", "transfer"):
        ignored = shutil.ignore_patterns("__pycache__", "shipped", "static")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    (folder / "fleet/requests/greet.py").write_text(GREET)
    kinds = folder / "fleet/requests/kinds.py"
    insert(kinds, "from fleet.requests.import_logs", "from fleet.requests.greet import Greet\n")
    insert(kinds, "Collect, Evaluate", "Greet, ")
    insert(
        folder / "fleet/core/request_words.py",
        "    @property\n    def has_driver",
        '    GREETING = "greeting"\n\n',
    )
    (folder / "transfer/adapt/guess.py").write_text(GUESS)
    registry = folder / "transfer/adapt/registry.py"
    insert(registry, "from transfer.adapt.maml", "from transfer.adapt.guess import Guess\n")
    insert(registry, "        Scratch(),", "        Guess(),\n")
    insert(folder / "fleet/config/choices.py", '    "scratch",', '    "guess",\n')
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_kind_of_request_is_added_in_three_files(looked: dict[str, object]) -> None:
    assert looked["said"] == {"said": "hello box"}
    assert looked["has_driver"] is True
    assert looked["refusal"] == "greeting: name: expected `str` of length <= 8, got 'far too long'"


def test_a_strategy_is_added_in_three_files(looked: dict[str, object]) -> None:
    assert (looked["strategy"], looked["listed"], looked["setting"]) == ("guess", True, "guess")


@pytest.mark.parametrize(
    ("heading", "files"),
    [
        ("kind of request", ["fleet/requests/", "fleet/requests/kinds.py", "fleet/core/request_words.py"]),
        ("strategy", ["transfer/adapt/", "transfer/adapt/registry.py", "fleet/config/choices.py"]),
    ],
)
def test_contributing_names_the_files_that_the_toys_took(heading: str, files: list[str]) -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"## Add a {heading}")[1].split("\n## ")[0]
    named = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    product = [name for name in named if not name.startswith(("docs/", "tests/"))]
    assert len(product) == len(files)
    assert all(name.startswith(file) for name, file in zip(product, files, strict=True))
