"""A complete small report whose every number can be followed by hand."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from agents.records import Protocol
from fleet.report.page import complete

WORKLOADS = tuple(f"GMM_1x{size}x{size}x{size}" for size in (32, 64, 128, 256, 512, 1024))
SCORE_KEYS = ("top1", "top5", "top1_interval", "top5_interval", "random_top1", "random_top5", "kendall_tau")


def device(name: str = "", **changes: Any) -> dict[str, Any]:
    """Two workloads, seven good records and three bad ones."""
    return {
        "records": 10,
        "ok": 7,
        "failed": 3,
        "records_per_s": 2.5,
        "remeasure_median_change": 0.004,
        "remeasured_pairs": 5,
        "remeasured_disturbed": 0,
        "failures": {
            "build_failed": {"count": 2, "example": "InternalError: no such intrinsic"},
            "run_timeout": {"count": 1, "example": ""},
        },
        "workloads": [
            {"workload": WORKLOADS[0], "best_latency_seconds": 2e-6},
            {"workload": WORKLOADS[1], "best_latency_seconds": 1e-3},
        ],
        "slowest_over_fastest_median": 9.0,
        "slowdown_quantiles": [1.0, 1.5, 2.0, 5.0, 10.0],
        "note": f"profile {name}",
        **changes,
    }


def onboarding(**changes: Any) -> dict[str, Any]:
    """Warm is ahead on five of six workloads, and level with the nearest known head."""
    return {
        "device": "new",
        "samples": 64,
        "strategy": "finetune",
        "seconds": 25.0,
        "seconds_by_part": {"probe": 1.5, "measure": 20.0, "adapt": 3.5},
        "top1": 0.9,
        "top5": 0.97,
        "warm_top1": 0.9,
        "warm_top1_interval": [0.85, 0.95],
        "warm_top5": 0.97,
        "warm_top5_interval": [0.95, 0.99],
        "scratch_top1": 0.7,
        "scratch_top1_interval": [0.6, 0.8],
        "scratch_top5": 0.85,
        "scratch_top5_interval": [0.8, 0.9],
        "nearest_top1": 0.895,
        "nearest_top1_interval": [0.85, 0.94],
        "nearest_top5": 0.96,
        "nearest_top5_interval": None,
        "full_top1": 0.93,
        "full_top1_interval": [0.9, 0.96],
        "full_top5": 0.98,
        "full_top5_interval": None,
        "full_samples": 700,
        "random_top1": 0.4,
        "random_top5": 0.7,
        "workloads": [
            {"workload": name, "warm_top1": 0.9, "scratch_top1": scratch}
            for name, scratch in zip(WORKLOADS, (0.5, 0.6, 0.7, 0.7, 0.8, 0.95), strict=True)
        ],
        "difference": 0.19,
        "difference_interval": [0.08, 0.3],
        "nearest_difference": 0.005,
        "nearest_difference_interval": [-0.02, 0.03],
        **changes,
    }


def model(*names: str, **changes: Any) -> dict[str, Any]:
    """Heads that are clearly better than random choice."""
    scores = (
        dict(zip(SCORE_KEYS, (0.8, 0.95, [0.7, 0.9], [0.9, 0.98], 0.5, 0.75, 0.6), strict=True)) | changes
    )
    return {
        "version": "v1-abc",
        "heads": list(names),
        **{key: dict.fromkeys(names, value) for key, value in scores.items()},
        "parameters": 1000,
        "train_seconds": 75.0,
    }


def full_report(names: tuple[str, ...] = ("first", "second", "new"), **changes: Any) -> dict[str, Any]:
    """Everything there is to report; the last device is the onboarded one."""
    found = {
        "devices": {name: device(name) for name in names},
        "workloads": list(WORKLOADS),
        "held_out": list(WORKLOADS),
        "model": model(*names[:-1]),
        "onboarding": onboarding(device=names[-1]),
        "timing": {"wall_seconds": 200.0, "seconds_by_part": {"build": 60.0, "time": 90.0, "train": 75.0}},
        "similarity": {
            "kendall_tau": {a: {b: 1.0 if a == b else 0.7 for b in names} for a in names},
            "shared_candidates": 7,
        },
        "predicted": {names[-1]: [[place / 15, 1 / (1 + place)] for place in range(16)]},
        "protocol": asdict(Protocol()),
        "host": {"CPU": "Example CPU, 2 cores", "GPU": "none"},
        "versions": {"tvm": "0.27"},
        "caveats": ["The devices are profiles of one CPU. See `fleet doctor`."],
        "command": "fleet demo --seed 7",
        "created_at": 1_700_000_000.0,
    }
    return complete(found | changes)
