"""`fleet train` on a small store: what it keeps, what it leaves out, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agents.records import DeviceId, Outcome
from fleet.cli.app import run
from fleet.config.settings import FleetConfig, load_fleet
from fleet.errors import FleetError
from fleet.models.registry import Registry
from fleet.models.training import train_version
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
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


def test_a_version_says_what_it_was_made_of(settings: FleetConfig, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = train_version(settings, tmp_path / "models", (), on_progress=lambda *at: seen.append(at))
    assert found["heads"] == ["box.a", "box.b"]
    assert found["devices_left_out"] == ["lonely"]
    assert found["workloads_too_small"] == 1
    assert found["held_out_workloads"] == 0
    _, manifest = checkpoint.load(tmp_path / "models" / found["version"])
    assert manifest["epochs_done"] == manifest["best_epoch"] == 2
    curves = Path(found["curves"]) / "curves.jsonl"
    assert len(curves.read_text().splitlines()) == 2
    json.dumps(found)
    assert seen == [(1, 2), (2, 2)]


def test_without_publishing_a_version_is_kept_and_serves_nobody(
    settings: FleetConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train_version(settings, tmp_path / "models", ("box.a",), publish=False)
    registry = Registry(tmp_path / "models")
    assert (first["published"], first["serves"], registry.champions()) == (False, {}, {})
    assert first["kept_champions"]["box.a"].startswith("not published; ")
    store, models = settings.store.path, str(tmp_path / "models")
    arguments = ["train", "--store", str(store), "--models", models, "--epochs", "1", "--json"]
    arguments += ["--set", "onboarding.shipped=false"]
    assert run(arguments) == 0
    served = registry.champions()
    assert {one.version for one in served.values()} == {"v000002"}
    capsys.readouterr()
    assert run([*arguments, "--no-publish", "--seed", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "v000003"
    assert (registry.champions(), registry.versions()[-1]) == (served, "v000003")
    # Nobody can judge in so small a store, so the champions stay; what the challenger lacks is kept.
    assert run([*arguments, "--seed", "6"]) == 0
    assert {one.version for one in registry.champions().values()} == {"v000002"}
    assert registry.champions()[DeviceId("box.a")].retained.startswith(
        "v000004: needs 54 more measured workloads to be judged: 0 held-out ones can judge it, 8 must"
    )


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
