"""What a registry stands: damage in any byte, others at work at the same time, and a kill at any moment."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from benchmarks.chaos_faults import FaultPoints, Plan
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY, RegistryError
from tests.fleet.models.test_registry import HEADS, added, served, with_versions
from tests.refresh_fixtures import small_model
from transfer.model import checkpoint

CURE = "restore it, or delete it and train anew: no device has a champion then"
OTHER = f"another version or another program wrote it.*{CURE}"
#: What else may stand in the file, and what is said of it.
DAMAGES = {
    "text": (b"{", CURE),
    "nothing": (b"", OTHER),
    "an earlier layout": ("PRAGMA user_version=0", OTHER),
    "a later layout": ("PRAGMA user_version=2", OTHER),
    "another program's": ("PRAGMA application_id=7", OTHER),
    "a log": ("PRAGMA journal_mode=WAL", OTHER),
    "a date of text": ("UPDATE champion SET since = 'now'", f"since.*valid number.*{CURE}"),
    "a date beyond numbers": ("UPDATE champion SET since = 9e999", f"since.*finite.*{CURE}"),
    "bytes": ("UPDATE champion SET reason = x'00'", f"reason.*valid string.*{CURE}"),
    "a path for a version": ("UPDATE champion SET version = '../v000001'", f"version.*pattern.*{CURE}"),
    "no list": ("UPDATE champion SET before = '{}'", f"before.*{CURE}"),
    "no JSON": ("UPDATE champion SET judged = '{'", CURE),
    "JSON without end": (f"UPDATE champion SET judged = '{'[' * 100_000}'", CURE),
    "no text": ("UPDATE champion SET reason = CAST(x'ff' AS TEXT)", f"UTF-8.*{CURE}"),
    "one more table": ("CREATE TABLE more (a)", OTHER),
    "a view without end": (
        "DROP TABLE champion; CREATE VIEW champion AS WITH RECURSIVE a(b) AS (SELECT 1 UNION ALL SELECT 1"
        " FROM a) SELECT b FROM a",
        OTHER,
    ),
}


def changed_by_hand(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_with_the_file_and_a_cure(damage: str, tmp_path: Path) -> None:
    path = with_versions(tmp_path, 1, "box.a").folder / REGISTRY
    how, why = DAMAGES[damage]
    path.write_bytes(how) if isinstance(how, bytes) else changed_by_hand(path, how)
    for act in (
        lambda: Registry(path.parent).champion("box.a"),
        lambda: Registry(path.parent).retain({"box.a": "worse"}),
    ):
        with pytest.raises(RegistryError, match=rf"registry\.sqlite: .*{why}") as raised:
            act()
        assert len(str(raised.value).splitlines()) == 1
    assert sorted(one.name for one in path.parent.iterdir()) == [REGISTRY, "v000001"]


# ---- several at once ----


def _published_often(folder: Path, device: str, times: int) -> None:
    registry = Registry(folder)
    for number in range(times):
        registry.publish(added(registry, seed=number), {device: {"reason": f"{device} {number}"}})


def test_two_processes_that_publish_at_once_lose_nothing(tmp_path: Path) -> None:
    models, times = tmp_path / "models", 8
    children = [forked(lambda head=head: _published_often(models, head, times)) for head in HEADS]
    for child in children:
        child.join()
        assert child.exitcode == 0
    registry = Registry(models)
    assert len(registry.versions()) == len(HEADS) * times
    changes = registry.history()
    assert [change.serial for change in changes] == list(range(1, len(HEADS) * times + 1))
    for head in HEADS:
        reasons = [change.reason for change in changes if change.device_id == head]
        assert reasons == [f"{head} {number}" for number in range(times)]
        registry.load(registry.champion(head))


# ---- kills ----


@pytest.mark.parametrize("ahead_secs", [-7 * 86_400.0, 0.0, 7 * 86_400.0])
def test_what_a_killed_writer_left_is_cleared_away_whatever_its_date(
    tmp_path: Path, ahead_secs: float
) -> None:
    models = tmp_path / "models"
    registry = Registry(models)
    left = [models / ".v000002.abc.part", models / ".v000003.abc.part"]
    left[0].mkdir(parents=True)
    left[1].write_text("{")
    for path in left:
        os.utime(path, (time.time() + ahead_secs,) * 2)
    version = added(registry)
    assert not any(path.exists() for path in left)
    assert registry.versions() == [version]


def forked(work: Callable[[], None]) -> BaseProcess:
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    return child


def _killed_at(number: int, folder: Path, work: Callable[[], None]) -> bool:
    """Do some work in a process that dies before its n-th step on the disk; whether it got there."""

    def work_until_killed() -> None:
        FaultPoints(Plan(folder=str(folder), at=number)).install()
        work()

    child = forked(work_until_killed)
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def test_a_kill_at_any_step_leaves_the_old_champion_or_the_new_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    first = Registry(models)
    first.publish(added(first), {head: {} for head in HEADS})
    model = small_model(*HEADS, seed=1)

    def publish(folder: Path) -> None:
        registry = Registry(folder)
        version = registry.add(model, {"run": "second"})
        registry.publish(version, {head: {"reason": "better"} for head in HEADS})
        registry.prune(1)

    seen = set()
    for number in itertools.count(1):
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(models, folder)
        was_killed = _killed_at(number, folder, lambda folder=folder: publish(folder))
        registry = Registry(folder)
        serving = served(registry)
        assert {change.device_id: change.version for change in registry.history()} == serving
        # All devices changed hands in one step, and whoever serves is whole.
        assert serving in (dict.fromkeys(HEADS, f"v00000{place}") for place in (1, 2))
        seen.add(serving["box.a"])
        for head in HEADS:
            registry.load(registry.champion(head))
        for version in registry.versions():
            checkpoint.load(folder / version)
        # The same again goes on: one version of the run, every change told once.
        publish(folder)
        registry = Registry(folder)
        assert served(registry) == dict.fromkeys(HEADS, "v000002")
        assert [change.serial for change in registry.history()] == [1, 2, 3, 4]
        shutil.rmtree(folder)
        if not was_killed:
            break
    assert seen == {"v000001", "v000002"}
    assert number > 20


def killed_in_a_commit(tmp_path: Path) -> Path:
    """A registry whose publisher was killed after pages were written and before the change counted."""
    whole, folder = with_versions(tmp_path, 2, "box.a").folder, tmp_path / "killed"
    path = folder / REGISTRY
    for number in itertools.count(1):
        shutil.copytree(whole, folder)
        assert _killed_at(number, folder, lambda: Registry(folder).publish("v000001", {"box.a": {}}))
        is_half = path.read_bytes() != (whole / REGISTRY).read_bytes()
        if is_half and path.with_name(REGISTRY + "-journal").exists():
            return path
        shutil.rmtree(folder)
    raise AssertionError


def test_a_reader_takes_back_what_a_killed_publisher_left_and_a_stranger_has_no_file_deleted(
    tmp_path: Path,
) -> None:
    path, victim = killed_in_a_commit(tmp_path), tmp_path / "victim"
    victim.write_text("mine")
    journal, name = path.with_name(REGISTRY + "-journal"), os.fsencode(victim)
    left = journal.read_bytes()
    end = struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    journal.write_bytes(left + struct.pack(">I", 0x40000000 // 4096 + 1) + name + end)
    with pytest.raises(RegistryError, match=f"names a further file.*{CURE}"):
        Registry(path.parent).champions()
    assert victim.exists()
    journal.unlink()
    os.mkfifo(journal)
    with pytest.raises(RegistryError, match=f"is no regular file.*{CURE}"):
        Registry(path.parent).champions()
    journal.unlink()
    journal.write_bytes(left)
    assert served(Registry(path.parent)) == {"box.a": "v000002"}
    assert not journal.exists()
    assert [change.serial for change in Registry(path.parent).history()] == [1, 2]
