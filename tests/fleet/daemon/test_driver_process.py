"""The processes of drivers, and their folders."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from fleet.config.settings import FleetConfig
from fleet.core.words import Request, RequestId, RequestKind
from fleet.daemon import launch
from fleet.daemon.launch import DriverProcess, launcher
from fleet.drivers.session import ChannelClosedError
from fleet.errors import StoreFull
from tests.conftest import until

REQUEST = Request(request_id=RequestId("r1"), kind=RequestKind.COLLECTION, arguments={"devices": ["one"]})
#: Stand in for `fleet.daemon.driver_process`: one says its end, one ends without a word.
ENDS = """
import socket, sys
with socket.socket(fileno=int(sys.argv[2])) as end:
    end.sendall(b'{"op": "end", "result": {}, "reason": ""}\\n')
    end.recv(1)
"""
DIES = "import sys; sys.exit('it had enough')"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], DriverProcess]:
    def started(program: str) -> DriverProcess:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(launch, "_MODULE", "stand_in")
        return launcher(tmp_path / "drivers", FleetConfig(), tmp_path / "models", lambda: ())(REQUEST)

    return started


@pytest.mark.parametrize("program", [ENDS, DIES], ids=["says its end", "dies"])
def test_the_folder_of_a_driver_goes_with_it_and_how_it_ended_is_known(
    start: Callable[[str], DriverProcess], tmp_path: Path, program: str
) -> None:
    root = tmp_path / "drivers"
    left = root / "of-a-coordinator-that-was-killed"
    left.mkdir(parents=True)
    driver = start(program)
    assert [one.name for one in root.iterdir()] == ["r1"]
    with pytest.raises(ChannelClosedError) if program is DIES else nullcontext():
        assert driver.channel.get(60)["op"] == "end"
    driver.stop()
    assert driver.is_over(60)
    assert program is ENDS or "it had enough" in driver.failure()
    assert list(root.iterdir()) == []
    with pytest.raises(ChannelClosedError):
        driver.channel.get(60)


def test_a_driver_that_finds_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", no_room)
    with pytest.raises(StoreFull, match="no room while starting the driver of a request"):
        launcher(tmp_path / "drivers", FleetConfig(), tmp_path / "models", lambda: ())(REQUEST)
    until(lambda: list((tmp_path / "drivers").iterdir()) == [])
