"""FleetTLP and the published MTL-TLP side by side: trained, kept, judged, served, told apart by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import fleet
from agents.records import DeviceId
from fleet.api.score_process import answered
from fleet.cli.app import run
from fleet.config.settings import load_fleet
from fleet.errors import FleetError
from fleet.models.evaluation import evaluate_model
from fleet.models.opponents import HeadCache
from fleet.models.registry import Registry
from fleet.models.versions import DatasetSnapshot, load_snapshot
from fleet.models.views import champion_notes, diff_versions, list_versions
from fleet.onboarding.adaptation import source_version
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.refresh.freshness_look import run_watch
from fleet.refresh.request import RefreshRequest
from fleet.refresh.run import run_refresh
from fleet.store.store import Store
from tests.refresh_fixtures import (
    DEVICES,
    append,
    candidates_of,
    make_store,
    records_for,
    request_in,
    small_model,
    some_workloads,
)
from transfer.checked_folder import CheckpointError
from transfer.errors import TransferError
from transfer.features.blocks import CPU_LAYOUT, GPU_LAYOUT
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.model import checkpoint
from transfer.model.mtl_tlp import MtlTLP
from transfer.train import trainers
from transfer.train.trainers import TlpConfig, train_mtl_tlp

pytestmark = pytest.mark.usefixtures("few_trees")

LEARNT, HELD = (lambda made: (made[:6], made[6:]))(some_workloads(6, 8))
A, B = DEVICES


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "store"
    make_store(path, [*LEARNT, *HELD])
    return path


@pytest.fixture(scope="module")
def snapshot(store: Path) -> DatasetSnapshot:
    return load_snapshot(Store.read(store), published=True)


@pytest.fixture(scope="module")
def trained(snapshot: DatasetSnapshot) -> MtlTLP:
    dataset = snapshot.dataset
    names = {one.workload_id for one in LEARNT}
    rows = np.flatnonzero([dataset.workload_ids[one] in names for one in dataset.group])
    config = TlpConfig(epochs=12, batch=64)
    model, losses = train_mtl_tlp(dataset, rows, layout=CPU_LAYOUT, config=config, seed=0, devices=DEVICES)
    assert losses
    return model


@pytest.fixture
def served(tmp_path: Path, trained: MtlTLP, snapshot: DatasetSnapshot) -> Registry:
    """Box A is served by a FleetTLP, box B by an MTL-TLP."""
    registry = Registry(tmp_path / "models")
    told = {
        "trained_workloads": [str(one.workload_id) for one in LEARNT],
        "table_version": snapshot.table_version,
    }
    registry.publish(registry.add(small_model(A, B), told), {A: {}, B: {}})
    registry.publish(registry.add(trained, {**told, "data_until": {B: 100.0}}), {B: {}})
    return registry


def request_of(store: Path, folder: Path, model: str, **changes: object) -> RefreshRequest:
    return request_in(folder, store=str(store), model=model, epochs=1, **changes)


def test_it_learns_and_comes_back_from_disk_with_equal_scores(
    trained: MtlTLP, snapshot: DatasetSnapshot, tmp_path: Path
) -> None:
    block = snapshot.dataset.features
    checkpoint.save(tmp_path / "v", trained, {"seed": 0})
    again, manifest = checkpoint.load(tmp_path / "v", DEFAULT_SPEC)
    assert isinstance(again, MtlTLP)
    assert (manifest["model_kind"], manifest["heads"]) == ("mtl_tlp", list(DEVICES))
    for device in DEVICES:
        scores = trained.score(block, device)
        assert np.array_equal(again.score(block, device), scores)
        assert ((scores > 0) & (scores < 1)).all()
        # In any company to the last bit.
        few = np.array([7, 3])
        assert np.array_equal(trained.score(block.take(few), device), scores[few])
    with pytest.raises(CheckpointError, match="holds a mtl_tlp, which takes no new head"):
        checkpoint.load_fleet_tlp(tmp_path / "v")


def test_scores_need_its_features(trained: MtlTLP, snapshot: DatasetSnapshot) -> None:
    block = snapshot.dataset.features
    with pytest.raises(TransferError, match="reads the published features of TLP and these candidates have"):
        trained.score(replace(block, published=None), A)
    with pytest.raises(TransferError, match="25 x 22 published features, got 40 x 20"):
        trained.check_block(replace(block, published=np.zeros((1, GPU_LAYOUT.steps, GPU_LAYOUT.width))))


def test_whoever_serves_scores_with_the_features_that_it_reads(
    served: Registry, trained: MtlTLP, store: Path
) -> None:
    workload, some = HELD[0], candidates_of(HELD[0], 6)
    block = Extractor().extract(workload, some, CPU_LAYOUT)
    expected = trained.score(block, B)
    ranker = CandidateRanker(served)
    ranking = ranker.rank(workload, B, some)
    assert ranking.scores == tuple(expected)
    ours = ranker.rank(workload, A, some)
    assert (ours.model.version, ranking.model.version) == ("v000001", "v000002")
    traces = [one.trace for one in some]
    body = {"device": B, "workload": workload.workload_id, "traces": [*traces, "{}"]}
    found = answered(served, HeadCache(served), store, json.dumps(body).encode())
    assert found["scores"] == [*expected.tolist(), None]
    assert found["version"] == "v000002"
    model = fleet.load_model(B, served.folder)
    assert model.score(workload, traces) == expected.tolist()
    # A trace that is not known is refused, and the others are scored.
    asked = [msgspec.structs.replace(some[0], trace="{}"), *some[1:]]
    assert ranker.rank(workload, B, asked).scores == (0.0, *expected[1:])


def test_people_see_which_kind_serves(served: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert [one["model_kind"] for one in list_versions(served)] == ["fleet_tlp", "mtl_tlp"]
    kinds = {device: one["model_kind"] for device, one in champion_notes(served).items()}
    assert kinds == {A: "fleet_tlp", B: "mtl_tlp"}
    found = diff_versions(served, "v000001", "v000002")
    assert found["manifest"]["model_kind"] == ["fleet_tlp", "mtl_tlp"]
    assert found["weights"] == {}
    assert run(["models", "show", "v000002", "--models", str(served.folder)]) == 0
    assert "mtl_tlp" in capsys.readouterr().out


def test_a_new_device_starts_from_a_fleet_tlp_only(
    served: Registry, trained: MtlTLP, store: Path, tmp_path: Path
) -> None:
    reader = Store.read(store)
    spec = msgspec.structs.replace(reader.devices()[DeviceId(A)].spec, device_id=DeviceId("new"))
    assert source_version(served, reader, spec).name == "v000001"
    # Also where it serves nobody any more, and however many versions come after it.
    for _ in range(3):
        served.publish(served.add(trained, {}), {A: {}, B: {}})
    assert served.prune(1) == ["v000002", "v000003"]
    assert source_version(served, reader, spec).name == "v000001"
    alone = Registry(tmp_path / "alone")
    alone.publish(alone.add(trained, {}), {A: {}})
    why = r"v000001, the newest, is a mtl_tlp.*`fleet train --model fleet_tlp`"
    with pytest.raises(FleetError, match=why):
        source_version(alone, reader, spec)


def test_mtl_tlp_alone_is_refreshed_watched_and_gone_on_from(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "published_config", lambda _: TlpConfig(epochs=12, batch=64))
    found = run_refresh(request_of(store, tmp_path, "mtl_tlp"))
    assert found["published"] == list(DEVICES)
    assert (found["start"], found["why_start"]) == ("nothing", "an MTL-TLP is trained from nothing")
    registry = Registry(tmp_path / "models")
    assert registry.kind("v000001") == "mtl_tlp"
    assert registry.manifest("v000001")["train"]["batch"] == 64
    # Fresh records are judged with its features, and the next refresh judges against it.
    copy = tmp_path / "store"
    make_store(copy, [*LEARNT, *HELD])
    append(copy, records_for(LEARNT, 12, seed=1, measured_at=200.0))
    look = run_watch(request_of(copy, tmp_path, "mtl_tlp", kind="watch"))["looks"][A]
    assert look["freshness"] in ("good", "stale")
    other = request_of(copy, tmp_path, "fleet_tlp", request_id="two")
    second = run_refresh(other)
    assert second["start"] == "nothing"
    assert "against v000001" in second["verdicts"][A]["reason"]
    settings = load_fleet(None, {"store.path": str(copy)}).config
    comparison, _ = evaluate_model(settings, tmp_path / "models", "v000001", [A])
    assert comparison.rankers == ("v000001",)
