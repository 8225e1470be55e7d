"""Kills, power cuts and full disks in child processes, a few of each; the checker and the fault points."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chaos import Bench
from benchmarks.chaos_children import ChildError, Children
from benchmarks.chaos_history import Event, HistoryLog, Verdict, check, event_from_json, read_history
from benchmarks.chaos_power import mark_durable, power_cut
from benchmarks.chaos_real import RealFleet
from benchmarks.chaos_run import Run, Tally
from benchmarks.patience import patience

# ---- the checker ----


@dataclass
class Honest:
    """A system that keeps its promises, and writes its history; `draw` decides what happens."""

    #: Its agents may die of what they do: some of its jobs are quarantined.
    events: list[Event] = field(default_factory=lambda: [Event(kind="guilty")])
    spool: dict[str, None] = field(default_factory=dict)
    store: dict[str, None] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def step(self, draw: st.DrawFn) -> None:
        match draw(
            st.sampled_from(("put", "die in put", "append", "die in append", "release", "job", "look"))
        ):
            case "put" | "die in put" as how:
                name = f"r{self.made}"
                self.made += 1
                self.events.append(Event(kind="measured", records=(name,)))
                if how == "put" or draw(st.booleans()):
                    self.spool[name] = None
                if how == "put":
                    self.events.append(Event(kind="acknowledged", by="spool", records=(name,)))
            case "append" | "die in append" as how if self.spool:
                chosen = tuple(draw(st.lists(st.sampled_from(sorted(self.spool)), min_size=1, unique=True)))
                if how == "append" or draw(st.booleans()):
                    self.store.update(dict.fromkeys(chosen))
                if how == "append":  # perhaps for the second time
                    self.events.append(Event(kind="acknowledged", by="store", records=chosen))
            case "release":
                gone = tuple(name for name in self.spool if name in self.store and draw(st.booleans()))
                self.events.append(Event(kind="released", records=gone))
                for name in gone:
                    if draw(st.booleans()):  # the spool may not have got to it
                        del self.spool[name]
            case "job":
                job = f"j{draw(st.integers(0, 5))}"
                if job not in self.jobs:
                    self.events.append(Event(kind="submitted", jobs=(job,)))
                    self.jobs[job] = "queued"
                elif self.jobs[job] in ("queued", "leased"):
                    self.jobs[job] = draw(st.sampled_from(("leased", "queued", "done", "quarantined")))
                    if self.jobs[job] == "done":
                        self.events.append(Event(kind="ended", by="done", jobs=(job,)))
            case "look":
                self.look(draw(st.booleans()))

    def look(self, at_all: bool = True) -> None:
        places = {"spool": tuple(self.spool)}
        if at_all:
            places["store"] = tuple(self.store)
        self.events.append(
            Event(
                kind="look",
                places=places,
                states=dict(self.jobs),
                counted=len(self.store) if at_all else None,
            )
        )


@st.composite
def honest(draw: st.DrawFn) -> Honest:
    system = Honest()
    for _ in range(draw(st.integers(0, 25))):
        system.step(draw)
    system.look()
    return system


@given(honest())
def test_a_system_that_keeps_its_promises_is_never_blamed(system: Honest) -> None:
    assert check(system.events) == Verdict()


@settings(max_examples=50)
@given(honest(), st.data())
def test_each_missing_record_is_found(system: Honest, data: st.DataObject) -> None:
    *before, last = system.events
    promised = {name for one in before if one.kind == "acknowledged" for name in one.records}
    if not promised:
        return
    victim = data.draw(st.sampled_from(sorted(promised)))
    places = {name: tuple(one for one in found if one != victim) for name, found in last.places.items()}
    verdict = check([*before, replace(last, places=places, counted=None)])
    assert verdict == Verdict(lost=(victim,))


@settings(max_examples=50)
@given(honest(), st.data())
def test_each_repeated_record_is_found(system: Honest, data: st.DataObject) -> None:
    *before, last = system.events
    place = data.draw(st.sampled_from(("spool", "store")))
    if not last.places[place]:
        return
    victim = data.draw(st.sampled_from(last.places[place]))
    places = {**last.places, place: (*last.places[place], victim)}
    assert check([*before, replace(last, places=places)]).duplicated == (victim,)


@settings(max_examples=50)
@given(honest(), st.data())
def test_each_job_that_is_gone_or_rose_again_is_found(system: Honest, data: st.DataObject) -> None:
    *before, last = system.events
    assert last.states is not None
    if not last.states:
        return
    victim = data.draw(st.sampled_from(sorted(last.states)))
    states = dict(last.states)
    if states[victim] == "done" and data.draw(st.booleans()):
        states[victim] = "queued"
    else:
        del states[victim]
    assert check([*before, replace(last, states=states)]).unaccounted == (victim,)


def test_results_counted_beyond_the_store_and_invented_records_are_found() -> None:
    look = Event(kind="look", places={"store": ("a",)}, counted=3)
    verdict = check([look])
    assert verdict.invented == ("a",)
    assert verdict.duplicated == ("2 results counted beyond those in the store",)


def test_what_somebody_outside_has_seen_must_stay() -> None:
    made = Event(kind="measured", records=("a", "b", "1 published"))
    seen = Event(kind="seen", places={"store": ("a",), "registry": ("1 published",)}, counted=2)
    whole = Event(kind="look", places={"store": ("a", "b"), "registry": ("1 published",)})
    assert check([made, seen, whole]) == Verdict()
    less = Event(kind="look", places={"store": ("b",), "registry": ()})
    assert check([made, seen, less]).lost == ("a", "1 published", "1 records that the API told of")


def test_a_publication_counts_whole_or_not_at_all() -> None:
    publication = Event(kind="publication", records=("1 one", "2 two"))
    for found, halves in (((), 0), (("1 one", "2 two"), 0), (("1 one",), 1)):
        verdict = check([publication, Event(kind="look", places={"registry": found})])
        assert len(verdict.half_published) == halves, found
    told = Event(kind="seen", halves=("champion v000001 cannot be read",), wrong=("the table is gone",))
    verdict = check([told])
    assert verdict.half_published == ("champion v000001 cannot be read",)
    assert verdict.wrong == ("the table is gone",)


def test_a_job_is_quarantined_only_where_agents_died_of_what_they_did() -> None:
    look = Event(kind="look", states={"j": "quarantined"})
    submitted = Event(kind="submitted", jobs=("j",))
    assert check([submitted, Event(kind="guilty"), look]) == Verdict()
    assert check([submitted, look]).wrong == ("job j was quarantined, and no agent had died of it",)


@given(honest())
def test_a_history_reads_back_as_it_was_written(system: Honest) -> None:
    assert [event_from_json(json.loads(one.to_line())) for one in system.events] == system.events


def test_a_torn_last_line_of_a_history_says_nothing(tmp_path: Path) -> None:
    log = HistoryLog(tmp_path / "h")
    log.add(Event(kind="measured", records=("a",)))
    log.close()
    with (tmp_path / "h").open("a") as stream:
        stream.write('{"kind":"acknowl')
    assert read_history(tmp_path / "h") == [Event(kind="measured", records=("a",))]
    assert read_history(tmp_path / "none") == []


# ---- power cuts ----


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_power_cut_takes_nothing_that_was_durable(seed: int) -> None:
    base = Path(os.path.realpath("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"))
    root = base / f"chaos-test-{os.getpid()}-{seed}"
    disk = root / "disk"
    disk.mkdir(parents=True)
    try:
        (disk / "old").write_bytes(b"o" * 100)
        mark_durable(disk, root / "trace")
        with (disk / "old").open("ab") as stream:
            stream.write(b"n" * 100)
        (disk / "new").write_bytes(b"x")
        (disk / "folder").mkdir()
        (disk / "pages").write_bytes(b"p" * 4096)
        with (root / "trace" / "trace.jsonl").open(
            "a"
        ) as stream:  # as if pages 1 and 2 were overwritten since
            inode = (disk / "pages").stat().st_ino
            stream.write(json.dumps({"inode": inode, "size": 4096}) + "\n")
            stream.write(json.dumps({"inode": inode, "offset": 1024, "was": b"o".hex() * 2048}) + "\n")
        power_cut(disk, root / "trace", random.Random(seed))
        pages = (disk / "pages").read_bytes() if (disk / "pages").exists() else b"p" * 4096
        sectors = [pages[at : at + 512] for at in range(0, 4096, 512)]
        assert all(one in (b"p" * 512, b"o" * 512) for one in sectors)
        assert sectors[:2] + sectors[6:] == [b"p" * 512] * 4
        assert (disk / "old").read_bytes()[:100] == b"o" * 100
        left = sorted(path.name for path in disk.iterdir())
        power_cut(disk, root / "trace", random.Random(seed + 1))  # what it has left is durable
        assert sorted(path.name for path in disk.iterdir()) == left
    finally:
        shutil.rmtree(root)


# ---- real children ----


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("chaos"), seed=1, kills_in_a_row=2)
    yield made
    made.close()


def run_of(bench: Bench, tally: Tally, what: str, seed: int = 0) -> Run:
    return Run(bench.base, bench.children, tally, seed, what)


def test_children_end_as_they_should(bench: Bench) -> None:
    run = run_of(bench, Tally(), "children")
    assert bench.children.run("spool", run.arguments(batches=1)) == 0
    assert bench.children.run("spool", run.arguments(at=1)) == -signal.SIGKILL
    assert bench.children.run("spool", {}) == 1
    assert "KeyError" in bench.children.last_words()
    with pytest.raises(ChildError, match=r"within 0\.3 s"):
        bench.children.wait(bench.children.start("agent", {**run.arguments(), "socket": "idle"}), 0.3)


def test_the_end_of_the_process_that_forks_is_told(tmp_path: Path) -> None:
    with Children(tmp_path / "errors") as children:
        os.kill(children.pid, signal.SIGKILL)
        with pytest.raises(ChildError, match=r"is gone \(-9\)"):
            children.run("spool", {})
        assert not children.is_alive


def test_a_torn_write_leaves_half_of_it(bench: Bench) -> None:
    tally = Tally()
    torn = 0
    for at in range(30, 48):  # before it SQLite makes its file
        run = run_of(bench, tally, "torn", at)
        run.die("spool", at=at, fault="torn")
        for log in run.disk.rglob("*.sqlite-wal"):
            torn += (log.stat().st_size - 32) % (24 + 4096) not in (0, 24)
    assert tally.kills == 18
    assert torn


@pytest.mark.parametrize("load", ["spool", "state", "store", "models"])
def test_without_fsync_a_power_cut_shows(bench: Bench, load: str) -> None:
    tally = Tally()
    for seed in range(4):
        run = run_of(bench, tally, load, seed)
        run.sabotage = "fsync"
        bench.children.run(load, run.arguments())
        run.cut_power()
        bench.children.run(load, run.arguments(batches=1))
        tally.judge(run.root, load)
    assert tally.lost


def test_a_power_cut_leaves_the_folder_of_the_models(bench: Bench) -> None:
    tally = Tally()
    for seed in range(4):
        run = run_of(bench, tally, "models", seed)
        run.live("models", 1)
        run.cut_power()
        run.live("models", 1)
        assert tally.judge(run.root, "models"), tally.failures
    assert tally.publications >= 4


def test_versions_and_champions_that_are_not_whole_are_found(bench: Bench) -> None:
    tally = Tally()
    run = run_of(bench, tally, "models")
    run.live("models")
    newest = max((run.disk / "models").glob("v*/model.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    observed = run.root / "seen"
    observed.mkdir()
    watching = bench.children.start("observer", {"root": str(observed), "disk": str(run.disk)})
    try:
        until = time.monotonic() + patience(30)
        while not any(one.halves for one in read_history(observed / "history.jsonl")):
            assert time.monotonic() < until, "nobody outside saw it"
            time.sleep(0.05)
    finally:
        os.kill(watching, signal.SIGKILL)
        bench.children.wait(watching)
    run.live("models", 0)
    assert not tally.judge(run.root, "models")
    assert tally.half_published >= 2, tally.failures  # the version, and the heads that it serves


def test_clock_steps_pauses_and_dead_trainings_cost_nothing_and_blame_nobody(bench: Bench) -> None:
    tally = Tally()
    run = run_of(bench, tally, "fleet", 3)
    given = bench.fleet_arguments(run) | {"is_guilty": False, "often": 3.0}
    with run.observed():
        for _ in range(2):
            # The coordinator never gets to this step; trainings die at steps of their own.
            arguments = run.arguments(at=1 << 20, batches=200) | given
            code = bench.children.run_and_kill("fleet", arguments, patience(10), pause_at_secs=1)
            run.ended("coordinator", code, "kill")
        bench.settle(run, given)
    assert tally.judge(run.root, "fleet"), tally.failures
    found = tally.to_json(0)
    assert found["clock_steps"] >= 2
    assert found["pauses"] >= 2
    assert found["trainings"] >= 1


@pytest.mark.timeout(600)
def test_nothing_is_lost_whatever_dies_and_whenever(bench: Bench) -> None:
    campaigns = bench.campaigns()
    for _, campaign in campaigns.values():
        next(campaign)
    found = bench.tally.to_json(0)
    assert "\n\n".join(found["failures"]) == ""
    assert [found[name] for name in ("lost", "duplicated", "unaccounted", "half_published")] == [0] * 4
    assert bench.tally.histories >= len(campaigns)
    assert {"agent", "coordinator", "models", "spool", "state", "store"} <= set(found["by_target"])
    assert {"kill", "moment", "power_cut", "torn"} <= set(found["by_fault"])
    assert found["disk_faults"] >= 3
    assert found["trainings"] >= 3
    assert found["kills"] > 40


# ---- a real fleet ----


@pytest.mark.parametrize(("load", "secs"), [(0.0, 60.0), (1.0, 60.0), (3.0, 180.0), (50.0, 600.0)])
def test_a_crowded_host_is_waited_for_longer_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, load: float, secs: float
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (load * cores, 0.0, 0.0))
    assert patience(60.0) == pytest.approx(secs)


def test_a_coordinator_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    fleet = RealFleet(tmp_path, tmp_path / "none.parquet", {})
    (tmp_path / "fleet.yaml").write_text("schema: 1\nstore: {path: 7}\n")
    with pytest.raises(ChildError, match="the coordinator ended at its start"):
        fleet.begin()
    assert fleet.slow_starts == 0
    fleet.close()


def test_a_start_that_ray_was_too_slow_for_is_given_again_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = RealFleet(tmp_path, tmp_path / "none.parquet", {})
    lives = iter(["Ray does not start: timed out during startup", "fleet is up: 3 devices"])

    def launch() -> Callable[[], str]:
        said = next(lives)
        is_slow = "timed out" in said
        code = "raise SystemExit(1)" if is_slow else "import time; time.sleep(600)"
        fleet._process = subprocess.Popen([sys.executable, "-c", code])
        if is_slow:
            fleet._process.wait()
        return lambda: said

    monkeypatch.setattr(fleet, "_launch", launch)
    try:
        fleet.begin()
    finally:
        assert fleet._process is not None
        fleet._process.kill()
        fleet._process.wait()
    assert fleet.slow_starts == 1
