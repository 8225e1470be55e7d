"""What the documentation tells people to type is what the program takes."""

from __future__ import annotations

import re
from pathlib import Path

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
