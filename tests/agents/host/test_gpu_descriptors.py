"""What a GPU is, as numbers: from the driver, a log or a data sheet into the hardware vector."""

from __future__ import annotations

import numpy as np
import pytest

from agents.records import DeviceId
from fleet.interchange.logs.targets import Machine, device_from_log, gpu_target
from transfer.features.hardware import HARDWARE_NAMES, hardware_vector

A100 = {"name": "NVIDIA A100-PCIE-40GB", "uuid": "GPU-1", "arch": "sm_80", "clock_max_mhz": "1410"}
T4 = {"name": "Tesla T4", "uuid": "GPU-2", "arch": "sm_75", "clock_max_mhz": "1590", "pci_bus_id": "1"}


def vector(name: str, device: str = "board") -> np.ndarray:
    machine = Machine(gpu_target(name), device_name=name)
    return hardware_vector(*device_from_log(DeviceId(device), machine))


def slot(values: np.ndarray, name: str) -> float:
    return float(values[HARDWARE_NAMES.index(name)])


def test_logged_gpus_are_told_apart() -> None:
    names = ("NVIDIA A100-PCIE-40GB", "NVIDIA RTX A4000", "AMD Radeon PRO W6600")
    found = [vector(name) for name in names] + [vector("", "mi250x")]
    assert len({one.tobytes() for one in found}) == 4
    assert slot(found[0], "physical_cores") == pytest.approx(np.log2(109))
    assert [slot(one, "is_gpu") for one in found] == [1.0] * 4
    assert [slot(one, "arch_x86") for one in found] == [1.0, 1.0, 0.0, 0.0]
    assert slot(found[0], "cache_line_bytes") > slot(found[1], "cache_line_bytes")


def test_numbers_of_a_stranger_are_bounded() -> None:
    machine = Machine(gpu_target(""), device_facts=(("compute_units", "nan"), ("peak_flops", "1e999")))
    assert np.isfinite(hardware_vector(*device_from_log(DeviceId("x"), machine))).all()
