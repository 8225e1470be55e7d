"""Tables of the learning benchmark: the figures in them are those of the comparison."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import _parser, _shown, table
from benchmarks.learning_failures import failures_table, judge_failures, roc_area
from benchmarks.learning_parts import ThinnedRanker, thinned_name
from benchmarks.learning_prune import Pruning, prune
from benchmarks.learning_tables import best_baseline, document, pruning_table, ranker_table, transfer_table
from tests.model_fixtures import CONFIG, folds_of, make_dataset
from tests.transfer.evaluate.test_compare import Noisy
from tests.transfer.train.test_validity import DATASET as FAILING
from transfer.data.splits import Split, few_of_each
from transfer.evaluate.compare import compare
from transfer.evaluate.comparison import Comparison

DATASET = make_dataset(workloads=9, candidates=10)
SHARES = (0.3, 0.6)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    rankers = [
        Noisy(0.05, "model"),
        Noisy(1.0, "model-single"),
        Noisy(0.4, "xgboost"),
        Noisy(2.0, "mlp"),
        Noisy(0.0, "nearest-device"),
        *(Noisy(1 - share, thinned_name(by, share)) for share in SHARES for by in ("prune", "random")),
    ]
    return compare(rankers, DATASET, folds_of(DATASET), [0, 1])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rows_are_rankers_and_columns_devices(comparison: Comparison) -> None:
    named = ["model", "xgboost", "mlp", "nearest-device"]
    lines = ranker_table(comparison, named)
    assert len({len(cells(line)) for line in lines}) == 1
    assert cells(lines[0])[1:3] == ["cpu.a top-1", "cpu.a top-5"]
    estimate = comparison.estimate("xgboost", "cpu.b", "top1")
    found = cells(lines[2 + named.index("xgboost")])[3]
    assert found == f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
    chance = comparison.estimate("model", "cpu.a", "random_top1").value
    assert cells(lines[-3])[:2] == ["random choice", f"{chance:.3f}"]


def test_the_best_baseline_is_no_ranker_of_ours_and_not_told_latencies(comparison: Comparison) -> None:
    named = ["model", "model-single", "xgboost", "mlp", "nearest-device"]
    assert best_baseline(comparison, named, "cpu.a", "tau") == "xgboost"
    assert best_baseline(comparison, ["model", "nearest-device"], "cpu.a", "tau") is None
    *_, against, apart = ranker_table(comparison, named)
    difference = comparison.difference(
        "model", best_baseline(comparison, named, "cpu.a", "top1") or "", "cpu.a", "top1"
    )
    assert cells(against)[1].startswith(f"{difference.value:+.3f} [")
    assert set(cells(apart)[1:]) <= {"yes", "no"}


def test_the_curve_holds_differences_to_the_whole(comparison: Comparison) -> None:
    lines = pruning_table(comparison, SHARES)
    assert [cells(line)[0] for line in lines[2:]] == ["1", "0.6", "0.3"]
    difference = comparison.difference("random-0.3", "model", "cpu.a", "pairwise")
    assert cells(lines[-1])[2].startswith(f"{difference.value:+.3f} [{difference.low:+.3f}")


def test_a_verdict_needs_an_interval_off_zero(comparison: Comparison) -> None:
    lines = transfer_table(comparison)
    assert [cells(line)[-1] for line in lines[2:]] == ["helps"] * 3
    same = replace(
        comparison,
        metrics={
            **comparison.metrics,
            **{("model-single", one): comparison.metrics["model", one] for one in comparison.device_ids},
        },
    )
    assert {cells(line)[-1] for line in transfer_table(same)[2:]} == {"no clear difference"}


def test_a_document_has_every_table_once_and_the_command(comparison: Comparison) -> None:
    result = {
        "candidates": 90,
        "workloads": 9,
        "train_candidates_each": 64,
        "epochs": 40,
        "shares": list(SHARES),
        "slow_seeds": 1,
    }
    given = ["--json", "--store", "/some/where", "--keep", "x", "--table", "docs/a.md", "--seeds", "2"]
    text = table(comparison, result, "Title", f"python -m benchmarks.learning {_shown(given)}")
    assert "`python -m benchmarks.learning --store STORE --keep KEEP --table a.md --seeds 2`" in text
    assert re.findall(r"^#+ .*", text, re.M) == [
        "# Title",
        "## Rankers",
        "## More of the same",
        "## Training on less",
        "## One model for all devices, or one for each",
    ]
    assert text.count("| xgboost |") == 2
    assert "| prune-0.3 |" not in text
    assert "## Training on less" not in document(comparison, (), ["head"])


def test_thinned_rankers_learn_from_the_rows_that_pruning_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(
        "benchmarks.learning_parts.ModelRanker.fit", lambda self, dataset, rows, *rest: shown.append(rows)
    )
    rows = np.flatnonzero(DATASET.group < 6)
    ThinnedRanker(config=CONFIG, share=0.5).fit(DATASET, rows, ("cpu.a",), 0)
    ThinnedRanker(config=CONFIG, share=0.5, by="random").fit(DATASET, rows, ("cpu.a",), 0)
    np.testing.assert_array_equal(shown[0], prune(DATASET, rows, Pruning(share=0.5)))
    assert len(shown[1]) == len(rows) // 2
    assert set(shown[1]) <= set(rows)


def test_few_of_each_takes_no_more_than_asked() -> None:
    rows = np.flatnonzero(DATASET.group != 3)
    few = few_of_each(DATASET, rows, 4, seed=1)
    assert np.bincount(DATASET.group[few], minlength=9).tolist() == [4, 4, 4, 0, 4, 4, 4, 4, 4]
    assert set(few) <= set(rows)
    assert (np.diff(few) > 0).all()


def test_the_default_command_line_is_whole() -> None:
    options = _parser().parse_args(["--keep", "somewhere", "--shares", "0.5"])
    assert options.keep == Path("somewhere")
    assert options.shares == [0.5]
    assert options.rankers[0] == "model"


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    random = np.random.default_rng(0)
    values, good = random.integers(0, 5, size=40).astype(float), random.random(40) < 0.4
    pairs = values[good][:, None] - values[~good][None, :]
    assert roc_area(values, good) == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)


def test_failures_are_judged_on_workloads_that_were_held_out() -> None:
    part = np.arange(len(FAILING))
    splits = [
        Split(
            name=f"half {half}", train=part[FAILING.group % 2 != half], test=part[FAILING.group % 2 == half]
        )
        for half in range(2)
    ]
    [told] = judge_failures(FAILING, splits, replace(CONFIG, epochs=3), seed=0, each=16)
    assert (told.device_id, told.candidates) == ("cpu.a", len(FAILING))
    assert told.failed == int(FAILING.failed[:, 0].sum())
    assert told.area > 0.8
    assert told.error < told.guess_error
    assert cells(failures_table([told])[-1])[:3] == ["cpu.a", str(len(FAILING)), str(told.failed)]
