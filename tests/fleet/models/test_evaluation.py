"""`fleet eval` on small stores: what it reads, judges and prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from agents.records import NOISE, Record
from fleet.cli.app import run
from fleet.config.sections import FleetConfig, OnboardingSection, StoreSection, TrainingSection
from fleet.models.evaluation import evaluate_store
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_candidates, gmm_workload, record_of

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


def made_records(devices: Sequence[str]) -> list[Record]:
    """Latencies that follow from the outermost tile of k, with a little of each device."""
    random = np.random.default_rng(0)
    records = []
    for place, device in enumerate(devices):
        for workload in WORKLOADS:
            for number, candidate in enumerate(gmm_candidates(workload, SAMPLES)):
                latency = 1e-3 * (1 + number) * (1 + 0.1 * place) * random.uniform(0.9, 1.1)
                records.append(record_of(candidate, device, latency))
    return records


def again(records: Sequence[Record], change: float) -> list[Record]:
    """An A/A run of some records: two more measurements of each."""
    return [
        replace(record, origin=NOISE, attempt=attempt, run_secs=(record.run_secs[0] * factor,))
        for record in records
        for attempt, factor in ((1, 1.0), (2, 1 + change))
    ]


def make_store(path: Path, records: Sequence[Record]) -> Path:
    with Store.open(path) as store:
        for device in ("a", "b"):
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


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = made_records(("a", "b"))
    noise = again([one for one in records if one.device_id == "a"][: 3 * SAMPLES], 0.04)
    return make_store(tmp_path_factory.mktemp("eval") / "store", [*records, *noise])


def test_every_workload_is_held_out_with_every_seed(store: Path) -> None:
    comparison, told = evaluate_store(settings_of(store), (), split="by-workload", seeds=2)
    assert comparison.rankers == ("fleet-tlp",)
    assert comparison.seeds == (5, 6)
    assert comparison.device_ids == ("a", "b")
    for runs in comparison.metrics.values():
        assert len(runs) == 2
        assert all(run.counts.tolist() == [SAMPLES] * len(WORKLOADS) for run in runs)
    # All of one operator have the same shape here.
    assert told["near_copies"] == len(WORKLOADS)
    # Noise and ceiling come from measuring twice.
    assert set(told["noise"]) == set(told["ceilings"]) == {"a"}
    assert told["noise"]["a"]["median_change"] == pytest.approx(0.04)
    assert comparison.noise_floors == {"a": told["noise"]["a"]["median_change"]}
    ceiling = told["ceilings"]["a"]
    assert (ceiling["workloads"], ceiling["candidates"]) == (3, 3 * SAMPLES)
    assert ceiling["tau"] == pytest.approx(1)


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
    _, told = evaluate_store(settings_of(path, epochs=1), (), split="within-workload", seeds=1)
    ceiling = told["ceilings"]["a"]
    assert ceiling["candidates"] == len(of_a), "those of the environment with most of them"
    assert ceiling["tau"] == pytest.approx(1)


def test_the_table_fits_and_says_what_its_words_mean(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["eval", "--store", str(store), "--folds", "2", "--seeds", "1", "--epochs", "1"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    firsts = [line.split()[0] for line in lines if line.strip()]
    for word in ("device", "a", "b", "fleet-tlp", "random", "ceiling"):
        assert word in firsts
    assert "noise 4.0%, no regret below it" in captured.out
    assert "ceiling from 18 candidates of 3 workloads" in " ".join(captured.out.split())
    assert "Training and holding out: 2/2" in captured.err
