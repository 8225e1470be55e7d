"""Ask a running daemon for the scores of schedules. Needs neither torch nor TVM: httpx is all it imports.

from fleet.api.scores import score
found = score(Path("runs/fleet"), "x86-64-v4", workload_id, traces)
best = found.order[0]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert, to_builtins

from agents.records import Workload
from fleet.api.client import find_daemon
from fleet.errors import FleetError

#: Traces of one request.
MOST_TRACES = 4096
#: Longer than a daemon lets a request wait and be scored.
_TIMEOUT_SECS = 600.0


class ScoreQuestion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request for scores of schedules of one workload."""

    device: str
    workload: Annotated[
        str | dict[str, Any], Meta(description="an id of the store, or all of `agents.records.Workload`")
    ]
    traces: Annotated[list[str], Meta(extra_json_schema={"maxItems": MOST_TRACES})]
    dialect: str = "meta_schedule"
    version: str = ""


class ScoreAnswer(Struct, frozen=True, kw_only=True):
    """What a champion makes of some schedules."""

    device_id: str
    #: The champion that gave the scores.
    version: str
    #: Score of each schedule in (0, 1], higher is faster, as the model itself gives it to the last bit; None
    #: where a trace cannot be read.
    scores: tuple[float | None, ...]
    #: Why, by place.
    refused: dict[int, str]

    @property
    def order(self) -> list[int]:
        """Places of the schedules with a score, the most promising first."""
        scored = [(-value, place) for place, value in enumerate(self.scores) if value is not None]
        return [place for _, place in sorted(scored)]


def score(
    root: Path,
    device_id: str,
    workload: str | Workload,
    traces: Sequence[str],
    *,
    dialect: str = "meta_schedule",
    version: str = "",
) -> ScoreAnswer:
    """Scores of schedules of one workload, by the champion of a device.

    Args:
        root: The daemon's folder (`daemon.root`).
        device_id: The device.
        workload: Its id in the daemon's store, or all of it.
        traces: At most `MOST_TRACES` schedule traces as JSON text.
        dialect: What they are written in.
        version: A version with the device's head; the champion where empty.

    Raises:
        FleetError: No daemon runs on this host with that folder, or it refuses; the text says why.
    """
    question = ScoreQuestion(
        device=device_id,
        workload=to_builtins(workload),
        traces=list(traces),
        dialect=dialect,
        version=version,
    )
    daemon = find_daemon(root)
    answer = None if daemon is None else daemon.post("/v1/score", to_builtins(question), _TIMEOUT_SECS)
    if answer is None:
        raise FleetError(f"no daemon runs on {root}; start `fleet up`, or name its folder (daemon.root)")
    # JSON has texts as keys.
    return convert(answer, ScoreAnswer, strict=False)
