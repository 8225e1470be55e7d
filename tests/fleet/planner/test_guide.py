"""Candidates in the order in which a champion would measure them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import fleet
from agents.records import Candidate
from fleet.models.registry import Registry
from fleet.planner.candidate_ranker import CandidateRanker
from tests.refresh_fixtures import candidates_of, small_model, unlike_workload
from transfer.features.extractor import Extractor

WORKLOAD = unlike_workload(0)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models")
    registry.publish(registry.add(small_model("box.a", "box.b"), {}), {"box.a": {}, "box.b": {}})
    return registry


def test_the_order_is_that_of_the_champions_scores_without_a_restart(registry: Registry) -> None:
    candidates = candidates_of(WORKLOAD, 40)
    ranker = CandidateRanker(registry)
    before = ranker.rank(WORKLOAD, "box.a", candidates)
    block = Extractor().extract({WORKLOAD.workload_id: WORKLOAD}, candidates)
    scores = small_model("box.a", "box.b").score(block, "box.a")
    assert before.scores == tuple(scores.tolist())
    assert sorted(before.order) == list(range(40))
    assert np.all(np.diff(scores[list(before.order)]) <= 0)
    assert before.model == registry.champion("box.a")
    assert before.first(candidates, 3) == [candidates[place] for place in before.order[:3]]
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
    found = CandidateRanker(registry).rank(WORKLOAD, "box.a", candidates)
    assert sorted(found.order[:3]) == [1, 3, 5]
    assert [found.scores[place] for place in (0, 2, 4)] == [0, 0, 0]
    assert len(found.first(candidates, 6)) == 3


def test_without_a_champion_that_can_be_asked_nothing_is_ranked(registry: Registry) -> None:
    candidates = candidates_of(WORKLOAD, 2)
    ranker = CandidateRanker(registry)
    assert ranker.rank(WORKLOAD, "box.c", candidates) is None
    assert ranker.rank(WORKLOAD, "box.a", []) is None
    assert ranker.why_not("box.a") == ranker.why_not("box.c") == ""
    (registry.path("v000001") / "model.safetensors").write_bytes(b"torn")
    assert ranker.rank(WORKLOAD, "box.a", candidates) is None
    assert "torn or changed" in ranker.why_not("box.a")


def test_programs_get_the_same_scores_from_the_head_that_serves(registry: Registry) -> None:
    candidates = candidates_of(WORKLOAD, 5)
    model = fleet.load_model("box.a", registry.folder)
    ranking = CandidateRanker(registry).rank(WORKLOAD, "box.a", candidates)
    assert model.score(WORKLOAD, [*(one.trace for one in candidates), "[]"]) == [*ranking.scores, None]
    assert (model.device_id, model.version) == ("box.a", "v000001")
    with pytest.raises(fleet.FleetError, match=r"no model in .* serves device 'ghost'; served are: box.a"):
        fleet.load_model("ghost", registry.folder)
