"""Kills, power cuts and full disks in child processes, a few of each; and what is wrong is found.

The campaigns are the tests; here each has a turn, on a system as it is and on one that breaks a promise.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chaos import Bench
from benchmarks.chaos_history import Event, Verdict, check, read_history
from benchmarks.chaos_power import mark_durable, power_cut
from benchmarks.chaos_run import Run, Tally
from benchmarks.fleet_up import patience, wait_until

# ---- the checker ----


def event(text: str) -> Event:
    """An event of a line such as `seen store=a,b counted=2`, or `acknowledged by=spool records=a`."""
    kind, *words = text.split()
    values = {"places": {}}
    for name, _, value in (word.partition("=") for word in words):
        names = tuple(value.split(",")) if value else ()
        if name in ("spool", "store", "registry"):
            values["places"][name] = names
        elif name == "job":
            values["states"] = {"j": value} if value else {}
        else:
            values[name] = value if name == "by" else int(value) if name == "counted" else names
    return Event(kind=kind, **values)


SPOOLED = "measured records=a,b; acknowledged by=spool records=a"
STORED = f"{SPOOLED}; acknowledged by=store records=a"
PUBLISHED = "publication records=one,two"


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        # What was promised is there, in one of the places; what died before its promise may be anywhere.
        (f"{SPOOLED}; look spool=a", Verdict()),
        (f"{SPOOLED}; look spool= store=a,b", Verdict()),
        (f"{SPOOLED}; released records=a; look spool=", Verdict()),
        (f"{SPOOLED}; look spool=", Verdict(lost=("a",))),
        (f"{SPOOLED}; released records=a; look spool= store=", Verdict(lost=("a",))),
        (f"{STORED}; released records=a; look spool= store=a", Verdict()),
        (f"{STORED}; look spool=a store=", Verdict(lost=("a",))),
        (f"{STORED}; look spool= store=a,a", Verdict(duplicated=("a",))),
        (f"{SPOOLED}; look spool=a store=b,c", Verdict(invented=("c",))),
        (
            f"{SPOOLED}; look spool= store=a counted=3",
            Verdict(duplicated=("2 results counted beyond those in the store",)),
        ),
        # So is what somebody outside has seen.
        (
            f"{SPOOLED}; seen store=a counted=2; look spool=a store=b",
            Verdict(lost=("a", "1 records that the API told of")),
        ),
        # A job is known until it ends, and stays as it ended.
        ("submitted jobs=j; look job=queued; look job=leased; look job=done; look job=done", Verdict()),
        ("submitted jobs=j; look job=", Verdict(unaccounted=("j",))),
        ("submitted jobs=j; look job=done; look job=queued", Verdict(unaccounted=("j",))),
        ("submitted jobs=j; ended by=done jobs=j; look job=leased", Verdict(unaccounted=("j",))),
        ("submitted jobs=j; guilty; look job=quarantined", Verdict()),
        (
            "submitted jobs=j; look job=quarantined",
            Verdict(wrong=("job j was quarantined, and no agent had died of it",)),
        ),
        # A publication is there whole or not at all.
        (f"{PUBLISHED}; look registry=one,two", Verdict()),
        (f"{PUBLISHED}; look registry=", Verdict()),
        (f"{PUBLISHED}; look registry=one", Verdict(half_published=("1 of ['one', 'two']",))),
        ("seen halves=v1 wrong=table", Verdict(half_published=("v1",), wrong=("table",))),
    ],
)
def test_a_history_is_judged(history: str, verdict: Verdict, tmp_path: Path) -> None:
    events = [event(text) for text in history.split("; ")]
    assert check(events) == verdict
    path = tmp_path / "history.jsonl"
    torn = b'{"kind":"acknowl'
    path.write_bytes(b"".join(one.to_line() for one in events) + torn)
    assert read_history(path) == events


# ---- power cuts ----


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_power_cut_takes_nothing_that_was_durable(seed: int) -> None:
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        disk, trace = Path(folder, "disk"), Path(folder, "trace")
        disk.mkdir()
        (disk / "old").write_bytes(b"o" * 100)
        (disk / "pages").write_bytes(b"p" * 1024 + b"o" * 2048 + b"p" * 1024)
        mark_durable(disk, trace)
        with (disk / "old").open("ab") as stream:
            stream.write(b"n" * 100)
        (disk / "new").write_bytes(b"x")
        (disk / "folder").mkdir()
        with (disk / "pages").open("r+b") as stream:
            stream.seek(1024)
            stream.write(b"p" * 2048)
        power_cut(disk, trace, random.Random(seed))
        pages = (disk / "pages").read_bytes()
        assert pages[:1024] + pages[3072:] == b"p" * 2048
        sectors = {pages[at : at + 512] for at in range(1024, 3072, 512)}
        assert sectors <= {b"p" * 512, b"o" * 512}
        assert (disk / "old").read_bytes()[:100] == b"o" * 100
        left = sorted(path.name for path in disk.iterdir())
        power_cut(disk, trace, random.Random(seed + 1))  # what it has left is durable
        assert sorted(path.name for path in disk.iterdir()) == left


# ---- real children ----


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("chaos"), seed=1, kills_in_a_row=2)
    yield made
    made.forks.close()


def run_of(bench: Bench, what: str, seed: int = 0) -> tuple[Run, Tally]:
    return Run(bench.base, bench.forks, seed, what), Tally()


@pytest.mark.parametrize("load", ["spool", "state", "models"])
def test_without_fsync_a_power_cut_shows(bench: Bench, load: str) -> None:
    lost = 0
    for seed in range(4):
        run, tally = run_of(bench, load, seed)
        run.sabotage = "fsync"
        bench.forks.run(load, run.arguments())
        run.cut_power()
        bench.forks.run(load, run.arguments(batches=1))
        tally.judge(run.root, load)
        lost += tally.faults["lost"]
    assert lost


def test_versions_and_champions_that_are_not_whole_are_found(bench: Bench) -> None:
    run, tally = run_of(bench, "models")
    run.live("models")
    newest = max((run.disk / "models").glob("v*/model.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    observed = run.root / "seen"
    observed.mkdir()
    watching = bench.forks.start("observer", {"root": str(observed), "disk": str(run.disk)})
    try:
        wait_until(
            lambda: any(one.halves for one in read_history(observed / "history.jsonl")),
            "the word of somebody outside",
            patience(30),
        )
    finally:
        os.kill(watching, signal.SIGKILL)
        bench.forks.wait(watching)
    run.live("models", 0)
    assert not tally.judge(run.root, "models")
    assert tally.faults["half_published"] >= 2, tally.failures  # the version, and the heads that it serves


@pytest.mark.timeout(600)
def test_clock_steps_pauses_and_dead_trainings_cost_nothing_and_blame_nobody(bench: Bench) -> None:
    run, tally = run_of(bench, "fleet", 3)
    given = bench.fleet_arguments(run) | {"is_guilty": False, "often": 3.0}
    with run.observed():
        for _ in range(2):
            # The coordinator never gets to this step; trainings die at steps of their own.
            arguments = run.arguments(at=1 << 20, batches=200) | given
            code = bench.forks.run_and_kill("fleet", arguments, patience(10), pause_at_secs=patience(1))
            run.ended("coordinator", code, "kill")
        bench.settle(run, given)
    assert tally.judge(run.root, "fleet"), tally.failures
    found = tally.to_json()
    assert min(found["clock_steps"], found["pauses"]) >= 2
    assert found["trainings"] >= 1


CAMPAIGNS = (
    *("fleet kill", "fleet torn power", "fleet full"),
    *("spool kill", "spool disk", "spool moments", "state torn", "state power", "state disk"),
    *("state moments", "models torn", "models moments"),
)


@pytest.mark.timeout(600)
def test_nothing_is_lost_whatever_dies_and_whenever(bench: Bench) -> None:
    # Each load and each fault once, not each pair: a run of the benchmark has all of them.
    everything = bench.campaigns()
    for name in CAMPAIGNS:
        if name in everything:
            next(everything[name][1])
    found = bench.tally.to_json()
    assert "\n\n".join(found["failures"]) == ""
    assert [found[name] for name in ("lost", "duplicated", "unaccounted", "half_published")] == [0] * 4
    words = {word for fault in found["by_fault"] for word in fault.split()}
    assert {"coordinator", "models", "spool", "state", "kill", "moment", "power", "torn"} <= words
    assert found["disk_faults"] >= 3
    assert found["trainings"] >= 2
    assert found["kills"] > 15
