"""Print what `make` asks pip for: the project's direct dependencies, and those of the extras named."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]


def lines(wanted: list[str]) -> Iterator[str]:
    """Requirements, an extra of this project replaced by what it holds."""
    for line in wanted:
        own = re.fullmatch(rf"{PROJECT['name']}\[([\w,]+)\]", line)
        if own is None:
            yield line
        else:
            for extra in own[1].split(","):
                yield from lines(PROJECT["optional-dependencies"][extra])


asked = [line for extra in sys.argv[1:] for line in PROJECT["optional-dependencies"][extra]]
print(*dict.fromkeys(lines([*PROJECT["dependencies"], *asked])), sep="\n")
