from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.host import procfs as host
from tests.host_fixtures import laptop_files, write_tree

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


def test_the_margin_is_to_the_nearest_point_at_which_the_clock_falls(tmp_path: Path) -> None:
    files = laptop_files()
    assert host.temperature_margin_c(write_tree(tmp_path / "none", files)) is None
    files["sys/class/hwmon/hwmon2/temp2_crit"] = "100000\n"
    root = write_tree(tmp_path / "monitor", files)
    assert host.temperature_margin_c(root) == 36.5
    zone = "sys/class/thermal/thermal_zone1"
    files |= {f"{zone}/trip_point_0_type": "active\n", f"{zone}/trip_point_0_temp": "55000\n"}
    files |= {f"{zone}/trip_point_1_type": "passive\n", f"{zone}/trip_point_1_temp": "85000\n"}
    # Firmware leaves unused trips at zero.
    files |= {f"{zone}/trip_point_2_type": "passive\n", f"{zone}/trip_point_2_temp": "0\n"}
    files |= {f"{zone}/trip_point_3_type": "critical\n", f"{zone}/trip_point_3_temp": "105000\n"}
    root = write_tree(tmp_path / "zone", files)
    assert host.temperature_margin_c(root) == 24.0
    assert host.temperature_c(root) == 63.5
