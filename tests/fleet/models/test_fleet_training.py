"""`fleet train` on a small store: what it keeps, what it leaves out, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents.records import Outcome
from fleet.config.settings import FleetConfig, load_fleet
from fleet.errors import FleetError
from fleet.models.training import train_version
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from tests.model_scenarios import ModelScenario
from tests.refresh_fixtures import some_workloads
from tests.scenario_fixtures import check_facts, read_scenarios
from transfer.errors import TransferError
from transfer.model import checkpoint

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture
def settings(tmp_path: Path) -> FleetConfig:
    """A store of four workloads on two devices; a third device has a single ok record."""
    random = np.random.default_rng(0)
    with Store.open(tmp_path / "store") as store:
        for name in ("box.a", "box.b", "lonely"):
            store.put_device(*cpu_device(name))
        records = []
        for place in range(4):
            workload = gmm_workload(f"gmm {place}")
            store.put_workloads([workload])
            candidates = gmm_candidates(workload, 6 if place else 1)
            for name in ("box.a", "box.b"):
                records += [record_of(one, name, float(random.uniform(1, 2))) for one in candidates]
            if not place:
                records += [record_of(candidates[0], "lonely", 1e-3)]
        store.append(records)
    changes = {"store.path": str(tmp_path / "store"), "training.epochs": 2, "training.folds": 2}
    return load_fleet(None, {**changes, "onboarding.shipped": False}).config


SCENARIOS = read_scenarios(Path(__file__).with_name("training_scenarios.txt"))


@pytest.mark.parametrize("title", SCENARIOS)
def test_a_scenario(title: str, tmp_path: Path) -> None:
    ModelScenario(tmp_path, some_workloads(4, 0)).play(SCENARIOS[title])


def test_a_version_says_what_it_was_made_of(settings: FleetConfig, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = train_version(settings, tmp_path / "models", (), on_progress=lambda *at: seen.append(at))
    _, manifest = checkpoint.load(tmp_path / "models" / found["version"])
    facts = """
        found.heads = [box.a, box.b]
        found.devices_left_out = [lonely]
        found.workloads_too_small = 1
        found.held_out_workloads = 0
        manifest.epochs_done = 2
        manifest.best_epoch = 2
    """
    check_facts({"found": found, "manifest": manifest}, facts)
    curves = Path(found["curves"]) / "curves.jsonl"
    assert len(curves.read_text().splitlines()) == 2
    json.dumps(found)
    assert seen == [(1, 2), (2, 2)]


def test_devices_with_nothing_to_learn_are_refused_with_the_cure(
    settings: FleetConfig, tmp_path: Path
) -> None:
    with pytest.raises(FleetError, match=r"nothing to learn of lonely: .*measure more with `fleet collect`"):
        train_version(settings, tmp_path / "models", ("box.a", "lonely"))
    workload = gmm_workload()
    with Store.open(tmp_path / "failed") as store:
        store.put_device(*cpu_device("box"))
        store.put_workloads([workload])
        store.append([record_of(gmm_candidates(workload, 1)[0], "box", outcome=Outcome.RUN_FAILED)])
    settings = load_fleet(None, {"store.path": str(tmp_path / "failed")}).config
    with pytest.raises(TransferError, match=r"none of the 1 records is ok; run `fleet collect` first"):
        train_version(settings, tmp_path / "models", ())
