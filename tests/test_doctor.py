from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from host_fixtures import GPU, arm_host, gpu_host, local_spec, x86_host

from agents.probe import probe
from agents.records import DeviceKind
from fleet.doctor import WANTED_MODULES, Finding, HostState, Level, diagnose, look, version_numbers

QUIET = HostState(memory_available_bytes=8 << 30, disk_free_bytes=100 << 30)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    assert all((findings[0].what, findings[0].why, findings[0].do))
    return findings[0]


def test_a_good_host_has_no_findings() -> None:
    assert diagnose(x86_host(), [local_spec({"mcpu": "x86-64-v3"})], QUIET) == []
    assert diagnose(x86_host(), []) == []


def test_a_governor_other_than_performance_is_found() -> None:
    state = replace(QUIET, governors=((0, "powersave"), (1, "performance")))
    found = only(diagnose(x86_host(), [], state))
    assert "powersave on 1 of 2 cores" in found.what
    assert "cpupower" in found.do
    assert diagnose(x86_host(), [], replace(QUIET, governors=((0, "performance"),))) == []


def test_a_sibling_that_would_build_beside_the_timed_thread_is_found() -> None:
    spec = local_spec({"mcpu": "x86-64-v3"}, 1, (0,))
    state = replace(QUIET, core_groups=((0, 2), (1, 3)))
    found = only(diagnose(x86_host(), [spec], state))
    assert "CPU 2 " in found.what
    assert "taskset -c 0,1,3" in found.do
    assert diagnose(x86_host(usable=(0, 1, 3)), [spec], state) == []
    assert diagnose(x86_host(), [replace(spec, kind=DeviceKind.REPLAY)], state) == []


def test_load_of_others_is_found() -> None:
    assert "load is 3.0" in only(diagnose(x86_host(), [], replace(QUIET, load=3.0))).what
    assert diagnose(x86_host(), [], replace(QUIET, load=1.9)) == []


def test_a_single_core_is_found() -> None:
    assert "1 core" in only(diagnose(x86_host(usable=(0,)), [], QUIET)).what


def test_a_quota_below_the_cores_is_found() -> None:
    assert "1.5 CPUs" in only(diagnose(x86_host(), [], replace(QUIET, cpu_quota=1.5))).what
    assert diagnose(x86_host(), [], replace(QUIET, cpu_quota=4.0)) == []


@pytest.mark.parametrize("module", [name for name in WANTED_MODULES if name != "pynvml"])
def test_a_missing_module_comes_with_its_pip_command(module: str) -> None:
    found = only(diagnose(x86_host(), [], replace(QUIET, missing_modules=(module,))))
    assert found.do == f"pip install {WANTED_MODULES[module].package}"
    assert (found.level is Level.ERROR) == (module == "tvm")


def test_the_management_library_matters_only_beside_a_driver() -> None:
    missing = replace(QUIET, missing_modules=("pynvml",))
    assert diagnose(x86_host(), [], missing) == []
    assert "nvidia-ml-py" in only(diagnose(gpu_host(GPU), [], replace(missing, nvidia_driver=True))).do


def test_a_driver_without_a_visible_device_is_found() -> None:
    assert "CUDA_VISIBLE_DEVICES" in only(diagnose(x86_host(), [], replace(QUIET, nvidia_driver=True))).do


@pytest.mark.parametrize(
    ("version", "crashes"), [("0.1.14.post0", False), ("0.1.15", True), ("0.1.15.post1", True), ("0.2", True)]
)
def test_a_foreign_function_layer_that_crashes_is_an_error(version: str, crashes: bool) -> None:
    host = replace(x86_host(), versions=(("apache-tvm-ffi", version),))
    found = diagnose(host, [], QUIET)
    assert [finding.level for finding in found] == ([Level.ERROR] if crashes else [])
    assert all("apache-tvm-ffi==0.1.14.post0" in finding.do for finding in found)


def test_another_tvm_is_found() -> None:
    host = replace(x86_host(), versions=(("apache-tvm", "0.28.0"),))
    assert only(diagnose(host, [], QUIET)).level is Level.WARNING


def test_low_memory_and_disk_are_found() -> None:
    assert "1.0 GiB" in only(diagnose(x86_host(), [], replace(QUIET, memory_available_bytes=1 << 30))).what
    low = only(diagnose(x86_host(), [], replace(QUIET, disk_free_bytes=1 << 30, store="runs/store")))
    full = only(diagnose(x86_host(), [], replace(QUIET, disk_free_bytes=10 << 20)))
    assert (low.level, full.level) == (Level.WARNING, Level.ERROR)
    assert "runs/store" in low.what


def test_a_device_of_another_host_is_a_note_with_its_reason() -> None:
    found = only(diagnose(arm_host(), [local_spec({"mcpu": "x86-64-v2"})], QUIET))
    assert found.level is Level.NOTE
    assert "box-cpu" in found.what
    assert "x86_64" in found.why


def test_the_worst_comes_first() -> None:
    state = replace(QUIET, missing_modules=("xgboost", "tornado", "tvm"))
    assert [finding.level for finding in diagnose(x86_host(), [], state)] == [
        Level.ERROR,
        Level.WARNING,
        Level.NOTE,
    ]


def test_this_host_can_be_looked_at_and_judged(tmp_path: Path) -> None:
    state = look(tmp_path / "not/there/yet")
    assert state.disk_free_bytes > 0
    assert state.memory_available_bytes > 0
    assert "tvm" not in state.missing_modules
    assert all(finding.level is not Level.ERROR for finding in diagnose(probe(), [], state))


@pytest.mark.parametrize(
    ("version", "numbers"), [("0.1.14.post0", (0, 1, 14)), ("1.2", (1, 2, 0)), ("", ()), ("main", ())]
)
def test_versions_are_compared_by_their_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(version) == numbers
