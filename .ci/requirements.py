"""Print what `make` asks pip for: the project's direct dependencies, and those of the extras named."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = [project["optional-dependencies"][name] for name in sys.argv[1:]]
print(*project["dependencies"], *(line for lines in extras for line in lines), sep="\n")
