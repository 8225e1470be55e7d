"""The records of a collection by the reason why they were measured, and what disturbed them.

Called by `fleet collect` at its end. Reads the store; measures nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.terminal_text import print_text

if TYPE_CHECKING:
    import psutil

#: From this share of suspect records on, advice is printed.
_MANY_SUSPECT = 0.2
#: How long programs are watched to see which are busy.
_WATCH_SECS = 0.5
#: Why records are measured in addition to the requested candidates, by their origin.
_EXTRA = {
    "noise": "of A/A runs (the same program twice: the noise floor)",
    "remeasure": "measured again after a drift or on request",
    "confirm": "of the fastest candidates, measured a second time",
    "fingerprint": "of reference programs, by which devices are compared",
}

#: What disturbed a repeat (`agents.programs.gate`).
_REASONS = {
    "preempted": "lost the core to another program",
    "slow_core": "ran on a slower core (a neighbour on the physical core, or its clock)",
    "throttled_power_cap": "were throttled: power cap",
    "throttled_heat": "were throttled: heat",
    "throttled_hardware": "were throttled: hardware",
    "clock_fell": "ran at a lower clock of the GPU: clock fell",
    "other_gpu_process": "shared the GPU: other process on the GPU",
    "slow_gpu": "ran on a slower GPU; its driver gives no reason",
}


def collected(store: Path, since_secs: float) -> dict[str, Any]:
    """Count the records of a store that were measured since a moment, in Unix seconds.

    Returns:
        `{"records", "suspect", "reasons": {reason: repeats}, "candidates", "extra": {origin: count}}`;
        `reasons` counts what disturbed the repeats of suspect records, `candidates` the records that were
        asked for, `extra` all others.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from fleet.store.noise import flag_column
    from fleet.store.store import Store

    origins: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    suspect = 0
    for _, batch in Store.read(store).columns(["origin", "measured_at", "quality"]):
        new = batch.filter(pc.greater_equal(batch.column("measured_at"), since_secs))
        origins.update(new.column("origin").to_pylist())
        is_suspect = flag_column(new.column("quality"), "suspect")
        suspect += int(is_suspect.sum())
        for quality in new.column("quality").filter(pa.array(is_suspect)).to_pylist():
            reasons.update(json.loads(quality).get("disturbed", {}))
    extra = {origin: count for origin, count in origins.items() if origin in _EXTRA}
    records = origins.total()
    return {
        "records": records,
        "suspect": suspect,
        "reasons": dict(reasons.most_common()),
        "candidates": records - sum(extra.values()),
        "extra": extra,
    }


def print_collected(counts: dict[str, Any], daemon_pid: int | None = None) -> None:
    """Print how many records came and why, and what to do if many of them are suspect.

    Args:
        counts: As `collected` gives it.
        daemon_pid: The daemon that measured; None if it was this process.
    """
    parts = [f"{counts['candidates']} candidate{'s' * (counts['candidates'] != 1)}"]
    parts += [f"{count} {_EXTRA[origin]}" for origin, count in sorted(counts["extra"].items())]
    print_text(f"measured in this run: {counts['records']} records: {', '.join(parts)}")
    if counts["records"] and counts["suspect"] >= _MANY_SUSPECT * counts["records"]:
        reasons = counts["reasons"]
        shares = [
            f"{count / sum(reasons.values()):.0%} of their disturbed repeats {_REASONS.get(reason, reason)}"
            for reason, count in reasons.items()
        ]
        why = "; ".join(shares) or "the canary programs ran at another speed meanwhile"
        print_text(
            f"{counts['suspect']} of {counts['records']} records are suspect: {why}. Models still learn from "
            "these records until better ones replace them."
        )
        busiest = ", ".join(busiest_programs(daemon_pid)) or "none, so it has ended"
        print_text(f"busiest other programs now: {busiest}")
        print_text(
            "stop them, or wait; then run `fleet collect --remeasure 50`. `fleet doctor` checks the host"
        )


def fleet_processes(daemon_pid: int | None) -> set[int]:
    """Process ids of this process, of a daemon, and of all below them."""
    from agents.host.host_load import processes_of

    roots = [os.getpid(), *([] if daemon_pid is None else [daemon_pid])]
    return {process.pid for process in processes_of(roots)}


def busiest_programs(daemon_pid: int | None) -> list[str]:
    """Names of up to three other programs that used a tenth of a core or more, with their shares."""
    import time

    import psutil

    own = fleet_processes(daemon_pid)
    others = [process for process in psutil.process_iter(["name"]) if process.pid not in own]
    used: dict[psutil.Process, float] = {}
    for wait_secs in (0.0, _WATCH_SECS):  # the first look begins the time of the second
        time.sleep(wait_secs)
        for process in others:
            with suppress(psutil.Error):
                used[process] = process.cpu_percent() / 100
    top = sorted(used, key=lambda process: -used[process])[:3]
    return [f"{_command(process)} ({used[process]:.0%} of a core)" for process in top if used[process] >= 0.1]


def _command(process: psutil.Process) -> str:
    import psutil

    from agents.host.host_load import program_of

    try:
        return program_of(process.cmdline()) or str(process.info["name"])
    except psutil.Error:
        return str(process.info["name"])
