"""`fleet tune`: where the rounds go, what they measure, and a real search on this host."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.records import REPEATS, Candidate, DeviceId, Outcome, Record
from fleet.cli.app import run
from fleet.collection.clock import Clock
from fleet.store.store import Store
from fleet.tuning.search import PARENTS, Search, choose, next_search
from fleet.tuning.tuning import _Rounds, network_seconds
from tests.fake_fleet import done
from tests.record_fixtures import make_record, make_workload


def search(number: int, *, uses: int = 1, best: float = math.inf, rounds: int = 0, idle: int = 0) -> Search:
    one = Search(make_workload(number, (("net", uses),)), best_secs=best, idle_rounds=idle)
    one.curve = [(16 * turn, best) for turn in range(1, rounds + 1)]
    return one


def ran(number: int, secs: float, **changes: object) -> Record:
    return make_record(
        number, **{"outcome": Outcome.OK, "run_secs": (secs,), "error": "", "origin": "model", **changes}
    )


def candidates(count: int) -> list[Candidate]:
    workload_id = make_workload(1).workload_id
    return [Candidate(workload_id=workload_id, trace=f"[{number}]") for number in range(count)]


def candidate_of(record: Record) -> Candidate:
    return Candidate(workload_id=record.workload_id, trace=record.trace, dialect=record.dialect)


def test_every_workload_has_its_turn_before_one_has_two() -> None:
    searches = [search(1), search(2, uses=9), search(3, uses=2, best=1e-3, rounds=1)]
    assert next_search(searches) is searches[1]
    searches[1].curve.append((16, 1e-6))
    assert next_search(searches) is searches[0]


def test_rounds_go_where_time_is_spent_and_leave_where_nothing_falls() -> None:
    heavy = search(1, uses=10, best=1e-3, rounds=1)
    light = search(2, uses=1, best=1e-3, rounds=1)
    assert next_search([light, heavy]) is heavy
    heavy.idle_rounds = 5
    assert next_search([light, heavy]) is light
    # One that never ran gets a round now and then, not all of them.
    broken = search(3, uses=50, rounds=1)
    assert next_search([broken, light]) is broken
    broken.idle_rounds = 20
    assert next_search([broken, light]) is light


@given(
    count=st.integers(0, 60),
    wanted=st.integers(1, 20),
    exploration=st.floats(0, 1),
    seed=st.text(max_size=3),
)
def test_a_round_holds_the_first_and_some_others(
    count: int, wanted: int, exploration: float, seed: str
) -> None:
    ranked = candidates(count)
    chosen = choose(ranked, wanted, exploration, seed)
    assert len(chosen) == len({one.candidate_id for one in chosen}) == min(count, wanted)
    at_random = round(min(count, wanted) * exploration)
    assert chosen[: min(count, wanted - at_random)] == ranked[: min(count, wanted - at_random)]
    assert choose(ranked, wanted, exploration, seed) == chosen


def test_a_search_keeps_its_best_and_what_it_knows() -> None:
    one = search(1)
    old = [ran(number, 1e-3 * (number + 1)) for number in range(12)]
    one.know([*old, make_record(50, outcome=Outcome.LOST, run_secs=())])
    assert (one.before_secs, one.best_secs) == (1e-3, 1e-3)
    assert one.parents == [record.trace for record in old[:PARENTS]]
    assert len(one.known) == 12, "a lost candidate may be tried"

    found = [ran(20, 5e-4), ran(21, 2e-3), make_record(22, outcome=Outcome.RUN_FAILED, run_secs=())]
    again = ran(20, 4e-4, attempt=1, origin="confirm")
    one.learn([candidate_of(record) for record in found], [*found, again])
    assert (one.tried, one.failed, one.idle_rounds) == (3, 1, 0)
    assert (one.before_secs, one.best_secs) == (1e-3, 4e-4)
    assert one.parents[0] == found[0].trace
    assert one.curve == [(3, 4e-4)]
    assert {record.candidate_id for record in found} <= one.known
    one.learn([candidate_of(old[3])], [old[3]])
    assert one.idle_rounds == 1


def test_a_network_counts_when_all_of_its_tuned_workloads_ran() -> None:
    first, second = search(1, uses=3, best=1e-3), search(2, uses=2, best=2e-3)
    first.before_secs = 2e-3
    assert network_seconds([first, second], ["net", "other"]) == {"net": {"best_secs": pytest.approx(7e-3)}}
    second.before_secs = 3e-3
    assert network_seconds([first, second], ["net"])["net"]["before_secs"] == pytest.approx(12e-3)
    second.best_secs = math.inf
    assert network_seconds([first, second], ["net"]) == {}


def test_what_several_source_devices_share_is_measured_once() -> None:
    """Twice in a round it would take the place, and the trial, of another candidate."""
    one = make_workload(1)
    shared = [each.trace for each in candidates(4)]
    engine = SimpleNamespace(propose=lambda *_: done(candidates(30)[10:]), evolve=lambda *_: done([]))
    nobody = SimpleNamespace(rank=lambda *_: None)
    rounds = _Rounds(engine, DeviceId("new"), [one], nobody, Clock())  # type: ignore[arg-type]
    rounds._foreign = {one.workload_id: shared * 3}
    [search] = rounds.searches
    search.known = {candidates(4)[3].candidate_id}
    _, chosen, _ = rounds.draw(count=23, seed=0)
    ids = [each.candidate_id for each in chosen]
    assert len(ids) == len(set(ids)) == 23
    assert {each.trace for each in chosen if each.origin == "paired"} == set(shared[:3])


@pytest.mark.tvm
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_search_measures_writes_a_database_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hardware").mkdir()
    Path("hardware/generic.yaml").write_text(
        "schema: 1\ndevice_id: generic\nkind: local\nfamily: cpu\ntarget: {kind: llvm, num-cores: 1}\n"
        "cores: [0]\n"
    )
    command = ["tune", "generic", "--network", "bert-tiny", "--workload", "GMM_1x128x128x128", "--trials"]
    where = ["--store", "store", "--out", "tuned", "--json", "--set", "devices.folder=hardware"]
    quick = ["--set", "protocol.repeat=2", "--set", "protocol.min_repeat_ms=1"]
    assert run([*command, "20", *where, *quick]) == 0
    first = json.loads(capfd.readouterr().out)
    [one] = first["workloads"]
    assert (first["trials"], one["trials"], one["before_secs"]) == (20, 20, None)
    assert first["model"] is None
    assert "no model serves generic" in first["why_no_model"]
    assert [tried for tried, _ in one["curve"]] == [16, 20]
    database = Path(first["database"])
    assert (database / "database_workload.json").read_text().count("\n") == 1
    records = list(Store.read(tmp_path / "store").records())
    # A canary that takes long has leaders measured again, on top of what confirms them.
    planned = [record for record in records if record.origin not in REPEATS]
    assert len(planned) == len({record.candidate_id for record in planned}) == 20
    assert {record.origin for record in planned} == {"random", "evolved"}
    assert one["best_secs"] == min(record.latency_secs for record in records if record.outcome is Outcome.OK)

    assert run([*command, "4", *where, *quick]) == 0
    [again] = json.loads(capfd.readouterr().out)["workloads"]
    assert again["before_secs"] == one["best_secs"]
    assert again["best_secs"] <= one["best_secs"]
    records = list(Store.read(tmp_path / "store").records())
    assert len({record.candidate_id for record in records}) == 24

    assert run(["tune", "generic", "--workload", "GMM_9", *where]) == 1
    assert "no workload 'GMM_9' in resnet-50, mobilenet-v2, bert-tiny" in capfd.readouterr().err
    assert run(["tune", "nothing", *where]) == 1
    assert "nothing" in capfd.readouterr().err
