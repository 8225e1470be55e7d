from __future__ import annotations

import os

import pytest

from agents.host.host_load import HostLoad, cpu_secs, program_of
from tests.conftest import running
from tests.table_fixtures import rows


class Host:
    """Times that are set by hand."""

    def __init__(self) -> None:
        self.now, self.busy, self.own = 100.0, 50.0, 20.0
        self.load = HostLoad(clock=lambda: self.now, times=lambda: (self.busy, self.own))

    def go(self, secs: float, *, own: float, others: float) -> bool | None:
        self.now += secs
        self.own += own
        self.busy += own + others
        return self.load.is_idle


def test_own_work_is_no_load_and_that_of_others_is() -> None:
    host = Host()
    assert host.load.is_idle is None
    assert host.go(10.0, own=19.0, others=0.5) is True
    assert host.go(10.0, own=0.0, others=6.0) is False
    assert host.go(1.0, own=0.0, others=0.0) is False, "it is not looked at all the time"
    assert host.go(9.0, own=9.0, others=0.0) is True


def test_what_children_do_is_own_work_and_what_is_not_below_is_not() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    with running(code, start_new_session=True) as child:
        mine, its = cpu_secs([os.getpid()])[1], cpu_secs([child.pid])[1]
        assert its >= 0.25
        assert mine >= its
        assert cpu_secs([])[1] == 0.0
        assert cpu_secs([2**22 + 1])[1] == 0.0, "no process has this number"


#: What a process was started with, and how it is named.
PROGRAMS = """
    /opt/venv/bin/python -P -m agents.sandbox.zygote 44 9104           -> python -m agents.sandbox.zygote
    /venv/bin/python -P -m agents.host.child_main fleet.api.score 44 5 -> python -m fleet.api.score
    python3.11 -Im pytest -x                                           -> python3.11 -m pytest
    python -mhttp.server 80                                            -> python -m http.server
    python -X importtime -W ignore /srv/train.py --token secret        -> python train.py
    python -Ximporttime -Wmodule /srv/train.py                         -> python train.py
    python -Bc print(1)                                                -> python -c
    python -m                                                          -> python -m
    python                                                             -> python
    /bin/bash -e ./build.sh all                                        -> bash build.sh
    sh -lc sleep                                                       -> sh -c
    node --expose-gc server.js                                         -> node server.js
    /usr/bin/ffmpeg -i film.mkv -passphrase secret                     -> ffmpeg
    ray::IDLE                                                          -> ray::IDLE
"""


@pytest.mark.parametrize(("command", "program"), [*rows(PROGRAMS), ("", "")])
def test_a_busy_program_is_named_by_what_it_runs(command: str, program: str) -> None:
    assert program_of(command.split()) == program
