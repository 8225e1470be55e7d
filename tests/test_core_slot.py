"""Timing cores that are lent to a builder: real processes, real affinities."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.core_slot import CoresHeldError, CoreSlot
from agents.keeper import ProcessName
from agents.measure import timing_lock

CORES = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")

#: A builder in a process of its own; it says where it is whenever it is asked.
BUILDER = """
import os, sys
from pathlib import Path
from agents.core_slot import CoresHeldError, CoreSlot
from agents.keeper import ProcessName
slot = CoreSlot(Path(sys.argv[1]), Path(sys.argv[2]), [int(sys.argv[3])], [int(sys.argv[4])])
os.sched_setaffinity(0, [int(sys.argv[4])])
with slot.building() as lent:
    print(lent, flush=True)
    sys.stdin.readline()
print(sorted(os.sched_getaffinity(0)), flush=True)
"""


class Builder:
    """A process that builds until it is told to stop."""

    def __init__(self, slot: Path, lock: Path) -> None:
        command = [sys.executable, "-c", BUILDER, str(slot), str(lock), str(CORES[0]), str(CORES[1])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.was_lent = self.process.stdout.readline().strip() == "True"

    @property
    def cores(self) -> list[int]:
        return sorted(os.sched_getaffinity(self.process.pid))

    def finish(self) -> list[int]:
        output, _ = self.process.communicate("\n", timeout=20)
        return [int(core) for core in output.strip("[]\n ").split(",")]


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    with timing_lock(tmp_path / "timing.lock"):
        pass
    return tmp_path / "timing.slot", tmp_path / "timing.lock"


@pytest.fixture
def builder(paths: tuple[Path, Path]) -> Iterator[Builder]:
    made = Builder(*paths)
    yield made
    made.process.kill()
    made.process.communicate()


def timer(paths: tuple[Path, Path]) -> CoreSlot:
    return CoreSlot(*paths, CORES[:1], CORES[1:2])


def test_a_builder_leaves_the_timing_cores_for_every_timing_and_comes_back(
    paths: tuple[Path, Path], builder: Builder
) -> None:
    assert builder.was_lent
    assert builder.cores == CORES[:1]
    for _ in range(3):
        with timing_lock(paths[1]), timer(paths).cleared():
            assert builder.cores == CORES[1:2]
        assert builder.cores == CORES[:1]
    assert builder.finish() == CORES[1:2]


def test_one_builder_at_a_time_and_none_while_something_is_timed(
    paths: tuple[Path, Path], builder: Builder
) -> None:
    second = Builder(*paths)
    assert not second.was_lent
    assert second.cores == CORES[1:2]
    assert second.finish() == CORES[1:2]
    builder.finish()
    with timing_lock(paths[1]), timer(paths).cleared():
        third = Builder(*paths)
        assert not third.was_lent
    # It stays where it began: nobody lends the cores in the middle of a build.
    assert third.cores == CORES[1:2]
    third.finish()


def test_a_builder_that_ends_during_a_timing_is_not_called_back(
    paths: tuple[Path, Path], builder: Builder
) -> None:
    mine = os.sched_getaffinity(0)
    try:
        with timing_lock(paths[1]), timer(paths).cleared():
            assert builder.finish() == CORES[1:2]
        own = timer(paths)
        with own.building() as lent:
            assert lent
            assert sorted(os.sched_getaffinity(0)) == CORES[:1]
        assert sorted(os.sched_getaffinity(0)) == CORES[1:2]
    finally:
        os.sched_setaffinity(0, mine)


def test_a_killed_builder_frees_the_slot(paths: tuple[Path, Path], builder: Builder) -> None:
    builder.process.send_signal(signal.SIGKILL)
    builder.process.wait(10)
    started = time.monotonic()
    with timing_lock(paths[1]), timer(paths).cleared():
        pass
    assert time.monotonic() - started < 5
    following = Builder(*paths)
    assert following.was_lent
    following.finish()


@pytest.fixture
def stranger() -> Iterator[ProcessName]:
    """A process that never built anything."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield ProcessName.of(process.pid)
        process.communicate(b"\n")


def held_by(name: ProcessName) -> str:
    token = [name.pid, name.started, 3]
    return json.dumps({"token": token, "timing": CORES[:1], "quiet": CORES[1:2]})


def test_a_later_process_with_the_number_of_a_builder_is_left_alone(
    paths: tuple[Path, Path], stranger: ProcessName
) -> None:
    paths[0].write_text(held_by(replace(stranger, started=stranger.started - 1)))
    everywhere, mine = os.sched_getaffinity(stranger.pid), os.sched_getaffinity(0)
    try:
        with timing_lock(paths[1]), timer(paths).cleared():
            assert os.sched_getaffinity(stranger.pid) == everywhere
        assert os.sched_getaffinity(stranger.pid) == everywhere
        with timer(paths).building() as lent:
            assert lent
    finally:
        os.sched_setaffinity(0, mine)


def test_a_builder_of_another_user_that_stays_is_told_instead_of_waited_for_without_end(
    paths: tuple[Path, Path], stranger: ProcessName, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    paths[0].write_text(held_by(stranger))
    monkeypatch.setattr("agents.core_slot._move", refuse)
    monkeypatch.setattr("agents.core_slot._MOST_SECS", 0.0)
    told = pytest.raises(CoresHeldError, match=f"process {stranger.pid} of another user")
    with told, timing_lock(paths[1]), timer(paths).cleared():
        pytest.fail("it timed beside a builder")
    with timing_lock(paths[1]):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token":"x"}', '{"token":[1]}', "\x00" * 50])
def test_damaged_content_means_that_nobody_is_in(paths: tuple[Path, Path], text: str) -> None:
    paths[0].write_text(text)
    mine = os.sched_getaffinity(0)
    try:
        with timing_lock(paths[1]), timer(paths).cleared():
            pass
        with timer(paths).building() as lent:
            assert lent
    finally:
        os.sched_setaffinity(0, mine)
