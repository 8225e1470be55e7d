"""`benchmarks.pretrained`: what is held out together, what its figures are made of, and what it ships."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from agents.records import DeviceId, Family
from benchmarks.onboarding_curve import Point
from benchmarks.pretrained import Options, cases_of, run_case
from benchmarks.pretrained_ship import ShippedAbout, expectations, figures, ship
from fleet.models.shipped_model import read_shipped
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.onboarding_fixtures import NEW, SOURCES, fill
from transfer.adapt.base import Regime


def test_gains_are_paired_by_workload() -> None:
    def point(name: str, k: int | None, seed: int, up: float, workloads: int = 9) -> Point:
        top1 = [0.5 + 0.1 * (place % 3) + up + 0.05 * seed for place in range(workloads)]
        where = {"regime": Regime.BOTH_NEW, "target": "t", "split": "s", "groups": list(range(workloads))}
        values = {"top1": top1, "top5": top1}
        return Point(contender=name, k=k, seed=seed, measured=k or 0, values=values, **where)

    shown = {
        ("shipped", 0): 0.1,
        ("shipped", 64): 0.1,
        ("few", 0): 0.0,
        ("few", 64): 0.0,
        ("scratch", 64): 0.0,
    }
    points = [point(name, k, seed, up) for seed in (0, 1) for (name, k), up in shown.items()]
    points += [point("own", None, seed, 0.4, workloads=4) for seed in (0, 1)]
    found = figures(points, [64])
    assert (found["judged"], found["top1_k0"]) == (18, pytest.approx(0.725, abs=1e-4))
    # The same difference everywhere has no width.
    assert found["gain_over_store_only"] == found["gain_over_scratch_k64"] == [0.1, 0.1, 0.1]
    assert found["gain_of_64_samples"] == [0.0, 0.0, 0.0]
    assert found["gain_of_all_own_samples"] == pytest.approx([0.3, 0.3, 0.3])
    assert not any("shipped" in name or "elsewhere" in name for name in found if name.startswith("gain"))
    expected = expectations(found, 4)
    assert expected["0"]["top1"] == found["top1_k0"]
    assert (expected["64"]["samples"], expected["0"]["devices"]) == (64, 4)


def test_a_case_judges_the_held_out_networks_of_the_held_out_profile_only(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *SOURCES, NEW)
    case = cases_of(["group-1", "group-2"], [NEW], seeds=1, is_quick=True)[0]
    options = Options(dataset=(), epochs=1, baselines=("mean-rank", "xgboost-pooled"))
    points = [msgspec.convert(one, Point) for one in run_case(store, case, options)["points"]]
    judged = {(one.contender, one.k): set(one.groups) for one in points}
    assert set(judged) == {
        *(("shipped", 0), ("shipped", 64), ("few", 0), ("few", 64), ("scratch", 64), ("random", None)),
        *(("xgboost-pooled", 0), ("xgboost-pooled", 64), ("own", None)),
    }
    own, every = judged.pop(("own", None)), judged["shipped", 0]
    assert all(one == every for one in judged.values())
    # Samples of half of the held-out networks' own workloads are judged on the other half.
    assert own < every
    reader = Store.read(store)
    workloads, names = reader.workloads(), load_snapshot(reader).dataset.workload_ids
    assert len({name for one in every for name, _ in workloads[names[one]].networks}) == 1
    assert all(0 < one <= 1 for point in points for one in point.values["top1"])


def test_what_it_ships_is_read_back(tmp_path: Path) -> None:
    store = fill(tmp_path / "store", *SOURCES)
    at_home = {"top1": 0.5, "top1_interval": [0.4, 0.6], "top5": 0.9}
    about = ShippedAbout(
        name="test-1",
        datasets={"mine": "0" * 64, "yours": "1" * 64},
        processors=["One CPU", "Another"],
        expected={"0": at_home},
        expected_elsewhere={"0": {**at_home, "top1": 0.4, "unseen": "processor"}},
    )
    ship(store, tmp_path / "cpu", about, 1)
    found = read_shipped(Family.CPU, tmp_path / "cpu")
    assert found is not None
    assert (found.name, set(found.devices)) == ("test-1", set(SOURCES))
    machine = found.devices[DeviceId(SOURCES[0])].descriptor
    assert found.expected(machine)["0"]["top1"] == 0.5
    assert found.expected(replace(machine, cpu_model="A third"))["0"]["top1"] == 0.4
    card = (tmp_path / "cpu/README.md").read_text()
    assert "| 0 | 0.400 | 0.400 to 0.600 | 0.900 |" in card
    assert "It has seen One CPU and Another," in card
