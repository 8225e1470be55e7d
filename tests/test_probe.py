from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from host_fixtures import (
    GPU,
    PI_CPUINFO,
    V2_FLAGS,
    V3_FLAGS,
    arm_host,
    cuda_spec,
    gpu_host,
    laptop_cpuinfo,
    laptop_files,
    local_spec,
    write_tree,
    x86_host,
)
from hypothesis import given
from hypothesis import strategies as st

from agents import cuda, host
from agents.probe import LASTING_KEYS, core_groups, differences, environment, environment_id, probe
from agents.records import DeviceKind, Protocol, canonical_json


def test_this_host_is_described() -> None:
    seen = probe()
    assert seen.usable_cores == tuple(sorted(os.sched_getaffinity(0)))
    assert seen.logical_cores >= len(seen.usable_cores)
    assert seen.physical_cores <= seen.logical_cores
    assert seen.vector_bytes >= 16
    assert seen.memory_bytes > 0
    assert dict(seen.versions)["apache-tvm"]
    assert len(seen.ansor_params) == 8


def test_probing_does_not_import_tvm() -> None:
    import subprocess

    code = "import sys; from agents.probe import probe; probe(); print('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_laptop_with_smt_and_a_governor(tmp_path: Path) -> None:
    root = write_tree(tmp_path, laptop_files())
    seen = probe(root, usable=(0, 1, 2, 3), arch="x86_64")
    assert (seen.physical_cores, seen.logical_cores, seen.smt) == (2, 4, True)
    assert seen.cpu_model == "Intel(R) Core(TM) i5-7200U CPU @ 2.50GHz"
    assert (seen.l1d_bytes, seen.l2_bytes, seen.l3_bytes) == (32 << 10, 256 << 10, 3 << 20)
    assert (seen.clock_min_mhz, seen.clock_now_mhz, seen.clock_max_mhz) == (400.0, 2400.0, 3100.0)
    assert seen.governor == "powersave"
    assert seen.memory_bytes == 8048836 * 1024
    assert seen.ansor_params == (2, 32, 64, 0, 0, 0, 0, 0)
    assert core_groups(root) == ((0, 2), (1, 3))


def test_a_host_that_hides_sysfs_falls_back_on_cpuinfo(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/cpuinfo": laptop_cpuinfo(V2_FLAGS)})
    seen = probe(root, usable=(1,), arch="x86_64")
    assert (seen.physical_cores, seen.logical_cores, seen.smt) == (2, 4, True)
    assert seen.clock_now_mhz == pytest.approx(801.036)
    assert (seen.governor, seen.l1d_bytes, seen.clock_max_mhz) == ("", 0, 0.0)


def test_an_arm_board_is_named_by_its_core_and_board(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": PI_CPUINFO, "sys/devices/system/cpu/online": "0-3\n"}
    seen = probe(write_tree(tmp_path, files), usable=(0, 1, 2, 3), arch="arm64")
    assert seen.cpu_model == "Cortex-A72 (Raspberry Pi 4 Model B Rev 1.4)"
    assert (seen.arch, seen.vector_bytes, seen.logical_cores, seen.smt) == ("aarch64", 16, 4, False)
    assert "asimd" in seen.isa_flags


def test_unlike_cores_keep_both_names_and_only_common_flags() -> None:
    text = (
        "processor : 0\nFeatures : fp asimd crc32\nCPU implementer : 0x41\nCPU part : 0xd05\n\n"
        "processor : 1\nFeatures : fp asimd asimddp\nCPU implementer : 0x41\nCPU part : 0xd0b\n\n"
        "processor : 2\nFeatures : fp asimd\nCPU implementer : 0x99\nCPU part : 0x123\n"
    )
    info = host.parse_cpuinfo(text)
    assert info.model == "Cortex-A55 + Cortex-A76 + ARM core 0x99/0x123"
    assert info.flags == ("asimd", "fp")


def test_an_empty_tree_gives_unknown_values_and_no_error(tmp_path: Path) -> None:
    seen = probe(tmp_path, usable=(0,), arch="x86_64")
    assert (seen.cpu_model, seen.isa_flags, seen.memory_bytes, seen.cache_line_bytes) == ("", (), 0, 0)
    assert "load" in environment((0,), tmp_path)


@given(st.text(max_size=400))
def test_no_text_breaks_the_readers_of_kernel_files(text: str) -> None:
    host.parse_cpuinfo(text)
    host.parse_size(text)


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_survives_the_kernels_spelling(cpus: set[int]) -> None:
    assert host.parse_cpu_list(",".join(map(str, sorted(cpus))) + "\n") == tuple(sorted(cpus))
    assert host.parse_cpu_list("0-2,5") == (0, 1, 2, 5)


def test_the_snapshot_holds_what_the_host_shows(tmp_path: Path) -> None:
    snapshot = environment((1, 0), write_tree(tmp_path, laptop_files()))
    assert snapshot["governor"] == ["powersave", "powersave"]
    assert snapshot["clock_mhz"] == [2401.0, 2400.0]
    assert snapshot["turbo"] == "on"
    # The hottest sensor of the CPU; the Wi-Fi card's 99 degrees do not count.
    assert snapshot["temperature_c"] == 63.5
    assert snapshot["memory_pressure"] == 1.25
    assert snapshot["memory_available_bytes"] == 3000000 * 1024
    assert json.loads(canonical_json(snapshot)) == snapshot


def test_the_snapshot_of_this_host_is_cheap() -> None:
    environment((0,))
    laps = []
    for _ in range(20):
        start = time.perf_counter()
        environment((0,))
        laps.append(time.perf_counter() - start)
    # 0.3 ms on a core of 2.6 GHz; the least of twenty is free of neighbours.
    assert min(laps) < 2e-3


def test_only_lasting_things_change_the_environment_id() -> None:
    spec, protocol = local_spec({"mcpu": "x86-64-v3"}), Protocol()
    snapshot = environment((0,))
    same = environment_id(snapshot, spec, protocol)
    passing = {key: "changed" for key in snapshot if key not in LASTING_KEYS}
    assert environment_id({**snapshot, **passing}, spec, protocol) == same
    for key in LASTING_KEYS:
        assert environment_id({**snapshot, key: "changed"}, spec, protocol) != same
    others = (local_spec({"mcpu": "x86-64-v2"}), local_spec({"mcpu": "x86-64-v3"}, cores=(1,)))
    assert all(environment_id(snapshot, other, protocol) != same for other in others)
    assert environment_id(snapshot, spec, Protocol(repeat=4)) != same


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000\n", 1.5), ("max 100000\n", float("inf"))])
def test_the_quota_of_a_container_is_the_least_of_its_groups(
    tmp_path: Path, quota: str, cores: float
) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": quota}
    files["sys/fs/cgroup/a/b/cpu.max"] = "400000 100000\n"
    assert host.cpu_quota(write_tree(tmp_path, files)) == min(cores, 4.0)


def test_quota_and_memory_limit_of_old_control_groups(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/\n",
        "proc/meminfo": "MemAvailable: 9000000 kB\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000\n",
        "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "400\n",
    }
    root = write_tree(tmp_path, files)
    assert host.cpu_quota(root) == 0.5
    assert host.memory_available_bytes(root) == 600


def test_a_host_that_keeps_the_spec_shows_no_difference() -> None:
    assert differences(local_spec({"mcpu": "x86-64-v4"}), x86_host()) == []
    assert differences(local_spec({"mcpu": "generic", "mtriple": "aarch64-linux-gnu"}), arm_host()) == []
    assert differences(cuda_spec(), gpu_host(GPU)) == []


def test_a_missing_level_names_flags_and_the_highest_level_there() -> None:
    (sentence,) = differences(local_spec({"mcpu": "x86-64-v4"}), x86_host(V3_FLAGS))
    assert "avx512bw avx512cd avx512dq avx512f avx512vl" in sentence
    assert "set mcpu to 'x86-64-v3'" in sentence


def test_a_missing_attribute_is_a_difference() -> None:
    spec = local_spec({"mcpu": "generic", "mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod", "+sve"]})
    (sentence,) = differences(spec, arm_host())
    assert "needs sve" in sentence
    assert "asimddp" not in sentence


def test_another_architecture_is_a_difference() -> None:
    (sentence,) = differences(local_spec({"mcpu": "x86-64-v2"}), arm_host())
    assert "x86_64" in sentence
    assert "aarch64" in sentence


def test_native_is_refused_because_llvm_builds_it_for_the_oldest_cpu() -> None:
    (sentence,) = differences(local_spec({"mcpu": "native"}), x86_host())
    assert "oldest" in sentence


def test_cores_and_threads_beyond_the_process_are_differences() -> None:
    found = differences(local_spec({"mcpu": "x86-64"}, 3, (0, 1, 9)), x86_host(usable=(0, 1)))
    assert len(found) == 2
    assert "core 9" in found[0]
    assert "may use 0, 1 of 4" in found[0]
    assert "threads is 3" in found[1]


def test_cuda_devices_and_limits_that_are_not_there() -> None:
    (none,) = differences(cuda_spec(), x86_host())
    assert "0 CUDA devices" in none
    (beyond,) = differences(cuda_spec(index=1), gpu_host(GPU))
    assert "CUDA device 1" in beyond
    found = differences(
        cuda_spec(arch="sm_90", max_threads_per_block=2048, thread_warp_size=16), gpu_host(GPU)
    )
    assert len(found) == 2
    assert "target.arch is sm_90" in found[0]
    assert "write 1024" in found[1]


@pytest.mark.parametrize("kind", [DeviceKind.RPC, DeviceKind.REPLAY])
def test_devices_elsewhere_are_not_judged_by_this_host(kind: DeviceKind) -> None:
    from dataclasses import replace

    assert differences(replace(local_spec({"mcpu": "x86-64-v4"}, cores=(99,)), kind=kind), arm_host()) == []


@pytest.mark.tvm
def test_a_cpu_name_with_a_typing_error_is_found_by_llvm() -> None:
    (sentence,) = differences(local_spec({"mcpu": "znver44"}), x86_host())
    assert "znver44" in sentence
    assert "does not know" in sentence


SMI = (
    "NVIDIA A100-SXM4-40GB, GPU-aaa, 40960, 8.0, 1410, 535.104.05, 00000000:07:00.0\n"
    "Tesla K80, GPU-abb, 11441, [N/A], 875, 470.0, 00000000:08:00.0\nbroken line\n"
)


def test_the_table_of_nvidia_smi_is_read() -> None:
    first, second = cuda._from_smi(SMI)
    assert (first["arch"], first["memory_bytes"], first["clock_max_mhz"]) == (
        "sm_80",
        str(40960 << 20),
        "1410",
    )
    assert "arch" not in second
    assert cuda._from_smi("") == []


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        (None, ["GPU-aaa", "GPU-abb"]),
        ("", []),
        ("-1", []),
        ("1,0", ["GPU-abb", "GPU-aaa"]),
        ("1,7,0", ["GPU-abb"]),
        ("GPU-ab", ["GPU-abb"]),
        ("GPU-a", []),
    ],
)
def test_visible_devices_follow_cudas_rules(setting: str | None, chosen: list[str]) -> None:
    assert [device["uuid"] for device in cuda.visible(cuda._from_smi(SMI), setting)] == chosen


class _NvmlError(Exception):
    pass


def _fake_nvml(**changes: Any) -> SimpleNamespace:
    """The functions of `nvidia-ml-py` that are used, for one card."""

    def no_clock(*_: object) -> int:
        raise _NvmlError

    values = {
        "NVMLError": _NvmlError,
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"535.104.05",
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=150 << 30),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=b"0000:01:00.0"),
        "nvmlDeviceGetMaxClockInfo": no_clock,
        "nvmlDeviceGetName": lambda handle: "NVIDIA H200",
        "nvmlDeviceGetUUID": lambda handle: "GPU-x",
    }
    return SimpleNamespace(**{**values, **changes})


def test_the_management_library_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml())
    (device,) = cuda.cuda_devices({})
    assert (device["index"], device["arch"], device["driver"]) == ("0", "sm_90", "535.104.05")
    assert "clock_max_mhz" not in device
    assert cuda.cuda_devices({"CUDA_VISIBLE_DEVICES": ""}) == ()


def test_without_a_driver_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise _NvmlError

    monkeypatch.setitem(sys.modules, "pynvml", _fake_nvml(nvmlInit=no_driver))
    monkeypatch.setenv("PATH", "")
    assert cuda.cuda_devices({}) == ()
