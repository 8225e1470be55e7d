"""CUDA devices of this host, through NVIDIA's management library (the package `nvidia-ml-py`).

Called by `agents.host.probe`, by `fleet.doctor.doctor` and by whoever starts processes that use a
GPU. No CUDA context is made and no CUDA library is loaded: a process that has done so cannot fork workers
that use the GPU. A host without a driver simply has no devices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agents.host.gpu_sheets import gpu_sheet

# Limits that the CUDA C++ Programming Guide (table "Technical Specifications per Compute Capability") gives
# alike for every compute capability from 5.0 on; the management library does not report them. Shared memory
# is what a kernel gets without asking for more, and what TVM's own target tags name.
_COMMON_LIMITS = {
    "max_threads_per_block": "1024",
    "max_shared_memory_per_block": "49152",
    "thread_warp_size": "32",
}
# Cores of one multiprocessor by compute capability (CUDA C++ Programming Guide, "Compute Capabilities"); from
# 8.6 on 128.
_CORES_PER_UNIT = {"sm_60": 64, "sm_61": 128, "sm_70": 64, "sm_72": 64, "sm_75": 64, "sm_80": 64}
# Facts that the driver alone tells of its card; a data sheet does not stand in for them.
_FROM_DRIVER = frozenset(("arch", "clock_max_mhz", "memory_bytes", "thread_warp_size"))
_PROGRAM_TIMEOUT_SECS = 20.0
#: A process that computed on a GPU so lately is at work there: the driver samples some times per second.
_LATELY_SECS = 1.0

# Bits of NVML's `nvmlClocksThrottleReasons` in its header `nvml.h` (called "event reasons" since driver 535).
_THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}


#: CUDA numbers the fastest card first unless it is told otherwise; `cuda_devices` and the specs number by PCI
#: bus, also inside a `CUDA_VISIBLE_DEVICES` that lists numbers.
WORKER_ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def cuda_devices() -> tuple[dict[str, str], ...]:
    """List the CUDA devices that a program started by this process may use: `CUDA_VISIBLE_DEVICES` is obeyed.

    Returns:
        One mapping a device: `index` (ordinal among the visible ones in PCI bus order, which is CUDA's own
        order in processes that were given `WORKER_ENVIRONMENT`), `name`, `uuid`, `arch` (`sm_90`),
        `memory_bytes`, `clock_max_mhz`, `driver`, `pci_bus_id`, `persistence_mode` (`on`, `off`), the three
        limits that a TVM target needs, and what `gpu_sheet` has, from the driver where it tells. Unknown
        values are left out. Empty without the library or a driver.
    """
    chosen = visible(_from_nvml() or (), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple({"index": str(index), **_with_sheet(device)} for index, device in enumerate(chosen))


def _with_sheet(device: Mapping[str, str]) -> dict[str, str]:
    """A device with the numbers of its data sheet where the driver does not tell."""
    sheet = gpu_sheet(device.get("name", ""))
    completed = {**{name: value for name, value in sheet.items() if name not in _FROM_DRIVER}, **device}
    cores, clock, arch = device.get("cuda_cores", ""), device.get("clock_max_mhz", ""), device.get("arch", "")
    if cores.isdecimal() and clock.isdecimal() and arch:
        completed["compute_units"] = str(int(cores) // _CORES_PER_UNIT.get(arch, 128))
        # A fused multiply-add a core and cycle.
        completed["peak_flops"] = str(2 * int(cores) * int(clock) * 10**6)
    return completed


def compiler_fault() -> str:
    """Say what this host lacks to compile programs for its CUDA devices through TVM; empty if nothing.

    TVM looks the same way: NVRTC through the package `cuda-bindings`, unless `TVM_CUDA_COMPILE_MODE` asks for
    `nvcc`, and the headers of CUDA's toolkit at `CUDA_PATH`, beside the `nvcc` on the path, or at its usual
    place.
    """
    nvcc = shutil.which("nvcc")
    beside = [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    root = Path(os.environ.get("CUDA_PATH", "") or (beside or ["/usr/local/cuda"])[0])
    headers = [path for place in ("include", "targets/*/include") for path in root.glob(place)]
    if not any((path / "cuda_runtime.h").is_file() for path in headers):
        return (
            f"no CUDA toolkit is at {root}, whose headers TVM needs to compile: install it, and put its nvcc "
            "on PATH or set CUDA_PATH to it"
        )
    has_nvrtc = find_spec("cuda") is not None and find_spec("cuda.bindings") is not None
    if os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower() == "nvrtc" and not has_nvrtc:
        package = "the Python package cuda-bindings is missing, through which TVM compiles"
        return f"{package}: pip install 'tensor-fleet[cuda]'"
    return ""


def make_device_files(uvm: Path = Path("/dev/nvidia-uvm")) -> None:
    """Make the driver's files in /dev where they are missing, as after a boot.

    CUDA does so when it starts, through a set-user-id program, which a confined process cannot use. The file
    `uvm` is the one that only CUDA needs.
    """
    program = shutil.which("nvidia-modprobe")
    if program is not None and not uvm.exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [program, "-u", "-c", "0"], capture_output=True, timeout=_PROGRAM_TIMEOUT_SECS, check=False
            )


def gpu_state(index: int) -> dict[str, Any]:
    """Read the clocks and the load of one CUDA device at this moment, through the management library only.

    The library is opened at the first call and stays open for the life of the process, because this is read
    with every record; a process that forks should therefore leave the first call to its children. `index` is
    as `cuda_devices` counts.

    Returns:
        What the card shows of `sm_clock_mhz`, `memory_clock_mhz`, `temperature_c`, `power_w`, `utilisation`
        (per cent of the last moment in which any program ran on it) and `throttle_reasons` (sorted names of
        what holds the clock down; `gpu_idle` is one). Empty without the library, a driver or that device.
    """
    nvml, handle = _open_nvml(), _nvml_handle(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if nvml is None or handle is None:
        return {}
    readers: dict[str, Callable[[], Any]] = {
        "sm_clock_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "temperature_c": lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "power_w": lambda: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, 1),
        "utilisation": lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        # Drivers before 535 know no other name of it, and newer ones still answer to this one.
        "throttle_reasons": lambda: throttle_reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }
    return _readable(nvml, readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMoment:
    """What the driver says of a GPU at one moment; clocks that the card does not show are 0."""

    sm_clock_mhz: int = 0
    memory_clock_mhz: int = 0
    #: What holds the clock down, as `gpu_state` names it.
    throttle_reasons: tuple[str, ...] = ()
    #: Whether a process other than ours computed there within the last second.
    has_other_process: bool = False


class GpuReader:
    """Reads moments of one CUDA device, for the gate around a repeat.

    Args:
        index: As `cuda_devices` counts.
        own_name: Name (`comm`) of the processes of ours, of which one computes at a time.
    """

    def __init__(self, index: int, own_name: str) -> None:
        self._index, self._own_name = index, own_name

    def __call__(self) -> GpuMoment:
        """Read this moment; nothing is known of it without the management library."""
        state = gpu_state(self._index)
        return GpuMoment(
            sm_clock_mhz=state.get("sm_clock_mhz", 0),
            memory_clock_mhz=state.get("memory_clock_mhz", 0),
            throttle_reasons=tuple(state.get("throttle_reasons", ())),
            has_other_process=any(map(self._is_other, computing_processes(self._index))),
        )

    def _is_other(self, pid: int) -> bool:
        """Whether a process is not ours; one that is not in sight may be ours under another number."""
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            return False
        return name != self._own_name


def computing_processes(index: int) -> list[int]:
    """Process ids, as the host counts them, that computed on a CUDA device within the last second.

    Empty if the management library, the driver or the card does not tell.
    """
    nvml, handle = _open_nvml(), _nvml_handle(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if nvml is None or handle is None:
        return []
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, int((time.time() - _LATELY_SECS) * 1e6))
    except nvml.NVMLError:
        # There was no sample meanwhile, or a virtual card has none.
        return []
    return sorted({int(sample.pid) for sample in samples if sample.smUtil > 0})


def reading_fault() -> str:
    """Why this host's CUDA devices cannot be found and read, and what to do; empty if they can."""
    if find_spec("pynvml") is None:
        return "the Python package nvidia-ml-py is missing: pip install 'tensor-fleet[cuda]'"
    return "" if _from_nvml() is not None else "NVIDIA's management library finds no driver"


def throttle_reasons(mask: int) -> list[str]:
    """Name the bits of NVML's throttle reasons, sorted; an unknown bit gets its number (`0x800`)."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return sorted(_THROTTLE_REASONS.get(bit, hex(bit)) for bit in bits)


def visible(devices: Sequence[dict[str, str]], setting: str | None) -> list[dict[str, str]]:
    """Apply `CUDA_VISIBLE_DEVICES` as CUDA does: the devices named, up to the first name that fits none.

    The devices are all those of the host in PCI bus order; the setting is None when it is not set.
    """
    if setting is None:
        return list(devices)
    chosen: list[dict[str, str]] = []
    for word in (part.strip() for part in setting.split(",")):
        if word.isdecimal() and int(word) < len(devices):
            chosen.append(devices[int(word)])
            continue
        fits = [device for device in devices if word.startswith("GPU-") and device["uuid"].startswith(word)]
        if len(fits) != 1:
            break
        chosen.extend(fits)
    return chosen


def _nvml() -> Any | None:
    """The management library, opened; None without its Python module or a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


#: The same for the life of this process.
_open_nvml = cache(_nvml)


@cache
def _nvml_handle(index: int, setting: str | None) -> Any | None:
    """Find the handle of one visible device by its unique id; None where there is no such device."""
    nvml = _open_nvml()
    devices = visible(_from_nvml() or (), setting)
    if nvml is None or not 0 <= index < len(devices):
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(devices[index]["uuid"])
    except nvml.NVMLError:
        return None


def _from_nvml() -> list[dict[str, str]] | None:
    """The devices by PCI bus, as the management library has them; None without its module or a driver."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        devices = [_nvml_device(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount())]
        # The library does not promise this order. Ids are hexadecimal of fixed width.
        return sorted(devices, key=lambda device: device["pci_bus_id"].lower())
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _nvml_device(nvml: Any, index: int, driver: str) -> dict[str, str]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    properties = {
        **_COMMON_LIMITS,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "arch": f"sm_{major}{minor}",
        "memory_bytes": str(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "pci_bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "driver": driver,
    }
    optional: dict[str, Callable[[], str]] = {
        "clock_max_mhz": lambda: str(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "persistence_mode": lambda: "on" if nvml.nvmlDeviceGetPersistenceMode(handle) else "off",
        "cuda_cores": lambda: str(nvml.nvmlDeviceGetNumGpuCores(handle)),
    }
    return properties | _readable(nvml, optional)


def _readable(nvml: Any, readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The facts that a card shows: laptops leave out the power, virtual cards the clocks, Jetsons more."""
    facts = {}
    for name, read in readers.items():
        with suppress(nvml.NVMLError, AttributeError):  # an older library lacks the whole function
            facts[name] = read()
    return facts


def _text(value: Any) -> str:
    """Older management libraries answer in bytes, newer ones in text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
