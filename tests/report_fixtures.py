"""A complete small report whose every number can be followed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import asdict

from agents.records import Protocol
from fleet.report.page import complete

WORKLOADS = tuple(f"GMM_1x{size}x{size}x{size}" for size in (32, 64, 128, 256, 512, 1024))


def part(name: str) -> dict[str, Any]:
    """A part of the report of `report_parts.yaml`, to be changed as one likes."""
    parts: dict[str, dict[str, Any]]
    parts = yaml.safe_load(Path(__file__).with_name("report_parts.yaml").read_text())
    return parts[name]


def device(name: str = "", **changes: Any) -> dict[str, Any]:
    """Two workloads, seven good records and three bad ones."""
    return {**part("device"), "note": f"profile {name}", **changes}


def onboarding(**changes: Any) -> dict[str, Any]:
    """Warm is ahead on five of six workloads, and level with the nearest known head."""
    return part("onboarding") | changes


def model(*names: str, **changes: Any) -> dict[str, Any]:
    """Heads that are clearly better than random choice."""
    scores = part("scores") | changes
    return {
        "version": "v1-abc",
        "heads": list(names),
        **{key: dict.fromkeys(names, value) for key, value in scores.items()},
        "parameters": 1000,
        "train_seconds": 75.0,
    }


def full_report(names: tuple[str, ...] = ("first", "second", "new"), **changes: Any) -> dict[str, Any]:
    """Everything there is to report; the last device is the onboarded one."""
    found = part("report") | {
        "devices": {name: device(name) for name in names},
        "workloads": list(WORKLOADS),
        "model": model(*names),
        "onboarding": onboarding(device=names[-1]),
        "protocol": asdict(Protocol()),
    }
    return complete(found | changes)
