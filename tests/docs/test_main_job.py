"""The main job as a user has it: a demo, stopped and run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agents.records import DeviceId
from fleet.errors import FleetError
from fleet.onboarding.fingerprint import known_fingerprints
from fleet.store.store import Store
from tests.conftest import until
from tests.docs.test_docs import ROOT
from transfer.adapt.guard import NAMES
from transfer.adapt.nearest import ORIGIN

pytestmark = [pytest.mark.ray, pytest.mark.tvm, pytest.mark.slow, pytest.mark.timeout(1800)]

WORKLOADS, SAMPLES, SUPPORT = 4, 5, 8
SMALL = [
    *("--workloads", str(WORKLOADS), "--samples", str(SAMPLES), "--support", str(SUPPORT)),
    *("--folds", "2", "--epochs", "1", "--repeats", "1"),
]


#: Two profiles that every host of CI can be, and little time for each program.
SETTINGS = """
schema: 1
devices: {ids: [x86-64, x86-64-v2]}
workloads: {networks: [bert-tiny], noise_samples: 2}
protocol: {repeat: 2, extra_repeats: 0, min_repeat_ms: 1.0, visits: 1, reject_interval: 0}
daemon: {stop_secs: 1}
"""


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    settings = folder.with_name("fleet.yaml")
    settings.write_text(SETTINGS)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "fleet.cli", "demo", "--folder", str(folder)),
            *("--config", str(settings), *SMALL, *more),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def count(store: Path) -> int:
    try:
        return sum(counts.records for counts in Store.read(store).counts().values())
    except FleetError:
        return 0


def own_lines(lines: list[str]) -> list[str]:
    """Without what Ray's processes print, and the traceback of what Python ignores at its end."""
    kept = []
    before = ""
    for line in lines:
        if not line.startswith("(") and not before.startswith("Exception ignored"):
            kept.append(line)
        before = line
    return kept


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo that was asked to stop in mid-measurement: it closes everything and says so."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    demo = start(folder)
    until(lambda: demo.poll() is not None or count(folder / "store") >= 4, 300, look_secs=0.5)
    assert demo.poll() is None, demo.communicate()
    family = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGTERM)
    _, errors = demo.communicate(timeout=180)
    assert demo.returncode == 128 + signal.SIGTERM
    lines = errors.splitlines()
    # Ray's processes print here as well, even while they end.
    last = [line for line in lines if line.startswith("fleet:")][-1]
    assert last == "fleet: interrupted; run the same command again to continue"
    assert not [line for line in own_lines(lines) if "Traceback" in line], errors
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    return folder


@pytest.fixture(scope="module")
def finished(stopped: Path) -> tuple[Path, str]:
    """The same command again: its folder, and what it printed."""
    kept = {record.record_id for record in Store.read(stopped / "store").records()}
    assert len(kept) >= 4
    again = start(stopped, "--json")
    printed, errors = again.communicate(timeout=500)
    assert again.returncode == 0, errors
    assert kept <= {record.record_id for record in Store.read(stopped / "store").records()}
    return stopped, printed


def test_the_same_command_goes_on_after_a_stop(finished: tuple[Path, str]) -> None:
    store = Store.read(finished[0] / "store")
    records = list(store.records())
    first = [record for record in records if record.attempt == 0]
    assert len({record.record_id for record in records}) == len(records)
    by_device = {}
    reference = {record.candidate_id for record in first if record.origin == ORIGIN}
    assert len(reference) == 18
    for record in first:
        if record.candidate_id not in reference:
            by_device.setdefault(record.device_id, set()).add(record.candidate_id)
    assert len(by_device) >= 2
    candidates = next(iter(by_device.values()))
    assert all(measured == candidates for measured in by_device.values())
    assert len(candidates) == WORKLOADS * SAMPLES
    likened = known_fingerprints(store, list(map(DeviceId, by_device)), reference)
    assert [fingerprint.tried for fingerprint in likened] == [18] * len(by_device)


def test_the_report_keeps_its_contract(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    report = json.loads((folder / "report.json").read_text())
    assert json.loads(printed).keys() == report.keys()
    assert report["version"] == 1
    store = Store.read(folder / "store")
    for device_id, device in report["devices"].items():
        assert device["records"] == device["ok"] + device["failed"]
        assert device["ok"] <= sum(record.attempt == 0 for record in store.records(device_id=device_id))
        assert device["records_per_s"] > 0
        assert 0 <= device["remeasure_median_change"] < 1
    model = report["model"]
    assert set(model["heads"]) == set(report["devices"]) == set(model["top1"]) == set(model["top5"])
    assert all(0 < value <= 1 for value in [*model["top1"].values(), *model["top5"].values()])
    new = report["onboarding"]
    assert new["device"] in report["devices"]
    assert new["samples"] == SUPPORT
    assert new["strategy"] in NAMES
    assert new["seconds"] > 0
    assert 0 < new["full_samples"] < report["devices"][new["device"]]["ok"]
    for key in ("top1", "top5", "scratch_top1", "scratch_top5", "full_top1"):
        assert 0 < new[key] <= 1
    assert new["top1"] <= new["top5"]
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    assert new["device"] in page


def test_the_kept_model_scores_every_head(finished: tuple[Path, str]) -> None:
    from fleet.models.versions import load_snapshot
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model import checkpoint

    folder, printed = finished
    # The shipped model's head may have come after it, to serve the device.
    version = json.loads(printed)["model"]["version"]
    model, manifest = checkpoint.load(folder / "models" / version, DEFAULT_SPEC)
    snapshot = load_snapshot(Store.read(folder / "store"))
    assert set(model.device_ids) == set(snapshot.dataset.device_ids)
    assert manifest["samples"] == SUPPORT
    for device_id in model.device_ids:
        scores = model.score(snapshot.dataset.features, device_id)
        assert scores.shape == (len(snapshot.dataset),)
        assert len(set(scores.tolist())) > WORKLOADS * SAMPLES / 2
