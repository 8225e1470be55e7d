"""The curve of each device's onboardings, beside the models: what they came to, by number of samples.

Written by `fleet.onboarding`, read by it and by `fleet.dashboard`.
"""

from __future__ import annotations

import json
from pathlib import Path

from fleet.json_types import Json, JsonDict

#: Folder of the curves beside the models.
CURVES = "onboarding"


def history(folder: Path, device: str) -> list[JsonDict]:
    """What earlier onboardings of a device came to, fewest samples first; the last of each number counts."""
    points: dict[int, JsonDict] = {}
    try:
        lines = (folder / f"{device}.jsonl").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            point = json.loads(line)
            points[int(point["samples"])] = point
        except (ValueError, KeyError, TypeError):
            continue  # a line that a kill cut short
    return [points[samples] for samples in sorted(points)]


def remember(folder: Path, device: str, point: Json) -> None:
    """Add a point to the curve so far."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{device}.jsonl"
    # A line that a kill cut short ends here, so that it does not take this one along.
    is_cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" * is_cut + json.dumps(point) + "\n")
