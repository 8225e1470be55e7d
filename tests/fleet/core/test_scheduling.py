"""What is measured next: shares, order, gaps, and that the same view gives the same plan."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agents.records import DeviceId, WorkloadId
from fleet.core.events import Origin
from fleet.core.scheduling import NEW_RECORDS, Ask, Cell, DeviceView, FleetView, plan
from tests.scenario_fixtures import fields_of
from tests.table_fixtures import cells

OLD = NEW_RECORDS


def device(name: str, *, records: int = OLD, host: str = "", head: bool = False, **cells: Cell) -> DeviceView:
    return DeviceView(
        device_id=DeviceId(name),
        records=records,
        has_head=head,
        host=host,
        cells={WorkloadId(key): cell for key, cell in cells.items()},
    )


def fleet(*devices: DeviceView, **flops: float) -> FleetView:
    return FleetView(
        devices={one.device_id: one for one in devices},
        workloads={WorkloadId(key): value for key, value in (flops or {"large": 1e8, "small": 1e6}).items()},
    )


def room(view: FleetView, count: int = 64) -> dict[DeviceId, int]:
    return dict.fromkeys(view.devices, count)


def given_by(asks: list[Ask], key: str) -> Counter[str]:
    return sum((Counter({getattr(ask, key): ask.count}) for ask in asks), Counter())


def test_new_devices_come_first() -> None:
    view = fleet(device("old"), device("new", records=3), device("newest", records=0))
    order = list(dict.fromkeys(ask.device_id for ask in plan(view, room(view), seed=0)))
    assert order == ["newest", "new", "old"]


def test_large_workloads_get_more_but_not_everything() -> None:
    view = fleet(device("d"))
    counts = given_by(plan(view, room(view, 1280), seed=0), "workload_id")
    # A hundred times the FLOPs is ten times the worth; a sixteenth of all goes anywhere.
    assert 6 < counts["large"] / counts["small"] < 11
    view = fleet(device("d", large=Cell(measured=1000)))
    counts = given_by(plan(view, room(view), seed=0), "workload_id")
    assert counts["small"] > counts["large"], "what was measured before counts"


@pytest.mark.parametrize(
    ("narrow", "wide"), [(0.05, 0.25), (0.1, None)], ids=["a wide interval", "no head was judged on it"]
)
def test_a_workload_of_which_little_is_known_gets_more(narrow: float, wide: float | None) -> None:
    cells = {"large": Cell(measured=50, interval=narrow), "small": Cell(measured=50, interval=wide)}
    view = fleet(device("d", **cells), large=1e6, small=1e6)
    got = given_by(plan(view, room(view), seed=0), "workload_id")
    assert got["small"] > 2 * got["large"]


#: What is so of a device and of each of its two workloads, how much is explored, and what it measures of 100.
SHARES = """
records: 0 | unpaired: 900               |      | paired: 60, random: 40
           | unpaired: 900               |      | paired: 25, random: 75
           | unpaired: 4                 |      | paired: 8, random: 92
           | measured: 20                |      | evolved: 50, random: 50
head: true | measured: 20                |      | model: 50, random: 50
head: true | measured: 20, unpaired: 900 | 0.0  | paired: 25, model: 75
head: true | measured: 20, unpaired: 900 | 0.25 | paired: 25, model: 56, random: 19
head: true | measured: 20, unpaired: 900 | 0.5  | paired: 25, model: 37, random: 38
head: true | measured: 20, unpaired: 900 | 1.0  | paired: 25, random: 75
"""


@pytest.mark.parametrize(("about", "of_cells", "exploration", "shares"), cells(SHARES))
def test_a_device_closes_gaps_explores_and_measures_what_is_believed_to_be_fast(
    about: str, of_cells: str, exploration: str, shares: str
) -> None:
    cell = Cell(**fields_of(of_cells))
    view = fleet(device("d", large=cell, small=cell, **fields_of(about)))
    more = {"exploration": float(exploration)} if exploration else {}
    got = given_by(plan(view, room(view, 100), seed=0, **more), "origin")
    assert got == pytest.approx(fields_of(shares), abs=1)


def test_small_rooms_explore_as_often_as_large_ones() -> None:
    view = fleet(device("d", head=True, large=Cell(measured=20), small=Cell(measured=20)))
    counts = given_by([ask for seed in range(400) for ask in plan(view, {DeviceId("d"): 2}, seed)], "origin")
    assert 0.44 < counts[Origin.RANDOM] / 800 < 0.56


CELLS = st.builds(
    Cell,
    measured=st.integers(0, 300),
    queued=st.integers(0, 40),
    unpaired=st.integers(0, 60),
    interval=st.none() | st.floats(0, 1),
    is_exhausted=st.booleans(),
)
NAMES = [WorkloadId(f"w{place}") for place in range(6)]
VIEWS = st.builds(
    lambda cells, flops: FleetView(
        devices={
            DeviceId(f"d{place}"): DeviceView(
                device_id=DeviceId(f"d{place}"), records=records, host=host, cells=one
            )
            for place, (records, host, one) in enumerate(cells)
        },
        workloads=dict(zip(NAMES, flops, strict=False)),
    ),
    st.lists(
        st.tuples(
            st.integers(0, 600),
            st.sampled_from(["", "h", "i"]),
            st.dictionaries(st.sampled_from(NAMES), CELLS),
        ),
        max_size=4,
    ),
    st.lists(st.floats(0, 1e12), max_size=6),
)


@settings(max_examples=200, deadline=None)
@given(view=VIEWS, count=st.integers(0, 100), seed=st.integers(0, 3))
def test_a_plan_fits_into_its_room_and_is_always_the_same(view: FleetView, count: int, seed: int) -> None:
    asks = plan(view, room(view, count), seed)
    assert asks == plan(view, dict(reversed(room(view, count).items())), seed)
    assert len({(ask.device_id, ask.workload_id, ask.origin) for ask in asks}) == len(asks)
    assert all(ask.count > 0 for ask in asks)
    got = given_by(asks, "device_id")
    cells = {
        name: [one.cells.get(key, Cell()) for key in view.workloads] for name, one in view.devices.items()
    }
    able = {name: any(one.unpaired or not one.is_exhausted for one in some) for name, some in cells.items()}
    is_new = {name: one.records < NEW_RECORDS for name, one in view.devices.items()}
    taken = {one.host for name, one in view.devices.items() if is_new[name] and able[name]} - {""}
    for name, one in view.devices.items():
        has_open = any(not cell.is_exhausted for cell in cells[name])
        if one.host in taken and not is_new[name]:
            assert got[name] == 0
        elif has_open:
            assert got[name] == count
        assert got[name] <= count
    for ask in asks:
        cell = view.devices[ask.device_id].cells.get(ask.workload_id, Cell())
        if ask.origin is Origin.PAIRED:
            assert ask.count <= cell.unpaired
        else:
            assert not cell.is_exhausted
