"""What the documentation tells people to type is what the program takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from fleet.config.settings import Strategy

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def test_every_fleet_on_a_cluster_names_its_devices() -> None:
    commands = [
        (page.name, command)
        for page in PAGES
        for command in re.findall(r"fleet up --address [^`\n]*", page.read_text())
    ]
    assert len(commands) >= 4
    assert [one for one in commands if "--device" not in one[1]] == []


def test_the_strategies_of_the_table_are_those_of_the_option() -> None:
    text = (ROOT / "docs/onboarding.md").read_text()
    table = re.search(r"\| name \| k = 0 \|.*?\n\n", text, re.DOTALL)
    assert table is not None
    named: set[str] = set()
    for row in table[0].strip().splitlines()[2:]:
        offered, _, _ = row.split("|")[1].partition("in code only")
        named.update(re.findall(r"`([^`]+)`", offered))
    assert named == set(get_args(Strategy)) - {"auto"}
