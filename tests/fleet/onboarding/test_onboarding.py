"""`fleet onboard`: with recorded devices everything but the timing is real, and the truth is known."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from agents.records import DeviceId, Family, Outcome, WorkloadId
from fleet.config.settings import FleetConfig
from fleet.core.words import RequestKind
from fleet.daemon.daemon import UpOptions
from fleet.daemon.embedded import run, run_embedded
from fleet.daemon.engine_options import EngineOptions
from fleet.errors import FleetError
from fleet.models.freshness import CURVES, history
from fleet.models.registry import Registry
from fleet.models.versions import held_out, is_held_out, load_snapshot
from fleet.onboarding.adaptation import pools_of, source_devices_of
from fleet.onboarding.head_version import onboarding_of
from fleet.onboarding.replay import onboard_recorded
from fleet.onboarding.text import WHY_FEWER, lines_of
from fleet.planner.progress import TerminalDisplay
from fleet.requests.kinds import perform
from fleet.requests.onboard import Onboard
from fleet.requests.work import Work
from fleet.store.store import Store
from tests.coordinator_fixtures import write_replay_device
from tests.dataset_fixtures import cpu_device, gmm_workload, record_of
from tests.onboarding_fixtures import BROKEN, NEW, SOURCES, TILES, WORKLOADS, candidate, fill, records_of
from tests.scenario_fixtures import check_facts
from tests.strategy_fixtures import BriefMaml

pytestmark = pytest.mark.usefixtures("few_trees")


def settings_of(store: Path, folder: Path | None = None, **onboarding: Any) -> FleetConfig:
    return FleetConfig.model_validate(
        {
            "store": {"path": str(store)},
            "devices": {"folder": str(folder)} if folder else {},
            "training": {"epochs": 2},
            "onboarding": {"strategy": "nearest", "shipped": False, **onboarding},
        }
    )


RECORDED = """
samples = 48
failed_samples = 0
taken = source_devices
expected.regime = device-new
"""


def test_a_recorded_device_is_onboarded_and_the_truth_told(recorded_store: Path) -> None:
    settings = settings_of(recorded_store, samples=48, strategy="source_devices")
    result = onboard_recorded(settings, NEW)
    check_facts(result, RECORDED)
    assert set(result["source_devices"]) == set(SOURCES)
    assert result["truth"]["top1"] > result["truth"]["random_top1"] + 0.1
    low, high = result["expected"]["top1_interval"]
    assert 0 < low <= result["expected"]["top1"] <= high <= 1
    assert set(result["seconds"]) == {"read", "train", "choose", "adapt", "report"}
    text = "\n".join(lines_of(result))
    for words in (
        "dev-new: 48 samples",
        "this holds for candidates that source devices measured",
        f"true: top-1 {result['truth']['top1']:.3f}",
    ):
        assert words in text
    # It is the same every time.
    again = onboard_recorded(settings, NEW)
    assert json.dumps(again | {"seconds": 0}) == json.dumps(result | {"seconds": 0})
    with pytest.raises(FleetError, match="it holds: dev-a, dev-b"):
        onboard_recorded(settings, "dev-x")


def test_no_samples_at_all_still_give_a_head(recorded_store: Path) -> None:
    result = onboard_recorded(settings_of(recorded_store, samples=0, strategy="source_devices"), NEW)
    check_facts(result, "samples = 0\nexpected = null\nreason has needs")
    assert result["truth"]["top1"] > result["truth"]["random_top1"]
    assert any("expected: not known" in line for line in lines_of(result))


def test_auto_checks_its_default_against_meta_learning_multitask_and_scratch(
    recorded_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transfer.adapt.guard.Maml", BriefMaml)
    result = onboard_recorded(settings_of(recorded_store, samples=48, strategy="auto"), NEW)
    check = result["notes"]["check"]
    assert set(check["agreement"]) == {"source_devices", "multitask", "maml", "scratch"}
    assert result["taken"] == check["taken"]
    assert "of_strategy" in result["notes"]
    assert f"check: {check['says']}" in list(lines_of(result))


def test_devices_of_another_family_are_no_source_devices(tmp_path: Path) -> None:
    path = fill(tmp_path / "store", "dev-a")
    with Store.open(path) as store:
        spec, descriptor = cpu_device(NEW)
        store.put_device(msgspec.structs.replace(spec, family=Family.GPU), descriptor)
        with pytest.raises(FleetError, match="none of them a source device of dev-new"):
            source_devices_of(store, DeviceId(NEW), Family.GPU, ("dev-a",), "v000001")
        store.append(records_of(NEW))
    with pytest.raises(FleetError, match="the only device of family gpu"):
        onboard_recorded(settings_of(path, samples=8), NEW)


def test_no_sample_is_of_a_workload_that_is_held_out_later(tmp_path: Path) -> None:
    """Workloads of the fingerprint made the rule hold out some of the few that samples were chosen from."""
    plain = gmm_workload()
    workloads = [
        msgspec.structs.replace(
            plain, workload_id=WorkloadId(f"{n:016x}"), arg_shapes=((n + 1, 64), (64, 64), (n + 1, 64))
        )
        for n in range(14)
    ]
    few, others = workloads[:8], workloads[8:]
    spent = {one.workload_id for one in few if is_held_out(one)}
    assert spent
    assert not held_out(few)
    assert spent <= held_out(workloads)
    by_device = {"dev-a": few, "dev-b": few, NEW: others}
    with Store.open(tmp_path / "store") as store:
        store.put_workloads(workloads)
        for device, its in by_device.items():
            store.put_device(*cpu_device(device))
            made = [(one, candidate(one, *tiles)) for one in its for tiles in TILES[:4]]
            store.append([record_of(each, device, 1e-3 * (1 + n)) for n, (_, each) in enumerate(made)])
        store.flush()
        snapshot = load_snapshot(store)
        sources, learnable = [DeviceId("dev-a"), DeviceId("dev-b")], frozenset(snapshot.dataset.candidate_ids)
        pools, holds_out, _ = pools_of(store, sources, 8, learnable=learnable)
    samples = frozenset(one.candidate_id for pool in pools.values() for one in pool)
    nothing: Any = None
    one = onboarding_of(snapshot, DeviceId(NEW), samples, nothing, nothing, 0, holds_out=holds_out)
    assert len(samples) == len(one.few_shot) == 32


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `runs` of source devices: their store and their model."""
    from fleet.models.training import train_version

    runs = tmp_path_factory.mktemp("trained") / "runs"
    train_version(settings_of(fill(runs / "store", *SOURCES)), runs / "models", ())
    return runs


@pytest.fixture
def world(trained: Path, recorded_store: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A store of source devices with their model, and YAML of boards that answer from the recorded store."""
    runs = tmp_path / "runs"
    shutil.copytree(trained, runs)
    folder = tmp_path / "hardware"
    folder.mkdir()
    write_replay_device(folder, "board", recorded_store, device=NEW)
    write_replay_device(folder, "dead", recorded_store, device=BROKEN, failures=True)
    return runs / "store", folder, runs / "models"


def onboarded(
    device: str, samples: int, store: Path, folder: Path, models: Path, **more: Any
) -> dict[str, Any]:
    """What `fleet onboard` does where no daemon runs."""
    settings = settings_of(store, folder, samples=samples).with_devices(device)
    console = Console(quiet=True)
    kind, arguments = RequestKind.ONBOARDING, {"device": device, **more}
    work = Work(kind=kind, arguments=arguments, minutes=None, settings=settings, models=models)
    display = TerminalDisplay(console)
    options = UpOptions(models=models)
    return run_embedded(
        settings, kind, arguments, options, console, lambda session: perform(work, session, display)
    )


def test_a_device_goes_on_from_few_samples_to_more(world: tuple[Path, Path, Path]) -> None:
    store, folder, models = world
    start = models / "v000001" / "manifest.json"
    start.write_text(json.dumps({**json.loads(start.read_text()), "inherited_workloads": ["seen before"]}))

    def onboard(samples: int) -> tuple[dict[str, Any], set[str]]:
        result = onboarded("board", samples, store, folder, models)
        records = Store.read(store).records(device_id=DeviceId("board"))
        measured = [record.candidate_id for record in records]
        assert len(measured) == len(set(measured))
        return result, set(map(str, measured))

    first, few = onboard(24)
    assert len(few) == 24
    check_facts(first, "samples = 24\noutcomes = {ok: 24}\ncurve = []\nfingerprint.ran = 0")
    assert "devices are compared by the description" in "\n".join(lines_of(first))
    assert "seen before" in Registry(models).manifest(first["version"])["inherited_workloads"]
    second, more = onboard(48)
    assert few < more
    assert len(more) == 48
    check_facts(second, "curve.0.samples = 24\nexpected.samples = 48")
    assert (models / second["version"]).is_dir()
    assert second["version"] != first["version"]
    assert history(models.parent / CURVES, "board")[-1]["samples"] == 48


def test_in_another_environment_the_device_as_it_was_is_a_source(world: tuple[Path, Path, Path]) -> None:
    """A changed driver costs a few samples, and what they cannot tell comes from the records before it."""
    store, folder, models = world
    first = onboarded("board", 48, *world)
    assert first["earlier_environment"] is None
    with (folder / "board.yaml").open("a") as stream:
        stream.write("seed: 7\n")
    again = onboarded("board", 64, *world)
    assert again["earlier_environment"] is not None
    assert (again["samples"], again["outcomes"]) == (64, {"ok": 64})
    assert again["version"] != first["version"]
    # Both go back to one model, so the samples judge which of them is better.
    said = again.get("why_not_served") or again["why_served"]
    assert f"against {first['version']}" in said
    records = sorted(Store.read(store).records(device_id=DeviceId("board")), key=lambda one: one.measured_at)
    environments = list(dict.fromkeys(one.environment_id for one in records))
    assert environments[:-1] == [again["earlier_environment"]]
    manifest = json.loads((models / again["version"] / "manifest.json").read_text())
    assert "board" in manifest["heads"]
    assert not [head for head in manifest["heads"] if "@" in head]
    more = onboarded("board", 24, *world)
    assert more["earlier_environment"] == environments[0]
    assert more["served_by"] == again["served_by"]
    assert DeviceId("board@before") not in Store.read(store).devices()


def test_after_a_drift_samples_are_measured_again_and_judge_the_new_head(
    world: tuple[Path, Path, Path],
) -> None:
    store, _, models = world
    first = onboarded("board", 48, *world)
    since = time.time()
    again = onboarded("board", 64, *world, since=since)
    records = list(Store.read(store).records(device_id=DeviceId("board")))
    new = [one for one in records if one.measured_at >= since]
    old = {one.candidate_id: one for one in records if one.measured_at < since}
    assert len(new) == again["samples"] == 64, "nothing of before counts as a sample of now"
    repeated = [one for one in new if one.candidate_id in old]
    assert repeated
    assert all(one.attempt > old[one.candidate_id].attempt for one in repeated)
    assert again["earlier_environment"] == f"{new[0].environment_id}@before"
    manifest = json.loads((models / again["version"] / "manifest.json").read_text())
    verdict = manifest["verdicts"]["board"]
    assert verdict["judged"]["workloads"] == 8
    assert again["served_by"] == (again["version"] if verdict["serves"] else first["version"])
    changes = [one.reason for one in Registry(models).history(0) if one.device_id == "board"]
    assert verdict["reason"] in (again.get("why_not_served"), changes[-1])
    # The same request, begun again after a kill, has all of its samples.
    onboarded("board", 64, *world, since=since)
    assert len(list(Store.read(store).records(device_id=DeviceId("board")))) == len(records)


def test_an_onboarding_takes_as_many_samples_as_source_devices_measured(
    world: tuple[Path, Path, Path],
) -> None:
    store, folder, models = world
    there = len(WORKLOADS) * len(TILES)
    with Store.open(store) as writer:
        # Candidates whose every record is a rejected one stand in no dataset, so none of them is a sample.
        lost = [record_of(candidate(WORKLOADS[0], 1, 1, 7), "dev-a", 1e-3)]
        writer.append([msgspec.structs.replace(one, outcome=Outcome.REJECTED) for one in lost])
    result = onboarded("board", there + 8, store, folder, models)
    assert (result["samples"], result["samples_asked"]) == (there, there + 8)
    assert list(lines_of(result))[:2] == [f"board: {there} samples of {there + 8}", WHY_FEWER]


def test_an_onboarding_without_anything_to_start_from_is_refused_before_an_engine_starts(
    world: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder, models = world
    monkeypatch.setattr("fleet.daemon.embedded.run_embedded", lambda *_: pytest.fail("an engine started"))
    config = folder / "fleet.yaml"
    config.write_text(f"schema: 1\ndevices:\n  folder: {folder}\n")

    def refused(store: Path, models: Path) -> str:
        with pytest.raises(FleetError) as caught:
            run(Onboard(device="board", samples=64), EngineOptions(store=store, models=models, config=config))
        return str(caught.value)

    with pytest.raises(FleetError, match=r"samples: expected `int` >= 0, got -3"):
        run(Onboard(device="board", samples=-3), EngineOptions(store=store, models=models, config=config))
    assert "no model under" in refused(store, folder / "no-models")
    assert "so board has no source devices" in refused(folder / "no-store", models)
    assert not (folder / "no-store").exists(), "no store is left behind"
    empty = folder / "empty"
    with Store.open(empty) as writer:
        for one in SOURCES:
            writer.put_device(*cpu_device(one))
    assert "have measured nothing that it may be given" in refused(empty, models)


def test_a_device_on_which_nothing_runs_is_one_clear_error(world: tuple[Path, Path, Path]) -> None:
    with pytest.raises(FleetError, match=r"none of the 16 samples ran on dead.*build_failed 16.*it broke"):
        onboarded("dead", 16, *world)
