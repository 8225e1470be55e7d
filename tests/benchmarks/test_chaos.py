"""Kills, power cuts and full disks in child processes, a few of each; and what is wrong is found.

The campaigns are the tests; here each has a turn, on a system as it is and on one that breaks a promise.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chaos import Bench
from benchmarks.chaos_children import ChildError
from benchmarks.chaos_history import Event, Verdict, check, read_history
from benchmarks.chaos_power import mark_durable, power_cut
from benchmarks.chaos_run import Run, Tally
from benchmarks.fleet_up import patience

# ---- the checker ----


MADE = Event(kind="measured", records=("a", "b"))
SPOOLED = Event(kind="acknowledged", by="spool", records=("a",))
STORED = Event(kind="acknowledged", by="store", records=("a",))
RELEASED = Event(kind="released", records=("a",))
SUBMITTED = Event(kind="submitted", jobs=("j",))
GUILTY = Event(kind="guilty")
PUBLISHED = Event(kind="publication", records=("1 one", "2 two"))


def places(**names: str) -> Event:
    return Event(kind="look", places={name: tuple(text.split()) for name, text in names.items()})


def jobs(*states: str) -> list[Event]:
    return [Event(kind="look", states={"j": state} if state else {}) for state in states]


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        ([], Verdict()),
        # What was promised is there, in one of the places; what died before its promise may be anywhere.
        ([MADE, SPOOLED, places(spool="a")], Verdict()),
        ([MADE, SPOOLED, places(spool="", store="a b")], Verdict()),
        ([MADE, SPOOLED, RELEASED, places(spool="")], Verdict()),
        ([MADE, SPOOLED, places(spool="")], Verdict(lost=("a",))),
        ([MADE, SPOOLED, RELEASED, places(spool="", store="")], Verdict(lost=("a",))),
        ([MADE, SPOOLED, STORED, RELEASED, places(spool="", store="a")], Verdict()),
        ([MADE, SPOOLED, STORED, places(spool="a", store="")], Verdict(lost=("a",))),
        ([MADE, STORED, STORED, places(store="a a")], Verdict(duplicated=("a",))),
        ([MADE, places(store="a b c")], Verdict(invented=("c",))),
        (
            [MADE, Event(kind="look", places={"store": ("a",)}, counted=3)],
            Verdict(duplicated=("2 results counted beyond those in the store",)),
        ),
        # So is what somebody outside has seen.
        (
            [MADE, Event(kind="seen", places={"store": ("a",)}, counted=2), places(store="b")],
            Verdict(lost=("a", "1 records that the API told of")),
        ),
        # A job is known until it ends, and stays as it ended.
        ([SUBMITTED, *jobs("queued", "leased", "queued", "done", "done")], Verdict()),
        ([SUBMITTED, *jobs("")], Verdict(unaccounted=("j",))),
        ([SUBMITTED, *jobs("done", "queued")], Verdict(unaccounted=("j",))),
        (
            [SUBMITTED, Event(kind="ended", by="done", jobs=("j",)), *jobs("leased")],
            Verdict(unaccounted=("j",)),
        ),
        ([SUBMITTED, GUILTY, *jobs("quarantined")], Verdict()),
        (
            [SUBMITTED, *jobs("quarantined")],
            Verdict(wrong=("job j was quarantined, and no agent had died of it",)),
        ),
        # A publication is there whole or not at all.
        ([PUBLISHED, Event(kind="look", places={"registry": ("1 one", "2 two")})], Verdict()),
        ([PUBLISHED, Event(kind="look", places={"registry": ()})], Verdict()),
        (
            [PUBLISHED, Event(kind="look", places={"registry": ("1 one",)})],
            Verdict(half_published=("1 of ['1 one', '2 two']",)),
        ),
        (
            [Event(kind="seen", halves=("v1 cannot be read",), wrong=("the table is gone",))],
            Verdict(half_published=("v1 cannot be read",), wrong=("the table is gone",)),
        ),
    ],
)
def test_a_history_is_judged(history: list[Event], verdict: Verdict, tmp_path: Path) -> None:
    assert check(history) == verdict
    path = tmp_path / "history.jsonl"
    torn = b'{"kind":"acknowl'
    path.write_bytes(b"".join(one.to_line() for one in history) + b'{"kind":"note","jobs":3}\n' + torn)
    assert read_history(path) == history


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
            stream.write(json.dumps({"inode": inode, "offset": 0, "was": "00" * 64})[:60])  # cut by a kill
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


@pytest.mark.parametrize("load", ["spool", "state", "models"])
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


CAMPAIGNS = (
    *("fleet kill", "fleet torn power", "fleet full", "fleet on a small disk"),
    *("spool kill", "spool disk", "spool moments", "state torn", "state power", "state disk"),
    *("models torn", "models moments"),
)


@pytest.mark.timeout(600)
def test_nothing_is_lost_whatever_dies_and_whenever(bench: Bench) -> None:
    # Each load and each fault once, not each pair: a run of the benchmark has all of them.
    everything = bench.campaigns()
    campaigns = [everything[name][1] for name in CAMPAIGNS if name in everything]
    for campaign in campaigns:
        next(campaign)
    found = bench.tally.to_json(0)
    assert "\n\n".join(found["failures"]) == ""
    assert [found[name] for name in ("lost", "duplicated", "unaccounted", "half_published")] == [0] * 4
    assert bench.tally.histories >= len(campaigns)
    assert {"coordinator", "models", "spool", "state"} <= set(found["by_target"])
    assert {"kill", "moment", "power_cut", "torn"} <= set(found["by_fault"])
    assert found["disk_faults"] >= 3
    assert found["trainings"] >= 2
    assert found["kills"] > 15


def test_what_a_child_says_at_its_end_is_in_the_failure(bench: Bench) -> None:
    assert bench.children.run("spool", {}) == 1
    assert "KeyError" in bench.children.last_words()
    run = run_of(bench, Tally(), "idle")
    with pytest.raises(ChildError, match=r"within 0\.3 s"):
        bench.children.wait(bench.children.start("observer", run.arguments()), 0.3)
