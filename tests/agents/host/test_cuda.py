from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.host import cuda
from agents.host.device_kinds import differences
from agents.host.probe import environment, probe
from tests.host_fixtures import cuda_spec
from tests.table_fixtures import rows

CARDS = [{"uuid": "GPU-aaa"}, {"uuid": "GPU-abb"}]


@pytest.fixture(autouse=True)
def _forget_the_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library is opened once per process; each test here brings its own, and says what is visible."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda._open_nvml.cache_clear()
    cuda._nvml_handle.cache_clear()
    yield
    cuda._open_nvml.cache_clear()
    cuda._nvml_handle.cache_clear()


@pytest.mark.parametrize(
    ("setting", "chosen"),
    rows("""
        null     -> GPU-aaa GPU-abb
        ""       ->
        "-1"     ->
        "1,0"    -> GPU-abb GPU-aaa
        "1,7,0"  -> GPU-abb
        "GPU-ab" -> GPU-abb
        "GPU-a"  ->
    """),
)
def test_visible_devices_follow_cudas_rules(setting: str, chosen: str) -> None:
    seen = cuda.visible(CARDS, json.loads(setting))
    assert " ".join(device["uuid"] for device in seen) == chosen


class _NvmlError(Exception):
    pass


def _raise(*_: object) -> Any:
    raise _NvmlError


#: What the library answers of every card, by the names of its functions.
ANSWERS = {
    "SystemGetDriverVersion": b"535.104.05",
    "DeviceGetCount": 2,
    "DeviceGetCudaComputeCapability": (9, 0),
    "DeviceGetMemoryInfo": SimpleNamespace(total=150 << 30),
    "DeviceGetPersistenceMode": 0,
    "DeviceGetName": "NVIDIA H200",
    "DeviceGetTemperature": 41,
    "DeviceGetPowerUsage": 75_432,
    "DeviceGetUtilizationRates": SimpleNamespace(gpu=7, memory=1),
    "DeviceGetCurrentClocksThrottleReasons": 0x1 | 0x20 | 0x8000,
}


def _fake_nvml(**changes: Any) -> SimpleNamespace:
    """The functions of `nvidia-ml-py` that are used, for two cards that the library lists out of order."""
    buses = {"GPU-0": b"00000000:C1:00.0", "GPU-1": b"00000000:01:00.0"}
    clocks = {("GPU-0", 1): 1980, ("GPU-0", 2): 3201, ("GPU-1", 1): 345, ("GPU-1", 2): 2619}
    opened = SimpleNamespace(times=0)
    return SimpleNamespace(
        **{f"nvml{name}": lambda *_, answer=answer: answer for name, answer in ANSWERS.items()}
        | {
            "opened": opened,
            "NVMLError": _NvmlError,
            "NVML_CLOCK_SM": 1,
            "NVML_CLOCK_MEM": 2,
            "NVML_TEMPERATURE_GPU": 0,
            "nvmlInit": lambda: setattr(opened, "times", opened.times + 1),
            "nvmlShutdown": lambda: setattr(opened, "times", opened.times - 1),
            "nvmlDeviceGetHandleByIndex": lambda index: f"GPU-{index}",
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=buses[handle]),
            "nvmlDeviceGetMaxClockInfo": _raise,
            "nvmlDeviceGetUUID": lambda handle: handle,
            "nvmlDeviceGetClockInfo": lambda handle, clock: clocks[handle, clock],
        }
        | changes
    )


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = _fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_the_management_library_is_asked(library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cuda.cuda_devices()
    assert (first["index"], first["arch"], first["driver"]) == ("0", "sm_90", "535.104.05")
    assert first["persistence_mode"] == "off"
    assert "clock_max_mhz" not in first
    # The numbers go by PCI bus, whatever order the library has.
    assert (first["uuid"], second["uuid"]) == ("GPU-1", "GPU-0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cuda.cuda_devices() == ()
    # A process that only looked may still fork.
    assert library.opened.times == 0


@pytest.mark.parametrize("absent", [None, _fake_nvml(nvmlInit=_raise)], ids=["no library", "no driver"])
def test_without_a_driver_there_are_no_devices_and_no_state(
    monkeypatch: pytest.MonkeyPatch, absent: SimpleNamespace | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", absent)
    monkeypatch.setenv("PATH", "")
    assert cuda.cuda_devices() == ()
    assert cuda.gpu_state(0) == {}


def test_the_state_is_of_the_device_that_the_ordinal_names(
    library: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuda.gpu_state(0) == {
        "sm_clock_mhz": 345,
        "memory_clock_mhz": 2619,
        "temperature_c": 41,
        "power_w": 75.4,
        "utilisation": 7,
        "throttle_reasons": ["0x8000", "gpu_idle", "sw_thermal_slowdown"],
    }
    assert cuda.gpu_state(1)["sm_clock_mhz"] == 1980
    assert cuda.gpu_state(2) == cuda.gpu_state(-1) == {}
    assert library.opened.times == 1, "it is opened once for many records"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert cuda.gpu_state(0)["sm_clock_mhz"] == 1980
    assert cuda.gpu_state(1) == {}


@pytest.mark.gpu
def test_the_card_of_this_host_is_described_and_shows_its_clocks() -> None:
    devices = cuda.cuda_devices()
    if not devices:
        pytest.skip("no CUDA device on this host, or no nvidia-ml-py to see it with")
    card = devices[0]
    assert card["arch"].startswith("sm_")
    assert int(card["memory_bytes"]) > 1 << 30
    spec = cuda_spec(arch=card["arch"])
    assert [text for text in differences(spec, probe()) if "CUDA" in text or "target" in text] == []
    assert cuda.gpu_state(999) == {}
    seen = environment((min(os.sched_getaffinity(0)),), gpu_index=0)["gpu"]
    assert 0 < seen["sm_clock_mhz"] <= int(card.get("clock_max_mhz", "10000"))
    assert seen["memory_clock_mhz"] > 0


def test_missing_device_files_are_made_before_a_process_is_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, uvm = tmp_path / "nvidia-modprobe", tmp_path / "nvidia-uvm"
    program.write_text(f'#!/bin/sh\necho "$@" >> {uvm}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    cuda.make_device_files(uvm)
    cuda.make_device_files(uvm)  # nothing is missing now
    assert uvm.read_text() == "-u -c 0\n"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    cuda.make_device_files(tmp_path / "missing")


@pytest.mark.parametrize("headers", ["include", "targets/x86_64-linux/include"])
def test_without_headers_or_bindings_nothing_is_compiled_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: str
) -> None:
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    assert f"no CUDA toolkit is at {tmp_path}" in cuda.compiler_fault()
    (tmp_path / headers).mkdir(parents=True)
    (tmp_path / headers / "cuda_runtime.h").touch()
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    assert "pip install 'tensor-fleet[cuda]'" in cuda.compiler_fault()
    with monkeypatch.context() as other:
        other.setenv("TVM_CUDA_COMPILE_MODE", "nvcc")
        assert not cuda.compiler_fault()
    monkeypatch.setattr(cuda, "find_spec", lambda name: name)
    assert not cuda.compiler_fault()
