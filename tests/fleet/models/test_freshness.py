"""A champion on fresh records: alarms that ask for a training, rollbacks that need a better one before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fleet.models.freshness import (
    LEAST_WORKLOADS,
    WINDOW,
    Freshness,
    Look,
    history,
    look,
    remember,
    window,
)
from tests.fleet.models.test_refresh import heads

PUBLISHED, LOW = {"tau": [0.7, 0.65, 0.75]}, {"tau": [0.1, 0.0, 0.2]}


def looked(quality: float, previous: float | None, published: dict[str, list[float]] | None) -> Look:
    """What a look says of a champion and the one before it, by how much they know."""
    before = None if previous is None else heads(previous, seed=2)
    told = {"previous_version": "v000001" if before else "", "previous": before, "published": published}
    return look("a", "v000002", heads(quality, seed=1), **told)


#: What is looked at; quality of the champion and of the one before, how good it was when it was published.
LOOKS = """
as good as ever                              | 0.8 0.8  high | good
better than the one before                   | 0.8 0.3  high | good
nothing to compare it with                   | 0.8 none none | good
a fall asks for a training                   | 0.4 0.4  high | stale
a fall with none before                      | 0.4 none high | stale
a fall with a worse one before               | 0.4 0.1  high | stale
no fall, and the one before is clearly ahead | 0.3 0.8  low  | roll_back
no fall, and the one before is hardly ahead  | 0.55 0.6 low  | good
"""


@pytest.mark.parametrize("case", LOOKS.strip().splitlines())
def test_a_look_says_how_fresh_a_champion_is(case: str) -> None:
    _, figures, freshness = case.split("|")
    quality, previous, published = figures.split()
    before = None if previous == "none" else float(previous)
    figures_then = {"high": PUBLISHED, "low": LOW, "none": None}[published]
    assert looked(float(quality), before, figures_then).freshness == freshness.strip()


def test_a_look_says_what_it_saw_and_asks_both_about_the_same() -> None:
    found = looked(0.3, 0.8, PUBLISHED)
    assert found.freshness is Freshness.ROLL_BACK
    assert "0.700 when published; v000001 gives" in found.text
    assert found.figures["ahead"][1] > 0
    found = look("a", "v000002", heads(0.1, workloads=LEAST_WORKLOADS - 1), published=PUBLISHED)
    assert found.freshness is Freshness.TOO_FEW
    assert found.text == "5 workloads have enough fresh records, 6 are needed"
    assert look("a", "v000002", None).freshness is Freshness.TOO_FEW


def test_equal_heads_are_hardly_ever_taken_back() -> None:
    """Fifty looks at two heads of the same worth: a rollback without cause would undo a good refresh."""
    taken = 0
    for seed in range(50):
        one, other = (heads(0.6, workloads=10, count=12, seed=1000 * place + seed) for place in (1, 2))
        mean = float(other.tau.mean())
        told = {
            "previous_version": "v000001",
            "previous": other,
            "published": {"tau": [mean, mean - 0.05, 1.0]},
        }
        found = look("a", "v000002", one, **told)
        taken += found.freshness is Freshness.ROLL_BACK
    assert taken <= 1


def test_a_window_is_bounded() -> None:
    count = 3 * WINDOW
    chosen = window(np.arange(count, dtype=np.float64), np.zeros(count, dtype=np.int32), 4)
    assert chosen.tolist() == list(range(count - WINDOW, count))


def test_a_line_that_a_kill_cut_short_takes_no_other_along(tmp_path: Path) -> None:
    remember(tmp_path, "board", {"samples": 64, "top1": 0.8})
    with (tmp_path / "board.jsonl").open("a") as file:
        file.write('{"samples": 12')
    assert history(tmp_path, "board") == [{"samples": 64, "top1": 0.8}]
    remember(tmp_path, "board", {"samples": 32, "top1": 0.7})
    remember(tmp_path, "board", {"samples": 64, "top1": 0.9})
    assert [(one["samples"], one["top1"]) for one in history(tmp_path, "board")] == [(32, 0.7), (64, 0.9)]
    assert history(tmp_path, "other") == []
