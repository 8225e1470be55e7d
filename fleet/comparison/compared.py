"""The two sides of a comparison by their names on a page or a command line. Reads store and registry.

A side is `DEVICE`, `DEVICE@YYYY-MM-DD` (what it measured on that day, by the host's clock), or a model
version such as `v000012`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from agents.records import DeviceId, WorkloadId
from fleet.comparison.device_rows import device_rows
from fleet.comparison.series import (
    COMPARED_COLUMNS,
    ComparedSide,
    compare_measurements,
    compare_versions,
    compared_side,
    shared_candidates,
    summary,
)
from fleet.errors import FleetError
from fleet.models.registry_reader import RegistryReader
from fleet.store.reader import StoreReader

_VERSION = re.compile(r"v\d{6}")
_DAY = re.compile(r"(?P<device>.+)@(?P<day>\d{4}-\d{2}-\d{2})")


class CompareError(FleetError):
    """Two things cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two that are compared."""

    version: str = ""
    device_id: str = ""
    first_at: float = float("-inf")
    last_at: float = float("inf")


def parse_side(text: str) -> Side:
    """Read the name of a side.

    Raises:
        CompareError: It is none.
    """
    text = text.strip()
    if not text:
        raise CompareError("a side is missing; give DEVICE, DEVICE@YYYY-MM-DD or a version such as v000012")
    if _VERSION.fullmatch(text):
        return Side(version=text)
    dated = _DAY.fullmatch(text)
    if dated is None:
        return Side(device_id=text)
    try:
        day = datetime.date.fromisoformat(dated["day"])
        begin, end = (
            datetime.datetime.combine(midnight, datetime.time()).astimezone().timestamp()
            for midnight in (day, day + datetime.timedelta(days=1))
        )
    except (ValueError, OverflowError) as error:
        raise CompareError(f"{text!r:.80}: there is no day {dated['day']}") from error
    return Side(device_id=dated["device"], first_at=begin, last_at=end)


def compare(
    read: Callable[[], StoreReader],
    registry: RegistryReader,
    texts: tuple[str, str],
    *,
    shows_all: bool = False,
) -> dict[str, Any]:
    """Compare two sides, the earlier one first. The store is read for measurements only, not for versions.

    Returns:
        `sides`, `kind` (`versions` or `measurements`), `summary`, `hidden` (rows left out for being
        insignificant), `notes`, and `rows` (`fleet.comparison.series`).

    Raises:
        CompareError: The sides cannot be compared.
        RegistryError: There is no such version.
        StoreError: The store cannot be read.
    """
    before, after = map(parse_side, texts)
    if bool(before.version) is not bool(after.version):
        raise CompareError(
            f"{texts[0]!r:.80} and {texts[1]!r:.80} are unlike: compare two devices or two versions"
        )
    if before.version:
        rows = compare_versions(registry.manifest(before.version), registry.manifest(after.version))
        notes = ["Figures of two versions come from the candidates of their days; intervals are their noise."]
    else:
        rows, notes = _measurements(read(), before, after)
    visible = [row for row in rows if shows_all or row["is_significant"] is not False]
    return {
        "sides": list(texts),
        "kind": "versions" if before.version else "measurements",
        "summary": summary(rows),
        "hidden": len(rows) - len(visible),
        "notes": notes,
        "rows": visible,
    }


def _measurements(reader: StoreReader, before: Side, after: Side) -> tuple[list[dict[str, Any]], list[str]]:
    sides = [_side(reader, side) for side in (before, after)]
    is_same = before.device_id == after.device_id
    if is_same and sides[1].environment != sides[0].environment:
        # Days of one device are one series only within one environment; the later day's counts.
        again = _side(reader, before, sides[1].environment)
        sides[0] = again if again.states else sides[0]
    common = sides[0].latencies.keys() & sides[1].latencies.keys()
    workloads = reader.workloads([WorkloadId(name) for name in common])
    names = {str(workload_id): workload.name for workload_id, workload in workloads.items()}
    rows = compare_measurements(sides[0], sides[1], names)
    notes = []
    for side, measured in zip((before, after), sides, strict=True):
        if not measured.records:
            notes.append(f"{side.device_id} has no record there.")
        elif measured.environments > 1:
            several = f"{side.device_id} has measured in {measured.environments} environments"
            notes.append(f"{several}; the one with most records counts.")
    if all(measured.records for measured in sides):
        if is_same and sides[0].environment != sides[1].environment:
            notes.append("The two days are of different environments: these are two series, not one.")
        notes += _why_left_out(shared_candidates(*sides))
    if any(row["kind"] == "latency" and row["noise"] is None for row in rows):
        notes.append(
            "The noise of latencies is not known, as neither side has an A/A run on a quiet host: "
            "`fleet collect --noise 20` makes one."
        )
    return rows, notes


def _why_left_out(candidates: Mapping[str, int]) -> list[str]:
    """Sentences on the candidates that both sides measured and that are not compared, by reason."""
    shared, steady = candidates["shared"], candidates["steady"]
    if not shared:
        return ["No candidate was measured on both sides."]
    if steady == shared:
        return []
    reasons = {
        "measured while the host was busy": candidates["suspect"],
        "failed on a side": candidates["failed"],
    }
    counted = [
        f"{'all' if count == shared else f'{count:,}'} {reason}" for reason, count in reasons.items() if count
    ]
    compared = "none" if not steady else f"{steady:,}"
    again = " `fleet collect --remeasure 50` measures those again." if candidates["suspect"] else ""
    return [
        f"{shared:,} candidates were measured on both sides, and {compared} can be compared: "
        f"{', '.join(counted)}.{again}"
    ]


def _side(reader: StoreReader, side: Side, environment_id: str = "") -> ComparedSide:
    device_id, at = DeviceId(side.device_id), pc.field("measured_at")
    where = (at >= side.first_at) & (at < side.last_at)
    rows = device_rows(reader, COMPARED_COLUMNS, [device_id], where=where)
    return compared_side(device_id, rows.get(device_id), environment_id)
