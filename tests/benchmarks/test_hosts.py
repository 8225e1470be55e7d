"""Two hosts as network namespaces of this machine: the short form of `benchmarks.hosts`, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import hosts
from benchmarks.hosts_network import FAR, NEAR, namespaces, remove_stale, why_not

ROOT = Path(__file__).parents[2]
#: Makes two hosts with a process on the far one, and tells its id.
_MAKER = """
import os, time
from pathlib import Path
from benchmarks.hosts_network import FAR, TwoHosts
with TwoHosts() as hosts, open(os.devnull, "wb") as out:
    left = hosts.start(FAR, ["sleep", "600"], environment=os.environ, folder=Path("/"), out=out)
    print(left.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def possible() -> None:
    if reason := why_not():
        pytest.skip(f"this machine cannot be two hosts: {reason}")


def of_process(pid: int) -> list[str]:
    """The namespaces that a process has made."""
    return sorted(name for name in namespaces() if name.startswith(f"fleet-hosts-{pid}-"))


@pytest.mark.ray
@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.skipif(
    "FLEET_TEST_HOSTS" not in os.environ, reason="minutes of both cores: set FLEET_TEST_HOSTS to run it"
)
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_the_link_to_another_host_is_down_for_a_while(possible: None) -> None:
    found = hosts.measure(hosts.Options(short=True))
    assert "failure" not in found, found
    assert found["records"]["far-cpu"] > 0
    assert found["spooled_in_partition"] > 0
    assert found["spooled_came_late"] == 0
    assert (found["lost"], found["duplicated"], found["unaccounted"]) == (0, 0, 0), found
    assert "folder" not in found, found
    assert not of_process(os.getpid())


@pytest.mark.slow
def test_a_start_removes_what_a_killed_one_has_left(possible: None) -> None:
    maker = subprocess.Popen([sys.executable, "-c", _MAKER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert maker.stdout is not None
        with maker.stdout as stream:
            left = psutil.Process(int(stream.readline()))
        made = [f"fleet-hosts-{maker.pid}-{side}" for side in (FAR, NEAR)]
        assert of_process(maker.pid) == made
        assert not set(made) & set(remove_stale())  # who made them lives
        assert left.is_running()
    finally:
        maker.kill()
        maker.wait()
    assert set(made) <= set(remove_stale())
    assert not psutil.wait_procs([left], 10)[1]
    assert not of_process(maker.pid)


def test_without_root_it_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["hosts", "--json"])
    handler = signal.getsignal(signal.SIGTERM)
    try:
        hosts.main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    said = json.loads(capsys.readouterr().out)
    assert said == {"benchmark": "hosts", "skipped": "only root may make network namespaces"}
