"""A process that gives way, as the kernel sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Tells its nice value, and that of its session.
GIVES_WAY = """
import os
from pathlib import Path
from agents.host.priority import be_nice
be_nice(7)
session = Path("/proc/self/autogroup")
print(os.nice(0), session.read_text().split()[-1] if session.exists() else "none")
"""


@pytest.mark.parametrize("leads", [True, False])
def test_a_process_lowers_its_own_session_and_no_other(leads: bool) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", GIVES_WAY], start_new_session=leads, capture_output=True, text=True, check=True
    )
    nice, session_nice = printed.stdout.split()
    assert int(nice) == os.nice(0) + 7
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel shares the CPU between processes, not sessions")
    before = Path("/proc/self/autogroup").read_text().split()[-1]
    assert session_nice == (nice if leads else before)
