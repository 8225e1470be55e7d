"""How unsure champions are of workloads, from what they were judged to be."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from msgspec.structs import replace

from agents.records import DeviceId
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import Uncertainty
from tests.record_fixtures import make_workload
from tests.refresh_fixtures import small_model

BOX = DeviceId("box.a")
ONE, TWO, THREE = (
    replace(make_workload(number), operator=operator)
    for number, operator in ((1, "C2D"), (2, "C2D"), (3, "GMM"))
)
WORKLOADS = {one.workload_id: one for one in (ONE, TWO, THREE)}


def judged(**widths: float) -> dict[str, dict[str, object]]:
    return {name: {"operator": "C2D", "width": width, "pairs": 0.8} for name, width in widths.items()}


def test_the_champion_of_now_is_asked(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    uncertainty = Uncertainty(registry)
    assert uncertainty.of(BOX, WORKLOADS) == {}
    version = registry.add(small_model("box.a"), {})
    judgement = {**judged(other=0.3), ONE.workload_id: {"operator": "C2D", "width": 0.1}}
    registry.publish(version, {"box.a": {"judged": {"by_workload": judgement}}})
    # A workload has its own width, else that of its operator, else that of all.
    mean = pytest.approx(0.2)
    first = {ONE.workload_id: 0.1, TWO.workload_id: mean, THREE.workload_id: mean}
    assert uncertainty.of(BOX, WORKLOADS) == first
    assert uncertainty.of(BOX, WORKLOADS) is uncertainty.of(BOX, WORKLOADS), "it is worked out once"
    assert set(uncertainty.of(BOX, {ONE.workload_id: ONE})) == {ONE.workload_id}
    registry.publish(registry.add(small_model("box.a"), {}), {"box.a": {"judged": {"tau": [0.5, 0.4, 0.6]}}})
    assert uncertainty.of(BOX, WORKLOADS) == {}, "figures without workloads say nothing of them"
    registry.rollback("box.a", reason="worse")
    assert uncertainty.of(BOX, WORKLOADS) == first


def test_a_damaged_registry_leaves_the_plan_as_it_is(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.publish(
        registry.add(small_model("box.a"), {}), {"box.a": {"judged": {"by_workload": judged(x=1)}}}
    )
    (tmp_path / REGISTRY).write_text("{")
    assert Uncertainty(Registry(tmp_path)).of(BOX, WORKLOADS) == {}
    # Nor does one that cannot be read: whoever looks after the models tells of it.
    with mock.patch.object(RegistryReader, "state", side_effect=PermissionError("Permission denied")):
        assert Uncertainty(Registry(tmp_path)).of(BOX, WORKLOADS) == {}
