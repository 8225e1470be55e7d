"""What to measure next, fleet-wide: which candidates of which workload, and how many, for devices with room.

Called by the coordinator when the state wants jobs. Pure: the same view and seed give the same plan; it knows
counts only, no candidate, no trace, no clock.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agents.records import DeviceId, WorkloadId
from fleet.core.events import Origin

#: A device is new until it has so many records: its neighbours on the host wait for it, and it measures
#: candidates that other devices of the family know.
NEW_RECORDS = 256
#: Shares of a device's room by purpose; what a purpose cannot use goes to the best that is left. A head is
#: there to be used: most of the room goes to what is believed to be fast, because that is where it must rank.
_PAIRED_SHARE = 0.25
_PAIRED_SHARE_NEW = 0.6
#: Share of the candidates that close no gap that is random, unless told otherwise.
EXPLORATION = 0.5
#: Of the random share, the part that goes to any workload with equal chance, so that none is starved.
_ANYWHERE_SHARE = 0.25
#: Candidates of a workload below which there is nothing to evolve from, and a head knows little.
_LEAST_RANDOM = 8
#: Weight x FLOPs of a workload count by this power: with their full spread of several decades the largest
#: few would take everything.
_WORTH_POWER = 0.5
#: Bounds of what an interval may do to the worth of a workload.
_LEAST_URGE, _MOST_URGE = 0.25, 4.0
#: Candidates of one ask: fewer are not worth the set-up of a workload on the agent.
_LEAST_ASK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What is known of one workload on one device."""

    #: Candidates of it that the device measured (whatever the outcome) or that wait in its queue.
    measured: int = 0
    queued: int = 0
    #: Candidates that other devices of the family measured and this one neither measured nor has queued.
    unpaired: int = 0
    #: How unsure the device's head is of it: width of the 90 % interval of the share of pairs that it puts
    #: right, 0 to 1. None where nobody knows.
    interval: float | None = None
    #: No new candidate of the workload is found any more.
    is_exhausted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One device that may have room."""

    device_id: DeviceId
    #: Records in its present environment.
    records: int = 0
    #: Whether a model has a head for it.
    has_head: bool = False
    #: Devices of one host share its timing cores; empty where it shares with none.
    host: str = ""
    #: Whether it has an agent (probing, idle, leased): its neighbours wait for no other.
    is_up: bool = True
    #: By workload; what is missing is a cell without any measurement.
    cells: Mapping[WorkloadId, Cell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Small counts of the whole fleet."""

    #: Devices with room for leases, and those on the same hosts: they may have to wait for a new one.
    devices: Mapping[DeviceId, DeviceView]
    #: Weight x FLOPs of each: how often the fleet's networks run it, and its floating-point operations.
    workloads: Mapping[WorkloadId, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Candidates of one workload for one device."""

    device_id: DeviceId
    workload_id: WorkloadId
    count: int
    origin: Origin


def plan(
    view: FleetView, room: Mapping[DeviceId, int], seed: int, exploration: float = EXPLORATION
) -> list[Ask]:
    """Choose what devices with room measure next.

    A device's room is split by purpose: *paired* candidates close gaps of the (candidate, device) matrix,
    *random* ones explore, and the rest is proposed by the device's head or evolved. Within a purpose a
    workload gets candidates by its worth: weight x FLOPs, times how wide the interval of the head is. What a
    device measured before counts, so that shares hold over time, not within one plan.

    Args:
        view: Counts. Only devices and workloads that are asked about are looked at.
        room: Candidates that each device can take (`WantJobs.room`). Devices whose policy is closed or whose
            budget is spent are not in here: the state asks for none.
        seed: Of the draws; another one each time, so that exploration moves on.
        exploration: Share of what closes no gap that is random, 0 to 1.

    Returns:
        Devices with the fewest records first; of each, the most wanted workload first. At most one ask for a
        device, workload and origin. Counts of a device add up to its room; to less where workloads are
        exhausted, and to nothing while a new device shares its host.
    """
    devices = [view.devices[device_id] for device_id in room if device_id in view.devices]
    order = sorted(devices, key=lambda device: (device.records, device.device_id))
    shared_hosts = {
        device.host for device in view.devices.values() if device.host and is_new(device) and device.is_up
    }
    if shared_hosts:
        # A new device that finds nothing to measure would keep its neighbours waiting for ever.
        hosts = {device.host for device in order if not is_new(device)} & shared_hosts
        new = [
            device
            for device in view.devices.values()
            if device.host in hosts and is_new(device) and device.is_up
        ]
        shared_hosts = {device.host for device in new if _choices(device, view.workloads)}
    return [
        ask
        for device in order
        if is_new(device) or device.host not in shared_hosts
        for ask in _plan_device(device, view.workloads, room[device.device_id], seed, exploration)
    ]


def is_new(device: DeviceView) -> bool:
    """Whether a device has too few records to be treated like the others."""
    return device.records < NEW_RECORDS


@dataclass(slots=True)
class _Choice:
    """One workload for one device while its room is dealt out."""

    workload_id: WorkloadId
    cell: Cell
    worth: float
    #: Candidates that are measured, queued or given just now.
    has: int
    count_by_origin: dict[Origin, int] = field(default_factory=dict)

    def give(self, origin: Origin, count: int) -> None:
        self.count_by_origin[origin] = self.count_by_origin.get(origin, 0) + count
        self.has += count


def _plan_device(
    device: DeviceView,
    workloads: Mapping[WorkloadId, float],
    room: int,
    seed: int,
    exploration: float,
) -> list[Ask]:
    choices = _choices(device, workloads)
    open_ones = [choice for choice in choices if not choice.cell.is_exhausted]
    draws = random.Random(f"{seed}/{device.device_id}")
    share = _PAIRED_SHARE_NEW if is_new(device) else _PAIRED_SHARE
    unplanned = room - _deal_paired(choices, min(room, _round(room * share, draws)))
    explored = _round(unplanned * exploration, draws)
    anywhere = _round(explored * _ANYWHERE_SHARE, draws)
    unplanned -= _scatter(open_ones, anywhere, draws)
    unplanned -= _deal(open_ones, explored - anywhere, lambda choice: Origin.RANDOM)
    unplanned -= _deal(open_ones, unplanned, lambda choice: _believed(choice, device))
    _deal_paired(choices, unplanned)  # nothing new is left to find: close what gaps there are
    planned = [choice for choice in choices if choice.count_by_origin]
    return [
        Ask(device_id=device.device_id, workload_id=choice.workload_id, count=count, origin=origin)
        for choice in sorted(
            planned, key=lambda choice: (-sum(choice.count_by_origin.values()), choice.workload_id)
        )
        for origin, count in choice.count_by_origin.items()
    ]


def _choices(device: DeviceView, workloads: Mapping[WorkloadId, float]) -> list[_Choice]:
    """The workloads with what one more candidate of each is worth, as far as the device can get any."""
    none = Cell()
    cells = [(workload_id, device.cells.get(workload_id, none)) for workload_id in workloads]
    widths = [cell.interval for _, cell in cells if cell.interval is not None]
    usual = sum(widths) / len(widths) if widths else 0.0
    return [
        _Choice(
            workload_id,
            cell,
            _worth(workloads[workload_id]) * _urge(cell.interval, usual),
            cell.measured + cell.queued,
        )
        for workload_id, cell in cells
        if cell.unpaired > 0 or not cell.is_exhausted
    ]


def _worth(weighted_flops: float) -> float:
    """Weight x FLOPs, damped: the time that a network spends in it, as far as one can tell for any device."""
    return float(max(weighted_flops, 1.0) ** _WORTH_POWER)


def _urge(interval: float | None, usual: float) -> float:
    """How much more a workload is worth because its head is unsure; where no head was judged, most."""
    if usual <= 0:
        return 1.0
    if interval is None:
        return _MOST_URGE
    return min(_MOST_URGE, max(_LEAST_URGE, interval / usual))


def _believed(choice: _Choice, device: DeviceView) -> Origin:
    """Where fast candidates come from: the head, the best ones so far, or luck to begin with."""
    if choice.cell.measured < _LEAST_RANDOM:
        return Origin.RANDOM
    return Origin.MODEL if device.has_head else Origin.EVOLVED


def _deal_paired(choices: Sequence[_Choice], room: int) -> int:
    """Give out candidates that other devices of the family know, more where there are more of them."""
    total = sum(choice.cell.unpaired for choice in choices)
    return _deal(
        [choice for choice in choices if choice.cell.unpaired],
        room,
        lambda choice: Origin.PAIRED,
        weight=lambda choice: choice.worth * choice.cell.unpaired / total,
        most=lambda choice: choice.cell.unpaired - choice.count_by_origin.get(Origin.PAIRED, 0),
    )


def _deal(
    choices: Sequence[_Choice],
    room: int,
    origin: Callable[[_Choice], Origin],
    *,
    weight: Callable[[_Choice], float] = lambda choice: choice.worth,
    most: Callable[[_Choice], float] = lambda choice: math.inf,
) -> int:
    """Give out candidates so that all that a workload has tends to be in proportion to its weight.

    Highest averages (d'Hondt), `_LEAST_ASK` at a time: the next ones go to the workload that has the least
    for its weight.

    Returns:
        How many were given.
    """
    if room <= 0:
        return 0
    ranked = [
        (-weight(choice) / (choice.has + 1), place, choice)
        for place, choice in enumerate(choices)
        if most(choice)
    ]
    heap = heapq.nsmallest(room, ranked)  # each step gives at least one, so no more can take part
    room_left = room
    while heap and room_left > 0:
        _, place, choice = heapq.heappop(heap)
        count = int(min(_LEAST_ASK, room_left, most(choice)))
        choice.give(origin(choice), count)
        room_left -= count
        if most(choice) > 0:
            heapq.heappush(heap, (-weight(choice) / (choice.has + 1), place, choice))
    return room - room_left


def _scatter(choices: Sequence[_Choice], room: int, draws: random.Random) -> int:
    """Give out random candidates to any workload, whatever it is worth.

    Returns:
        How many were given.
    """
    room_left = room if choices else 0
    while room_left > 0:
        count = min(_LEAST_ASK, room_left)
        draws.choice(choices).give(Origin.RANDOM, count)
        room_left -= count
    return room if choices else 0


def _round(value: float, draws: random.Random) -> int:
    """Round up or down by chance, so that a small share of a small room is right on average."""
    return math.floor(value) + (draws.random() < value % 1)
