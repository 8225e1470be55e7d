from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from agents.host.device_kinds import differences
from agents.host.probe import probe
from agents.records import Family
from fleet.config.device_folder import DeviceFolder
from fleet.config.init import (
    Action,
    cpu_profiles,
    cuda_profiles,
    host_profiles,
    render,
    timing_cores,
    write_profiles,
)
from fleet.errors import FleetError
from tests.host_fixtures import (
    GPU,
    GRAVITON_FLAGS,
    PI_FLAGS,
    SANDYBRIDGE_FLAGS,
    V4_FLAGS,
    arm_host,
    cuda_spec,
    gpu_host,
    x86_host,
)
from tests.table_fixtures import cells

ROOT = Path(__file__).parents[3]


def names(profiles: tuple[object, ...]) -> list[str]:
    return [profile.spec.device_id for profile in profiles]  # type: ignore[attr-defined]


#: Usable processors, those of each core, threads; the processors that are timed on, or why there are none.
CORES = """
[0, 1]             | [[0], [1]]               | 1 | [0]
[1, 3]             | [[0], [1], [2], [3]]     | 1 | [1]
[0, 1, 2, 3]       | [[0, 2], [1, 3]]         | 1 | [0]
[0, 1, 2, 3, 4, 5] | [[0, 3], [1, 4], [2, 5]] | 2 | [0, 1]
[2, 3]             | [[0, 2], [1, 3]]         | 1 | [2]
[0]                | [[0]]                    | 1 | [0]
[0, 1, 2]          | []                       | 2 | [0, 1]
[0, 1]             | [[0], [1]]               | 2 | use 1 to 1 threads
[0]                | [[0], [1]]               | 2 | use 1 to 1 threads
[0, 1]             | [[0], [1]]               | 0 | use 1 to 1 threads
# Siblings of one core are not two cores.
[0, 1, 2, 3]       | [[0, 2], [1, 3]]         | 2 | 2 physical cores
"""


def test_timing_takes_the_lowest_thread_of_each_core_and_leaves_one_to_build() -> None:
    for line in cells(CORES):
        usable, groups, threads, expected = map(yaml.safe_load, line)
        arguments = tuple(usable), tuple(map(tuple, groups)), threads
        if isinstance(expected, str):
            with pytest.raises(FleetError, match=expected):
                timing_cores(*arguments)
        else:
            assert timing_cores(*arguments) == tuple(expected), line


def test_a_host_gets_the_profiles_it_can_execute_and_no_more() -> None:
    assert names(cpu_profiles(x86_host(SANDYBRIDGE_FLAGS), (0,))) == ["x86-64", "x86-64-v2", "sandybridge"]
    assert names(cpu_profiles(arm_host(GRAVITON_FLAGS), (0,))) == ["aarch64-generic", "aarch64-native"]
    assert cpu_profiles(replace(x86_host(), arch="riscv64"), (0,)) == ()
    # An Arm board lists its own features.
    native = cpu_profiles(arm_host(PI_FLAGS), (0,))[-1].spec
    assert native.target["mattr"] == ["+neon", "+crc"]
    assert native.target["mtriple"] == "aarch64-linux-gnu"


def test_every_profile_fits_the_host_it_was_made_for() -> None:
    for host in (x86_host(SANDYBRIDGE_FLAGS), arm_host(PI_FLAGS), arm_host(GRAVITON_FLAGS)):
        for profile in cpu_profiles(host, (0, 1)):
            assert profile.spec.threads == 2
            assert differences(profile.spec, host) == []
    here = host_profiles()
    assert here
    assert all(differences(profile.spec, probe()) == [] for profile in here)


def test_each_gpu_with_a_known_architecture_gets_a_file() -> None:
    old = {key: value for key, value in {**GPU, "index": "1"}.items() if key != "arch"}
    host = gpu_host(GPU, old, {**GPU, "index": "2", "arch": "sm_90"})
    profiles = cuda_profiles(host, (0, 1))
    assert names(profiles) == ["cuda-0", "cuda-2"]
    spec = profiles[1].spec
    assert (spec.index, spec.family, spec.cores) == (2, Family.GPU, (0,))
    assert spec.target == cuda_spec(arch="sm_90").target
    assert all(differences(profile.spec, host) == [] for profile in profiles)


def test_written_files_load_to_the_same_specs(tmp_path: Path) -> None:
    profiles = (
        cpu_profiles(x86_host(), (0, 2)) + cpu_profiles(arm_host(), (0,)) + cuda_profiles(gpu_host(GPU), (0,))
    )
    folder = tmp_path / "a/b"
    assert set(write_profiles(folder, profiles).values()) == {Action.WRITTEN}
    assert DeviceFolder(folder).read().specs == {profile.spec.device_id: profile.spec for profile in profiles}


def test_shipped_files_are_what_init_writes() -> None:
    reference = cpu_profiles(x86_host(V4_FLAGS), (0,)) + cpu_profiles(arm_host(GRAVITON_FLAGS), (0,))
    assert len(reference) == 7
    for profile in reference:
        text = (ROOT / f"configs/hardware/{profile.spec.device_id}.yaml").read_text()
        assert text == render(profile), "run `fleet init --force`, or write what changed into that file"
