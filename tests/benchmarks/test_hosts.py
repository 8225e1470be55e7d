"""Two hosts as network namespaces of this machine: the short form of `benchmarks.hosts`, and what is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import hosts
from benchmarks.hosts_network import namespaces, remove_stale, why_not

#: Makes two hosts with a process on the far one, and tells its id.
_MAKER = """
import os, time
from contextlib import closing
from pathlib import Path
from benchmarks.hosts_network import FAR, TwoHosts
with closing(TwoHosts()) as hosts, open(os.devnull, "wb") as out:
    left = hosts.start(FAR, ["sleep", "600"], environment=os.environ, folder=Path("/"), out=out)
    print(left.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def possible() -> None:
    if reason := why_not():
        pytest.skip(f"this machine cannot be two hosts: {reason}")


def of_process(pid: int) -> set[str]:
    """The namespaces that a process has made."""
    return {name for name in namespaces() if name.startswith(f"fleet-hosts-{pid}-")}


@pytest.mark.ray
@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.skipif(
    "FLEET_TEST_HOSTS" not in os.environ, reason="minutes of both cores: set FLEET_TEST_HOSTS to run it"
)
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_the_link_to_another_host_is_down_for_a_while(possible: None) -> None:
    found = hosts.measure(hosts.Options(short=True))
    assert not {"failure", "folder"} & set(found), found
    assert found["records"]["far-cpu"] > 0
    assert found["spooled_in_partition"] > 0
    assert [found[name] for name in ("spooled_came_late", "lost", "duplicated", "unaccounted")] == [0] * 4
    assert not of_process(os.getpid())


@pytest.mark.slow
def test_a_start_removes_what_a_killed_one_has_left(possible: None) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKER], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    )
    try:
        assert maker.stdout is not None
        with maker.stdout as stream:
            left = psutil.Process(int(stream.readline()))
        made = of_process(maker.pid)
        assert len(made) == 2
        assert not made & set(remove_stale())  # who made them lives
        assert left.is_running()
    finally:
        maker.kill()
        maker.wait()
    assert made <= set(remove_stale())
    assert not psutil.wait_procs([left], 10)[1]
    assert not of_process(maker.pid)


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not() == "only root may make network namespaces"
