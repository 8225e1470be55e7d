"""The keys of `benchmarks.search`, from runs that are known."""

from __future__ import annotations

from agents.records import Outcome, Record
from benchmarks.search import Side, ratios
from benchmarks.search_sides import _settled_curve
from fleet.tuning.search import Search
from tests.record_fixtures import make_record, make_workload


def side(trials: int, led: dict[int, float | None]) -> Side:
    """A search whose trials took 2 s each; what it thought of them does not count."""
    return Side({"trials": [[2.0 * (1 + place), 1.0] for place in range(trials)]}, led)


A, B = ("a", 0), ("b", 0)


def test_trials_until_the_rivals_best() -> None:
    searched = {
        A: {"xgb": side(4, {1: 5.0, 3: 4.0, 4: 3.0}), "ours": side(2, {1: 3.0, 2: 2.0})},
        B: {"xgb": side(2, {1: 2.0, 2: 1.0}), "ours": side(2, {1: 1.5, 2: 1.2})},
    }
    assert ratios(searched, "xgb", 0) == ratios(searched, "xgb", 1) == [4.0, 0.0]
    # A later program that led by chance only is no goal: as timed again the first one was faster.
    lucky = {A: {"xgb": side(4, {1: 3.0, 4: 3.1}), "ours": side(2, {1: None, 2: 3.0})}}
    assert ratios(lucky, "xgb", 0) == [0.5]


def test_a_search_of_ours_gives_the_program_that_second_looks_settled_on() -> None:
    def timed(number: int, moment: float, secs: float, attempt: int = 0) -> Record:
        origin = "confirm" if attempt else "model"
        ran = {"outcome": Outcome.OK, "error": "", "origin": origin, "measured_at": moment}
        return make_record(number, run_secs=(secs,), attempt=attempt, **ran)

    lucky, steady, late = timed(1, 1.0, 1.0), timed(2, 2.0, 2.0), timed(4, 6.0, 2.5)
    first = [lucky, steady, make_record(3, measured_at=3.0, outcome=Outcome.RUN_FAILED, run_secs=())]
    records = [*first, timed(1, 4.0, 3.0, 1), timed(1, 5.0, 3.1, 2), late]
    found = _settled_curve(Search(make_workload(1)), [first, [late]], records, began=0.0)
    assert found["trials"] == [[1.0, 1.0], [2.0, 2.0], [3.0, None], [6.0, 2.5]]
    assert found["best"] == {"1": lucky.trace, "3": steady.trace}
