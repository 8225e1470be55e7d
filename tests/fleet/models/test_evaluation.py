"""`fleet eval` on small stores: what it reads, judges and prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from agents.records import NOISE, Record
from fleet.cli.app import run
from fleet.config.sections import FleetConfig, OnboardingSection, StoreSection, TrainingSection
from fleet.errors import FleetError
from fleet.models.evaluation import evaluate_model, evaluate_store
from fleet.models.evaluation_table import print_evaluation
from fleet.models.registry import Registry
from fleet.models.training import train_version
from fleet.models.training_rows import LEAST_PAIRS
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of
from tests.refresh_fixtures import small_model

pytestmark = pytest.mark.usefixtures("few_trees")

WORKLOADS = [
    gmm_workload("mm0", networks=("bert-tiny",)),
    gmm_workload("mm1", networks=("bert-base",)),
    gmm_workload("mm2", operator="C2D", networks=("resnet-18", "resnet-50")),
    gmm_workload("mm3", operator="C2D", networks=("resnet-50",)),
    gmm_workload("mm4", operator="C2D", networks=("resnet-50",)),
    gmm_workload("mm5", networks=("bert-base", "resnet-50")),
]
SAMPLES = 6


def made_records(devices: Sequence[str], numbers: Sequence[int] = range(SAMPLES)) -> list[Record]:
    """Latencies that follow from the outermost tile of k, with a little of each device."""
    random = np.random.default_rng(0)
    records = []
    for place, device in enumerate(devices):
        for workload in WORKLOADS:
            for number, candidate in enumerate(gmm_candidates(workload, SAMPLES)):
                latency = 1e-3 * (1 + number) * (1 + 0.1 * place) * random.uniform(0.9, 1.1)
                if number in numbers:
                    records.append(record_of(candidate, device, latency))
    return records


def again(records: Sequence[Record], change: float) -> list[Record]:
    """An A/A run of some records: two more measurements of each."""
    return [
        replace(record, origin=NOISE, attempt=attempt, run_secs=(record.run_secs[0] * factor,))
        for record in records
        for attempt, factor in ((1, 1.0), (2, 1 + change))
    ]


def make_store(path: Path, records: Sequence[Record], devices: Sequence[str] = ("a", "b")) -> Path:
    with Store.open(path) as store:
        for device in devices:
            store.put_device(*cpu_device(device))
        store.put_workloads(WORKLOADS)
        store.append(list(records))
    return path


def settings_of(store: Path, epochs: int = 2, folds: int = 3) -> FleetConfig:
    return FleetConfig(
        store=StoreSection(path=str(store)),
        training=TrainingSection(epochs=epochs, folds=folds, seed=5),
        onboarding=OnboardingSection(shipped=False),
    )


def trained(
    folder: Path, records: Sequence[Record], devices: Sequence[str] = ("a", "b")
) -> tuple[FleetConfig, Path]:
    """Settings of a store, and the folder of a model of it."""
    settings = settings_of(make_store(folder / "store", records, devices), epochs=1)
    train_version(settings, folder / "models", ())
    return settings, folder / "models"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = made_records(("a", "b"))
    noise = again([one for one in records if one.device_id == "a"][: 3 * SAMPLES], 0.04)
    return make_store(tmp_path_factory.mktemp("eval") / "store", [*records, *noise])


def test_every_workload_is_held_out_with_every_seed(store: Path) -> None:
    found = evaluate_store(settings_of(store), (), split="by-workload", seeds=2)
    comparison = found.comparison
    assert comparison.rankers == ("fleet-tlp",)
    assert comparison.seeds == (5, 6)
    assert comparison.device_ids == ("a", "b")
    for runs in comparison.metrics.values():
        assert len(runs) == 2
        assert all(run.counts.tolist() == [SAMPLES] * len(WORKLOADS) for run in runs)
    # All of one operator have the same shape here.
    assert found.near_copies == len(WORKLOADS)
    # Noise and ceiling come from measuring twice.
    assert set(found.noise) == set(found.ceilings) == {"a"}
    assert found.noise["a"].median_change == pytest.approx(0.04)
    assert found.comparison.noise_floors == {"a": found.noise["a"].median_change}
    ceiling = found.ceilings["a"]
    assert ceiling.counts.tolist() == [SAMPLES] * 3
    assert ceiling.tau == pytest.approx(1)


def test_a_ceiling_puts_no_two_environments_in_one_order(tmp_path: Path) -> None:
    """One that is twice as slow made any order of its candidates and the others' look right."""
    fast = made_records(("a", "b"))
    of_a = [one for one in fast if one.device_id == "a"]
    slow = [
        replace(one, environment_id="slow", run_secs=(2 * one.run_secs[0],))
        for one in of_a
        if one.candidate_id != of_a[0].candidate_id
    ]
    path = make_store(tmp_path / "store", [*fast, *again(of_a, 0.0), *slow, *again(slow, 0.0)])
    found = evaluate_store(settings_of(path, epochs=1), (), split="within-workload", seeds=1)
    assert found.ceilings["a"].counts.sum() == len(of_a), "those of the environment with most of them"
    assert found.ceilings["a"].tau == pytest.approx(1)


def test_a_device_held_out_is_judged_by_what_others_say(store: Path) -> None:
    found = evaluate_store(settings_of(store, epochs=1), (), split="by-device", seeds=1)
    assert found.comparison.splits == ("a", "b")
    assert json.dumps(found.as_json(), allow_nan=False)


def test_a_kept_model_is_judged_on_what_was_measured_after_it(tmp_path: Path) -> None:
    settings, models = trained(tmp_path, made_records(("a", "b"), range(3)))
    with pytest.raises(FleetError, match="has seen all 18 candidates"):
        evaluate_model(settings, models, "latest", ())
    with Store.open(settings.store.path) as store:
        store.append(made_records(("a", "b"), range(3, SAMPLES)))
    found = evaluate_model(settings, models, "v000001", ())
    assert found.model == "v000001"
    for (ranker, _), [metrics] in found.comparison.metrics.items():
        assert ranker == "v000001"
        assert metrics.counts.tolist() == [3] * len(WORKLOADS)
    only = evaluate_model(settings, models, "latest", ["b"])
    assert only.comparison.device_ids == ("b",)
    # A drift is no noise. As an onboarding after one keeps it:
    Registry(models).add(small_model("a"), {"onboarded": "a", "environment_since": 1.0})
    since = [
        replace(one, attempt=1, origin="remeasure", measured_at=2.0, run_secs=(2 * one.run_secs[0],))
        for one in made_records(("a",), range(3))
    ]
    with Store.open(settings.store.path) as store:
        store.append(since)
    found = evaluate_model(settings, models, "v000001", ())
    assert found.comparison.device_ids == ("a", "b")
    assert (found.noise, found.ceilings) == ({}, {})


def test_a_kept_model_is_judged_by_the_rule_of_a_refresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a model chose is a narrow range, in which any order looks bad."""
    settings, models = trained(tmp_path, made_records(("a", "b"), range(2)))
    with Store.open(settings.store.path) as store:
        store.append([replace(one, origin="model") for one in made_records(("a",), range(2, 4))])
    with pytest.raises(FleetError, match="all 12 candidates measured since then were chosen by a model"):
        evaluate_model(settings, models, "latest", ())
    with Store.open(settings.store.path) as store:
        store.append([*made_records(("a",), range(4, SAMPLES)), *made_records(("b",), range(2, SAMPLES))])
    found = evaluate_model(settings, models, "latest", ())
    counts = {device: runs[0].counts.tolist() for (_, device), runs in found.comparison.metrics.items()}
    assert counts == {"a": [2] * len(WORKLOADS), "b": [4] * len(WORKLOADS)}
    assert found.as_json()["not_judged"] == {"a": 12}
    print_evaluation(found.as_json())
    said = " ".join(capsys.readouterr().out.split())
    assert "a: 12 candidates left out: a model chose them, or they were measured again" in said
    assert "b: 6 workloads, 24 held-out candidates." in said


def test_a_model_that_does_not_fit_the_store_is_refused(tmp_path: Path, store: Path) -> None:
    _, models = trained(tmp_path / "other", made_records(("x",)), ("x",))
    with pytest.raises(FleetError, match="no records of the heads of v000001: x"):
        evaluate_model(settings_of(store), models, "latest", ())
    longer, models = make_store(tmp_path / "store", made_records(("a", "b"), range(3))), tmp_path / "models"
    with Store.open(longer) as opened:
        for number in range(3, SAMPLES):
            opened.append(made_records(("a", "b"), [number]))
    train_version(settings_of(longer, epochs=1), models, ())
    with pytest.raises(FleetError, match="v000001 has no head for x, y; it has: a, b"):
        evaluate_model(settings_of(store), models, "latest", ["x", "a", "y"])
    at, here = Store.read(longer).version, Store.read(store).version
    assert here < at
    words = f"v000001 was trained on table version {at}, {store} is at {here}: is --store the right one"
    with pytest.raises(FleetError, match=re.escape(words)):
        evaluate_model(settings_of(store), models, "latest", ())


def test_the_table_fits_and_says_what_its_words_mean(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--store", str(store), "--folds", "2", "--seeds", "1", "--epochs", "1"]
    assert run(["eval", *flags]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    firsts = [line.split()[0] for line in lines if line.strip()]
    for word in ("device", "a", "b", "fleet-tlp", "random", "ceiling"):
        assert word in firsts
    assert "noise 4.0%, no regret below it" in captured.out
    assert "ceiling from 18 candidates of 3 workloads" in " ".join(captured.out.split())
    assert "Training and holding out: 2/2" in captured.err
    assert run(["eval", *flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["devices"]) == {"a", "b"}
    assert told["split"] == "by-workload"
    assert told["near_copies"] > 0


def test_a_store_of_few_workloads_is_judged_in_fewer_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = {one.workload_id for one in WORKLOADS[:4]}
    records = [one for one in made_records(("a", "b")) if one.workload_id in few]
    # A handful of pairs is no noise floor, and no ceiling.
    store = make_store(tmp_path / "store", [*records, *again(records[: LEAST_PAIRS - 1], 0.5)])
    assert run(["eval", "--store", str(store), "--seeds", "1", "--epochs", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "; noise " not in said
    assert "; ceiling " not in said
    assert (
        "4 parts of the workloads, each held out once (5 were asked for, and there are 4 workloads)" in said
    )

    single = [one for one in records if one.workload_id == WORKLOADS[0].workload_id]
    store = make_store(tmp_path / "single", single)
    assert run(["eval", "--store", str(store), "--seeds", "1", "--epochs", "1"]) == 1
    assert "holding one out leaves nothing to learn from: measure more workloads" in capsys.readouterr().err
