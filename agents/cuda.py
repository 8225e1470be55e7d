"""CUDA devices of this host, through NVIDIA's management library or its `nvidia-smi` program.

Called by `agents.probe`. No CUDA context is made and no CUDA library is loaded: a process that has done so
cannot fork workers that use the GPU. A host without a driver simply has no devices.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

# Limits that the CUDA C++ Programming Guide (table "Technical Specifications per Compute Capability") gives
# alike for every compute capability from 5.0 on; the management library does not report them. Shared memory
# is what a kernel gets without asking for more, and what TVM's own target tags name.
_COMMON_LIMITS = {
    "max_threads_per_block": "1024",
    "max_shared_memory_per_block": "49152",
    "thread_warp_size": "32",
}
_SMI_FIELDS = ("name", "uuid", "memory.total", "compute_cap", "clocks.max.sm", "driver_version", "pci.bus_id")
_SMI_TIMEOUT_SEC = 20.0


def cuda_devices(environ: Mapping[str, str] | None = None) -> tuple[dict[str, str], ...]:
    """List the CUDA devices that a program started with this environment may use.

    Args:
        environ: Environment variables; those of this process by default. `CUDA_VISIBLE_DEVICES` is obeyed.

    Returns:
        One mapping a device: `index` (ordinal among the visible ones in PCI bus order, which is CUDA's own
        order where `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set or all cards are alike), `name`, `uuid`, `arch`
        (`sm_90`), `memory_bytes`, `clock_max_mhz`, `driver`, `pci_bus_id`, and the three limits that a TVM
        target needs. Unknown values are left out. Empty without a driver.
    """
    environ = os.environ if environ is None else environ
    found = _from_nvml()
    if found is None:
        found = _from_smi(_run_smi())
    chosen = visible(found, environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple({"index": str(index), **device} for index, device in enumerate(chosen))


def visible(devices: Sequence[dict[str, str]], setting: str | None) -> list[dict[str, str]]:
    """Apply `CUDA_VISIBLE_DEVICES` as CUDA does: the devices named, up to the first name that fits none.

    Args:
        devices: All devices of the host in PCI bus order, each with its `uuid`.
        setting: Value of the variable; None when it is not set.
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


def _describe(name: str, uuid: str, capability: str, known: Mapping[str, str]) -> dict[str, str]:
    arch = "sm_" + capability.replace(".", "") if capability else ""
    described = {"name": name, "uuid": uuid, "arch": arch, **known, **_COMMON_LIMITS}
    return {key: value for key, value in described.items() if value}


def _from_nvml() -> list[dict[str, str]] | None:
    """Ask the management library; None where its Python module or the driver is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return [_nvml_device(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _nvml_device(nvml: Any, index: int, driver: str) -> dict[str, str]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    known = {
        "memory_bytes": str(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "pci_bus_id": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "driver": driver,
    }
    try:
        known["clock_max_mhz"] = str(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    except nvml.NVMLError:
        # Boards of the Jetson line do not offer this one.
        known["clock_max_mhz"] = ""
    name = _text(nvml.nvmlDeviceGetName(handle))
    return _describe(name, _text(nvml.nvmlDeviceGetUUID(handle)), f"{major}.{minor}", known)


def _text(value: Any) -> str:
    """Older management libraries answer in bytes, newer ones in text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _run_smi() -> str:
    """Run `nvidia-smi`; empty where it is absent or finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_SEC, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _from_smi(text: str) -> list[dict[str, str]]:
    """Read the table of `nvidia-smi` (fields of `_SMI_FIELDS`, memory in MiB); odd lines are left out."""
    devices = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(_SMI_FIELDS):
            continue
        fields = {
            name: "" if value.strip().startswith("[") else value.strip()
            for name, value in zip(_SMI_FIELDS, row, strict=True)
        }
        memory = fields["memory.total"]
        known = {
            "memory_bytes": str(int(memory) << 20) if memory.isdecimal() else "",
            "pci_bus_id": fields["pci.bus_id"],
            "driver": fields["driver_version"],
            "clock_max_mhz": fields["clocks.max.sm"],
        }
        devices.append(_describe(fields["name"], fields["uuid"], fields["compute_cap"], known))
    return devices
