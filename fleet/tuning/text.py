"""The result of a search for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.terminal_console import TerminalConsole
from fleet.terminal_text import print_rows
from fleet.tuning.report import SIDE_NAMES, millis, network_sentence

_COLUMNS = ("workload", "uses", "tried", "failed", "before", "best", "faster", "GFLOP/s")


def print_tuning(found: Mapping[str, Any]) -> None:
    """Print what `fleet.tuning.tuning.tune_device` returns: a line a workload, then the networks."""
    say = TerminalConsole().print
    print_rows(_COLUMNS, [_cells(one) for one in found["workloads"]])
    for network, secs in found["networks"].items():
        before = secs.get("before_secs")
        was = f", {millis(before)} before ({before / secs['best_secs']:.2f} times)" if before else ""
        say(f"{network}: {millis(secs['best_secs'])} for its tuned workloads{was}")
    for name, one in found["whole_networks"].items():
        say(network_sentence(name, one))
        for side, why in one.get("absent", {}).items():
            say(f"{name}: {SIDE_NAMES[side]} was not timed: {why}")
        if one.get("library"):
            say(f"library for TVM's Relax: {one['library']}")
    who = f"ranked by {found['model']}" if found["model"] else f"not ranked: {found['why_no_model']}"
    parts = ", ".join(f"{name} {secs:.0f} s" for name, secs in found["seconds"].items() if secs >= 0.5)
    say(f"{found['trials']} candidates measured, {found['failed']} failed; {who}; {parts}")
    say(f"ended by: {found['ended']}")
    say(f"database for TVM: {found['database']}")
    say(f"report: {found['report']}")


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    before, best = one["before_secs"], one["best_secs"]
    return (
        one["name"],
        str(one["weight"]),
        str(one["trials"]),
        str(one["failed"]),
        millis(before),
        millis(best),
        f"{before / best:.2f}x" if before and best else "-",
        f"{one['gflops_per_s']:.1f}" if best else "-",
    )
