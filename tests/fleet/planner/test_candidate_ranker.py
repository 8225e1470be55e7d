"""What champions say before anything is measured: the order of candidates, and where they are unsure."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from msgspec.structs import replace

from agents.records import Candidate, DeviceId
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY
from fleet.models.registry_reader import RegistryReader
from fleet.planner.candidate_ranker import CandidateRanker, uncertainty
from tests.record_fixtures import make_workload
from tests.refresh_fixtures import candidates_of, small_model, unlike_workload
from transfer.features.extractor import Extractor

BOX = DeviceId("box.a")
WORKLOAD = unlike_workload(0)
JUDGED, SIBLING, STRANGER = (
    replace(make_workload(number), operator=operator)
    for number, operator in ((1, "C2D"), (2, "C2D"), (3, "GMM"))
)
WORKLOADS = {workload.workload_id: workload for workload in (JUDGED, SIBLING, STRANGER)}
WIDTHS = {
    JUDGED.workload_id: {"operator": "C2D", "width": 0.1},
    "other": {"operator": "C2D", "width": 0.3},
}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models")
    judged = {"judged": {"by_workload": WIDTHS}}
    registry.publish(registry.add(small_model("box.a", "box.b"), {}), {"box.a": judged, "box.b": {}})
    return registry


def test_the_order_is_that_of_the_champions_scores_without_a_restart(registry: Registry) -> None:
    candidates = candidates_of(WORKLOAD, 40)
    ranker = CandidateRanker(registry)
    before = ranker.rank(WORKLOAD, "box.a", candidates)
    block = Extractor().extract(WORKLOAD, candidates)
    scores = small_model("box.a", "box.b").score(block, "box.a")
    assert before.scores == tuple(scores.tolist())
    assert sorted(before.order) == list(range(40))
    assert np.all(np.diff(scores[list(before.order)]) <= 0)
    assert before.ranked(candidates)[:3] == [candidates[place] for place in before.order[:3]]
    # A new champion ranks from then on.
    writer = Registry(registry.folder)
    writer.publish(writer.add(small_model("box.a", seed=5), {}), {"box.a": {}})
    after = ranker.rank(WORKLOAD, "box.a", candidates)
    other = ranker.rank(WORKLOAD, "box.b", candidates)
    assert [one.model.version for one in (before, after, other)] == ["v000001", "v000002", "v000001"]
    assert before.scores != after.scores


def test_what_cannot_be_read_comes_last(registry: Registry) -> None:
    good = candidates_of(WORKLOAD, 3)
    torn = Candidate(workload_id=WORKLOAD.workload_id, trace='[["no"')
    foreign = replace(good[0], dialect="unheard-of")
    elsewhere = candidates_of(unlike_workload(1), 1)[0]
    candidates = [torn, good[0], foreign, good[1], elsewhere, good[2]]
    ranking = CandidateRanker(registry).rank(WORKLOAD, "box.a", candidates)
    assert sorted(ranking.order[:3]) == [1, 3, 5]
    assert [ranking.scores[place] for place in (0, 2, 4)] == [0, 0, 0]
    assert len(ranking.ranked(candidates)) == 3


def test_without_a_champion_that_can_be_read_nothing_is_ranked(registry: Registry) -> None:
    candidates = candidates_of(WORKLOAD, 2)
    ranker = CandidateRanker(registry)
    assert ranker.rank(WORKLOAD, "box.c", candidates) is None
    assert ranker.rank(WORKLOAD, "box.a", []) is None
    assert ranker.why_not("box.a") == ranker.why_not("box.c") == ""
    (registry.path("v000001") / "model.safetensors").write_bytes(b"torn")
    assert ranker.rank(WORKLOAD, "box.a", candidates) is None
    assert "torn or changed" in ranker.why_not("box.a")


def test_a_head_is_as_unsure_as_it_was_judged_else_as_of_its_operator_or_all(registry: Registry) -> None:
    mean = pytest.approx(0.2)
    first = {JUDGED.workload_id: 0.1, SIBLING.workload_id: mean, STRANGER.workload_id: mean}
    assert uncertainty(registry, BOX, WORKLOADS) == first
    assert set(uncertainty(registry, BOX, {JUDGED.workload_id: JUDGED})) == {JUDGED.workload_id}
    assert (
        uncertainty(registry, DeviceId("box.b"), WORKLOADS)
        == uncertainty(registry, DeviceId("ghost"), WORKLOADS)
        == {}
    )
    registry.publish(registry.add(small_model("box.a"), {}), {"box.a": {"judged": {"tau": [0.5, 0.4, 0.6]}}})
    assert uncertainty(registry, BOX, WORKLOADS) == {}, "figures without workloads say nothing of them"
    registry.use("box.a", registry.before("box.a"), reason="worse")
    assert uncertainty(registry, BOX, WORKLOADS) == first
    # Whoever looks after the models tells of a registry that is damaged or cannot be read.
    with mock.patch.object(RegistryReader, "state", side_effect=PermissionError("Permission denied")):
        assert uncertainty(registry, BOX, WORKLOADS) == {}
    (registry.folder / REGISTRY).write_text("{")
    assert uncertainty(Registry(registry.folder), BOX, WORKLOADS) == {}
