"""A process that gives way, as the kernel sees it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from agents.host import priority
from agents.host.priority import counts_switches
from tests.conftest import run_code

SESSION = Path("/proc/self/autogroup")

#: Prints its nice value, and the file of its session.
GIVES_WAY = f"""
import os
from pathlib import Path
from agents.host.priority import be_nice
be_nice(7)
session = Path("{SESSION}")
print(os.nice(0), session.read_text() if session.exists() else "")
"""


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_lowers_its_own_session_and_no_other(leads: bool) -> None:
    nice, *session = run_code(GIVES_WAY, start_new_session=leads).split()
    assert int(nice) == min(19, os.nice(0) + 7)
    before = SESSION.read_text().split() if SESSION.exists() else []
    if not before:  # the file is empty for a process whose control group has a weight of its own
        pytest.skip("this kernel shares the CPU between processes or groups, not sessions")
    assert session[-1] == (nice if leads else before[-1])


def test_whether_the_kernel_counts_switches_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts_switches(), "Linux does"
    nothing = SimpleNamespace(ru_nvcsw=0, ru_nivcsw=0)
    monkeypatch.setattr(priority.resource, "getrusage", lambda who: nothing)
    assert not counts_switches()

    def refuse(who: int) -> None:
        raise OSError("not here")

    monkeypatch.setattr(priority.resource, "getrusage", refuse)
    assert not counts_switches()
    monkeypatch.delattr(resource, "RUSAGE_THREAD")
    assert not counts_switches()
