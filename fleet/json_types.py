"""Names for JSON objects that no class stands for: answers, reports, manifests, rows of lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: An object that is read.
Json = Mapping[str, Any]
#: An object that is made.
JsonDict = dict[str, Any]
