"""When rows that wait go on to the table, and which of them together: a decision that waits for nothing.

The table has a folder per device, so a commit costs a file for every device in it. Devices share lanes, and
a lane goes on as a whole: with few devices in large files, with a thousand a few devices at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from agents.records import DeviceId


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """When a lane is due."""

    #: Devices of one lane.
    devices: int = 32
    #: A lane is due at so many rows for each of its devices, or when the oldest has waited so long.
    rows_per_device: int = 2000
    wait_secs: float = 600.0
    #: With more rows than this in all lanes, or more packed bytes, the fullest is due.
    most_rows: int = 200_000
    most_bytes: int = 64 << 20


@dataclass(slots=True)
class _Lane:
    device_ids: set[DeviceId] = field(default_factory=set)
    rows: int = 0
    bytes: int = 0
    since: float = 0.0


class Lanes:
    """Rows that wait, by lane.

    Args:
        settings: When a lane is due.

    Attributes:
        rows: Rows of all lanes.
    """

    def __init__(self, settings: LaneSettings) -> None:
        self._settings = settings
        self._number_of: dict[DeviceId, int] = {}
        self._lanes: dict[int, _Lane] = {}
        self.rows = 0

    def number(self, device_id: DeviceId) -> int:
        """The lane of a device: it has the same until the process ends."""
        return self._number_of.setdefault(device_id, len(self._number_of) // self._settings.devices)

    def add(self, lane: int, device_ids: Iterable[DeviceId], rows: int, size: int, now: float) -> None:
        """Note rows that wait.

        Args:
            lane: Where.
            device_ids: Of which devices.
            rows: How many.
            size: Their packed bytes.
            now: Seconds of a clock that never goes back.
        """
        waiting = self._lanes.setdefault(lane, _Lane(since=now))
        waiting.device_ids.update(device_ids)
        waiting.rows += rows
        waiting.bytes += size
        self.rows += rows

    def recount(self, pieces: Iterable[tuple[int, Iterable[DeviceId], int, int]], now: float) -> None:
        """Take over what really waits: before an error some rows may have gone on.

        Args:
            pieces: Lane, devices, rows and packed bytes of each.
            now: As of `add`, for lanes that were empty.
        """
        since = {number: lane.since for number, lane in self._lanes.items()}
        self.drop(self.waiting())
        for lane, device_ids, rows, size in pieces:
            self.add(lane, device_ids, rows, size, since.get(lane, now))

    def drop(self, lanes: Iterable[int]) -> None:
        """Note that all rows of lanes went on."""
        for lane in lanes:
            gone = self._lanes.pop(lane, None)
            self.rows -= gone.rows if gone is not None else 0

    def waiting(self) -> list[int]:
        """Lanes that have rows."""
        return sorted(self._lanes)

    def waiting_secs(self, now: float) -> float:
        """How long the oldest row has waited."""
        return max((now - lane.since for lane in self._lanes.values()), default=0.0)

    @property
    def is_full(self) -> bool:
        """Whether so much waits that the fullest lane must go on."""
        size = sum(lane.bytes for lane in self._lanes.values())
        return self.rows > self._settings.most_rows or size > self._settings.most_bytes

    def due(self, now: float) -> list[int]:
        """Lanes that go on now."""
        due = [
            number
            for number, lane in self._lanes.items()
            if lane.rows >= self._settings.rows_per_device * len(lane.device_ids)
            or now - lane.since >= self._settings.wait_secs
        ]
        if not due and self.is_full:
            due = [max(self._lanes, key=lambda number: self._lanes[number].bytes)]
        return sorted(due)
