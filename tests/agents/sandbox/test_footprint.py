"""What a process holds, seen from outside: memory that is mapped and empty, and programs that it started."""

from __future__ import annotations

from agents.sandbox.footprint import footprint_of
from tests.conftest import running

#: Reads a byte of each 2 MiB of 64 GiB: nothing is resident, and each takes a table of 4 KiB.
EMPTY_PAGES = """
import mmap
room = mmap.mmap(-1, 64 << 30, 0x4022, mmap.PROT_READ)
for place in range(0, 64 << 30, 2 << 20):
    room[place]
print(flush=True)
input()
"""
CHILDREN = """
import subprocess
children = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
print(flush=True)
input()
for child in children:
    child.kill()
    child.wait()
"""


def test_tables_of_empty_pages_are_memory_too() -> None:
    with running(EMPTY_PAGES) as process:
        held = footprint_of(process.pid, with_group=False)
    assert held.memory_bytes > 120 << 20


def test_programs_that_a_process_started_count_with_it() -> None:
    with running(CHILDREN, start_new_session=True) as process:
        alone, together = (footprint_of(process.pid, with_group=with_group) for with_group in (False, True))
    assert (alone.threads, together.threads) == (1, 4)
    assert together.memory_bytes > alone.memory_bytes
    gone = footprint_of(process.pid, with_group=True)
    assert (gone.memory_bytes, gone.threads) == (0, 0)
