"""`python -m benchmarks.onboarding`: the keys that scripts read, the page, and what it says of what it used.

Records are real: a few workloads of three ISA profiles, cut from a store that this project measured.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import onboarding_parts
from benchmarks.onboarding import main, part_figures
from benchmarks.onboarding_extras import SELECTED
from transfer.adapt.maml import Maml

PROFILES = Path(__file__).parents[1] / "onboardings" / "profiles"
FIGURES = (
    "device_new_gain_k64",
    "both_new_gain_k256",
    "k256_of_full",
    "k64_of_full",
    "worst_warm_minus_scratch",
    "adapt_seconds_k256",
    "interval_coverage",
    "best_selector",
    "chosen_samples_share",
)
FEW = [
    *("--quick", "--json", "--epochs", "1", "--seeds", "1", "--part-seeds", "1", "--workers", "1"),
    *("--most", "12", "--pool", "12", "--judge", "12"),
]


@pytest.fixture(autouse=True)
def _quick_meta_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of meta-learning takes most of a minute."""
    monkeypatch.setattr("transfer.adapt.registry.Maml", partial(Maml, outer_steps=2))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: opening a store may write into it."""
    return Path(shutil.copytree(PROFILES, tmp_path_factory.mktemp("runs") / "store"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*FEW, *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_the_curve_gives_its_keys_and_a_page(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xgboost")
    path = tmp_path / "page.md"
    found = run(
        capsys,
        *("--store", str(store), "--table", str(path)),
        *("--target", "x86-64-v3", "--samples", "0", "16", "--parts", "--regime", "device-new"),
    )
    assert set(FIGURES) <= set(found)
    assert found["used"] == ["ISA profiles of one host"]
    [table] = found["tables"]
    assert table["devices"] == ["x86-64-v3"]
    assert table["is_own"]
    at = table["regimes"]["device-new"]
    assert set(at) == {"0", "16", "all"}
    assert at["16"]["best_baseline"] in at["16"]["contenders"]
    expected = {"auto", "scratch", "mean-rank", "nearest-device", "xgboost-siblings", "mlp-fine-tuned"}
    assert expected <= set(at["16"]["contenders"])
    assert "scratch" not in at["0"]["contenders"]
    assert found["worst_warm_minus_scratch"] is not None
    assert found["worst_warm_minus_scratch_at"].startswith("device-new, x86-64-v3, k = ")
    # Nothing at the k that these are told at.
    assert found["device_new_gain_k64"] is found["adapt_seconds_k256"] is None
    text = path.read_text()
    assert "#### 16\n" in text
    assert "| mean-rank |" in text
    assert "| `default` | auto |" in text
    assert "`python -m benchmarks.onboarding --quick" in text
    assert str(tmp_path.parts[1:3]) not in text
    assert str(store.parent) not in json.dumps(found)


def test_what_stands_beside_the_curve(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        capsys,
        *("--store", str(store), "--baselines", "--strategies", "nearest"),
        *("--target", "x86-64-v3", "--samples", "0", "--regime", "device-new", "--covered", "32"),
    )
    [selectors] = found["parts"]["selectors"]
    assert selectors["samples"] == [k for k in SELECTED if k <= selectors["at"]]
    assert set(selectors["selectors"]) == {"random", "paired", "search"}
    assert {len(row["top1"]) for row in selectors["selectors"].values()} == {len(selectors["samples"])}
    assert selectors["selectors"]["random"]["less_random"] == {}
    [coverage] = found["parts"]["coverage"]
    every = coverage["by_k"]["all of these"]
    assert every["runs"] == sum(row["runs"] for k, row in coverage["by_k"].items() if k != "all of these")
    assert 0 <= every["top1_covered"] <= 1
    assert every["top1_width"] > 0
    assert found["interval_coverage"] == every["top1_covered"]
    assert found["best_selector"] == selectors["best"]


def test_parts_that_did_not_run_leave_their_figures_empty() -> None:
    assert set(part_figures({}).values()) == {None}


def test_without_any_store_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onboarding_parts, "DEMO_STORE", tmp_path / "none")
    monkeypatch.setattr(onboarding_parts, "LOGS", tmp_path / "none")
    found = run(capsys)
    assert found["used"] == []
    assert all(found[name] is None for name in FIGURES)
    assert "make run" in found["skipped"]
