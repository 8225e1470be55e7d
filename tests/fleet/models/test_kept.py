"""What is kept of a head scores as what was judged: with what source devices measured, and without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as save_arrays

from agents.records import Candidate, DeviceId
from fleet.config.settings import FleetConfig
from fleet.models.evaluation import evaluate_model
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHeads
from fleet.models.versions import DatasetSnapshot, train_config
from fleet.onboarding.head_version import adapt_version, onboarding_of
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.store.store import Store
from tests.dataset_fixtures import gmm_trace, record_of
from tests.model_fixtures import CONFIG, make_dataset, trained
from tests.onboarding_fixtures import NEW, TILES, WORKLOADS, candidate
from tests.strategy_fixtures import task_of
from transfer.adapt.base import Adapted, unmeasured
from transfer.adapt.kept import file_of, files_of, load_adapted
from transfer.adapt.source_devices import SourceDevices
from transfer.checked_folder import CheckpointError
from transfer.data.metrics import evaluate_ranking
from transfer.errors import TransferError
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP
from transfer.tvm_cost_model import load_scorer

TARGET = "cpu-new"
DATASET = make_dataset(workloads=8, candidates=12)
ROWS = np.arange(len(DATASET))
QUICK = replace(CONFIG, epochs=3)


@pytest.fixture(scope="module")
def source() -> FleetTLP:
    return trained(DATASET, epochs=3)


@pytest.fixture(scope="module")
def adapted(source: FleetTLP) -> Adapted:
    few_shot = DATASET.rows_of(TARGET)[:40]
    return SourceDevices(nets=2).adapt(task_of(source, DATASET, TARGET, few_shot, ROWS, QUICK))


@pytest.fixture
def kept(adapted: Adapted, tmp_path: Path) -> Path:
    folder = tmp_path / "v000001"
    checkpoint.save(folder, adapted.model, {}, beside=files_of(adapted))
    return folder


def test_scores_are_the_same_before_and_after(adapted: Adapted, kept: Path) -> None:
    again = load_adapted(kept, TARGET)
    np.testing.assert_array_equal(again.score(DATASET, ROWS), adapted.score(DATASET, ROWS))
    block = DATASET.features
    np.testing.assert_array_equal(again.score_unseen(block), adapted.score_unseen(block))
    # The correction changes something, so that losing it would be seen.
    assert not np.array_equal(again.score_unseen(block), adapted.model.score(block, TARGET))
    assert load_adapted(kept, "cpu.a").correction is None, "other heads of the version have none"
    # What nobody measured is scored as it was judged.
    judged = adapted.score(unmeasured(DATASET, ROWS), ROWS)
    np.testing.assert_allclose(adapted.score_unseen(block), judged, rtol=1e-9)


def test_what_is_torn_missing_or_of_a_later_program_is_one_clear_error(
    adapted: Adapted, kept: Path, tmp_path: Path
) -> None:
    path = kept / file_of(TARGET)
    assert path.name == "correction-cpu-new.safetensors"
    assert file_of("../a b") == "correction-..%2Fa%20b.safetensors", "names stay inside their folder"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="torn or changed"):
        load_adapted(kept, TARGET)
    path.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        load_adapted(kept, TARGET)
    for number, about in enumerate(
        (
            {"settings": "{"},
            {"settings": "{}"},
            {"other": "{}"},
            None,
        )
    ):
        folder = tmp_path / f"v{number}"
        raw = save_arrays({"x": np.zeros(2, dtype=np.float32)}, metadata=about)
        checkpoint.save(folder, adapted.model, {}, beside={file_of(TARGET): raw})
        with pytest.raises(TransferError, match="adapt the device again"):
            load_adapted(folder, TARGET)


def test_a_device_adds_at_most_two_megabytes(adapted: Adapted) -> None:
    [raw] = files_of(adapted).values()
    head = sum(parameter.nbytes for parameter in adapted.model.head(TARGET).parameters())
    assert len(raw) + head < 2_000_000


@pytest.fixture(scope="module")
def version(
    recorded: DatasetSnapshot,
    recorded_store: Path,
    source_model: FleetTLP,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Registry, str, Adapted]:
    """A device of a real store, onboarded: its registry, its version, and the head that was judged."""
    few_shot = frozenset(recorded.dataset.candidate_ids[::5])
    one = onboarding_of(recorded, DeviceId(NEW), few_shot, source_model, train_config(1), 0)
    registry = Registry(tmp_path_factory.mktemp("runs") / "models")
    shipped = ShippedHeads(registry, Store.read(recorded_store), enabled=False)
    judged, name = adapt_version(one, recorded, shipped, SourceDevices(nets=1))
    return registry, name, judged


def test_an_onboarded_device_is_served_by_what_was_judged(
    version: tuple[Registry, str, Adapted], tmp_path: Path
) -> None:
    registry, name, judged = version
    workload = WORKLOADS[3]
    candidates = [candidate(workload, *tiles) for tiles in TILES]
    block = Extractor(DEFAULT_SPEC).extract(workload, candidates)
    expected = judged.score_unseen(block)
    again = load_adapted(registry.path(name), NEW, DEFAULT_SPEC)
    np.testing.assert_array_equal(again.score_unseen(block), expected)
    ranking = CandidateRanker(registry).rank(workload, NEW, candidates)
    np.testing.assert_array_equal(ranking.scores, expected)
    scorer = load_scorer(registry.path(name), NEW, [workload])
    assert scorer._head.correction is not None  # what it scores by is that of the file
    np.testing.assert_array_equal(scorer._head.score_unseen(block), expected)


def test_an_evaluation_judges_what_serves(
    version: tuple[Registry, str, Adapted], recorded_store: Path, tmp_path: Path
) -> None:
    """With the correction of its own candidates, on what was measured after the version."""
    registry, name, judged = version
    store = shutil.copytree(recorded_store, tmp_path / "store")
    traces = [gmm_trace(i=(64, 1, 1, 1), j=(64 // size, size, 1, 1)) for size in (1, 2, 4, 8)]
    later = [Candidate(workload_id=WORKLOADS[0].workload_id, trace=trace) for trace in traces]
    with Store.open(store) as writer:
        writer.append([record_of(one, NEW, 1e-3 * (1 + place)) for place, one in enumerate(later)])
    settings = FleetConfig.model_validate({"store": {"path": str(store)}})
    [found] = evaluate_model(settings, registry.folder, name, [NEW])[0].metrics[name, NEW]
    block = Extractor(DEFAULT_SPEC).extract(WORKLOADS[0], later)
    scores = judged.score_unseen(block)
    assert not np.array_equal(scores, judged.model.score(block, NEW))
    group, secs = np.zeros(len(later), dtype=np.int32), 1e-3 * np.arange(1.0, len(later) + 1)
    assert found.values["tau"].tolist() == evaluate_ranking(scores, secs, group).values["tau"].tolist()
