from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.host import procfs as host
from tests.host_fixtures import write_tree

COUNTS = st.lists(st.integers(0, 10**9), min_size=8, max_size=10)


@given(st.lists(COUNTS, min_size=1, max_size=6), st.data())
def test_steal_is_the_eighth_count_of_each_core(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], data: st.DataObject
) -> None:
    lines = [f"cpu{core} {' '.join(map(str, row))}" for core, row in enumerate(rows)]
    text = "\n".join(["cpu 1 1 1 1 1 1 1 999", *lines, "intr 5 6 7 8 9 10 11 12"])
    root = write_tree(tmp_path_factory.mktemp("root"), {"proc/stat": text})
    cores = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1))
    assert host.steal_ticks(root, cores) == sum(rows[core][7] for core in cores)


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3 4\n", "cpu0 1 2 3 4 5 6 7 x\n"])
def test_a_kernel_that_counts_no_steal_is_no_zero(tmp_path: Path, text: str) -> None:
    assert host.steal_ticks(write_tree(tmp_path, {"proc/stat": text}), (0,)) is None
