from __future__ import annotations

import pytest

from agents.device.device_cores import process_cores, quiet_cores, worker_settings
from tests.host_fixtures import GPU, cuda_spec, gpu_host
from tests.table_fixtures import rows


def cores(digits: str) -> tuple[int, ...]:
    return tuple(map(int, digits.strip()))


#: Cores that time, those that may be used, groups of siblings, and those that are quiet while it times.
QUIET = """
    0  | 01   | 0 1   -> 1
    0  | 0123 | 02 13 -> 13
    0  | 02   | 02    -> 2
    0  | 0    | 0     -> 0
    01 | 01   | 0 1   -> 01
    0  | 01   |       -> 1
    0  | 0145 | 04 15 26 37 -> 15
"""


@pytest.mark.parametrize(("host", "quiet"), rows(QUIET))
def test_whatever_must_not_disturb_a_timing_keeps_off_its_physical_cores(host: str, quiet: str) -> None:
    timing, usable, groups = host.split("|")
    found = quiet_cores(cores(timing), cores(usable), tuple(map(cores, groups.split())))
    assert found == cores(quiet)


def test_quiet_cores_build_and_few_have_one_process_more_for_the_cores_that_are_lent() -> None:
    assert process_cores((0,), (1,)) == ((1,), (1,))
    assert process_cores((0,), (1, 2)) == ((1,), (2,), (1, 2))
    assert process_cores((0,), tuple(range(1, 16))) == tuple((core,) for core in range(1, 7))
    # Where all cores time, one process does everything.
    assert process_cores((0, 1), (0, 1)) == ((0, 1),)


@pytest.mark.parametrize(
    ("card", "builders"),
    [({"memory_bytes": str(80 << 30)}, 16), ({"memory_bytes": str(8 << 30)}, 4), ({}, 6)],
)
def test_a_gpu_has_as_many_builders_as_its_memory_holds_contexts(card: dict[str, str], builders: int) -> None:
    spec, quiet = cuda_spec(), tuple(range(1, 24))
    made = worker_settings(spec, gpu_host({**GPU, **card}), quiet)
    assert [one.build_cores for one in made] == [(core,) for core in quiet[:builders]]
    assert {(one.device, one.gpu_index, one.slot_path) for one in made} == {("cuda", 0, "")}
