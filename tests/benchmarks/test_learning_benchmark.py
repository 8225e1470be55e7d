"""`benchmarks.learning`: its page holds the figures of its comparison, and pruning keeps what it must."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import Options, table
from benchmarks.learning_failures import judge_failures
from benchmarks.learning_lost import candidates_of, lost_by_published
from benchmarks.learning_parts import thinned_name
from benchmarks.learning_prune import Pruning, prune, random_share
from fleet.models.versions import load_snapshot
from fleet.store.store import Store
from tests.model_fixtures import CONFIG, folds_of, make_dataset
from tests.onboarding_fixtures import SOURCES, fill
from tests.transfer.evaluate.test_compare import Noisy
from tests.transfer.train.test_validity import DATASET as FAILING
from transfer.data.splits import Split
from transfer.evaluate.compare import compare
from transfer.features.extractor import Extractor
from transfer.language.to_ansor import to_ansor_steps

SHARES = (0.3, 0.6)


def test_a_page_has_every_table_once_with_the_figures_of_the_comparison() -> None:
    dataset = make_dataset(workloads=9, candidates=10)
    noise = {"model": 0.05, "model-single": 1.0, "xgboost": 0.4, "mlp": 2.0, "nearest-device": 0.0}
    noise |= {thinned_name(by, share): 1 - share for share in SHARES for by in ("prune", "random")}
    rankers = [Noisy(much, name) for name, much in noise.items()]
    comparison = compare(rankers, dataset, folds_of(dataset), [0, 1])
    result = {
        **{"candidates": 90, "workloads": 9, "train_candidates_each": 64, "epochs": 40, "slow_seeds": 1},
        "shares": list(SHARES),
    }
    lines = table(comparison, result, "Title", "command")
    assert [line for line in lines if line.startswith("#")] == [
        "# Title",
        "## Rankers",
        "## More of the same",
        "## Training on less",
        "## One model for all devices, or one for each",
    ]
    rows: dict[str, list[str]] = {}
    for line in lines:
        name, *cells = re.split(r" ?\| ?", line.strip("|"))
        rows.setdefault(name.strip(), cells)
    estimate = comparison.estimate("xgboost", "cpu.a", "top1")
    assert rows["xgboost"][0] == f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
    # The best baseline is nobody of ours, and none that is told latencies.
    against = rows["**model less the best baseline**"]
    assert all(cell.split()[-1] in {"xgboost", "mlp"} for cell in against if cell)
    less = comparison.difference("random-0.3", "model", "cpu.a", "pairwise")
    assert rows["0.3"][1].startswith(f"{less.value:+.3f} [{less.low:+.3f}")
    assert [rows[device][-1].strip() for device in ("cpu.a", "cpu.b")] == ["helps"] * 2
    assert Options().rankers[0] == "model"


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_pruning_keeps_the_budget_the_labels_and_the_fast_end(share: float) -> None:
    dataset = make_dataset(workloads=5, candidates=30, seed=3)
    rows = np.arange(150)
    kept = prune(dataset, rows, Pruning(share=share, least=2))
    # The fastest on each of three devices may come on top, and rounding.
    assert share * 150 - 5 <= len(kept) <= share * 150 + 5 * (3 + 2)
    np.testing.assert_array_equal(dataset.labels(kept), dataset.labels(rows)[kept])
    best = [
        rows[dataset.group == one][dataset.latency_secs[dataset.group == one, 0].argsort()[0]]
        for one in range(5)
    ]
    assert set(best) <= set(kept)
    assert np.bincount(dataset.group[random_share(dataset, rows, share, 0)]).tolist() == [30 * share] * 5


def test_failures_are_judged_on_workloads_that_were_held_out() -> None:
    part, half = np.arange(len(FAILING)), FAILING.group % 2
    splits = [Split(name=f"{one}", train=part[half != one], test=part[half == one]) for one in range(2)]
    [told] = judge_failures(FAILING, splits, replace(CONFIG, epochs=3), seed=0, each=16)
    assert (told.candidates, told.failed) == (len(FAILING), int(FAILING.failed[:, 0].sum()))
    assert told.area > 0.8
    assert told.error < told.guess_error


def test_every_primitive_has_a_published_step_or_is_lost(tmp_path: Path) -> None:
    reader = Store.read(fill(tmp_path / "store", *SOURCES))
    snapshot = load_snapshot(reader)
    found = lost_by_published(reader, snapshot)
    read = Extractor().read
    sequences = [read(one, snapshot.workloads[one.workload_id]) for one in candidates_of(reader, snapshot)]
    assert found["primitives"] == sum(map(len, sequences))
    steps = sum(len(to_ansor_steps(one)) for one in sequences)
    assert found["no_step"]["all"] == pytest.approx(1 - steps / found["primitives"], abs=1e-4)
