"""AMD's GPUs from what ROCm's programs print: texts of the documented form with ids that are made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agents.host import rocm
from tests.scenario_fixtures import check_facts

ROCMINFO = """\
ROCk module is loaded
=====================
HSA System Attributes
=====================
Runtime Version:         1.14
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD EPYC 7A53 64-Core Processor
  Uuid:                    CPU-XX
  Marketing Name:          AMD EPYC 7A53 64-Core Processor
  Device Type:             CPU
  Max Clock Freq. (MHz):   2000
  BDFID:                   0
  Compute Unit:            64
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: FINE GRAINED
      Size:                    131797696(0x7db12c0) KB
*******
Agent 2
*******
  Name:                    gfx90a
  Uuid:                    GPU-0000000000000001
  Marketing Name:          AMD Instinct MI250X
  Vendor Name:             AMD
  Device Type:             GPU
  Cache Info:
    L1:                      16(0x10) KB
    L2:                      8192(0x2000) KB
  Chip ID:                 29704(0x7408)
  Cacheline Size:          128(0x80)
  Max Clock Freq. (MHz):   1700
  BDFID:                   49408
  Compute Unit:            110
  SIMDs per CU:            4
  Wavefront Size:          64(0x40)
  Workgroup Max Size:      1024(0x400)
  Workgroup Max Size per Dimension:
    x                        1024(0x400)
  Max Waves Per CU:        32(0x20)
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    67092480(0x3ffc000) KB
      Allocatable:             TRUE
    Pool 2
      Segment:                 GROUP
      Size:                    64(0x40) KB
      Allocatable:             FALSE
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
      Workgroup Max Size:      1024(0x400)
*******
Agent 3
*******
  Name:                    gfx1032
  Uuid:                    GPU-XX
  Marketing Name:          AMD Radeon PRO W6600
  Vendor Name:             AMD
  Device Type:             GPU
  Cache Info:
    L1:                      16(0x10) KB
    L2:                      2048(0x800) KB
  Max Clock Freq. (MHz):   2903
  BDFID:                   768
  Compute Unit:            28
  Wavefront Size:          32(0x20)
  Workgroup Max Size:      1024(0x400)
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    8372224(0x7fc000) KB
    Pool 2
      Segment:                 GROUP
      Size:                    64(0x40) KB
  ISA Info:
*** Done ***
"""
ROCM_SMI = (
    'WARNING: AMD GPU device(s) is/are in a low-power state.\n{"system": {"Driver version": "6.2.4"}}\n'
)


def printed(info: str, smi: str = "") -> list[dict[str, str]]:
    def run(command: Sequence[str]) -> str:
        return {"rocminfo": info, "rocm-smi": smi}[command[0]]

    return list(rocm.rocm_devices(run))


#: Bus, device and function are as `lspci` and `rocm-smi` write them; speeds of memory are of data sheets.
GPUS = """
    0.index = "0"
    0.arch = gfx90a
    0.compute_units = "110"
    0.thread_warp_size = "64"
    0.memory_bytes = "68702699520"
    0.l2_bytes = "8388608"
    0.shared_bytes_per_unit = "65536"
    0.max_threads_per_block = "1024"
    0.pci_bus_id = "0000:C1:00.0"
    0.driver = 6.2.4
    0.memory_bytes_per_sec = "1638000000000"
    1.index = "1"
    1.pci_bus_id = "0000:03:00.0"
    1.driver = 6.2.4
    1.memory_bytes_per_sec = "224000000000"
"""


def test_each_gpu_is_described_and_processors_are_not() -> None:
    described = printed(ROCMINFO, ROCM_SMI)
    check_facts(described, GPUS)
    # TFLOP/s that AMD publishes: 23.9 of one half of an MI250X, 10.4 of a W6600.
    peaks = [float(one["peak_flops"]) / 1e12 for one in described]
    assert peaks == pytest.approx([23.9, 10.4], rel=0.01)


@pytest.mark.parametrize(
    "info", ["", "ROCk module is NOT loaded, possibly no GPU devices", "Agent 1\nDevice Type: GP"]
)
def test_a_host_without_them_has_none(info: str) -> None:
    assert printed(info, "{") == []


@pytest.mark.parametrize("smi", ["", "{", "[1]", '{"system": 3}', '{"card0": {}}', "[" * 100_000])
def test_an_odd_answer_about_the_driver_only_leaves_it_out(smi: str) -> None:
    [first, _] = printed(ROCMINFO, smi)
    assert "driver" not in first
    assert first["arch"] == "gfx90a"


def test_what_neither_sheet_nor_driver_tells_is_left_out() -> None:
    text = ROCMINFO.replace("MI250X", "of tomorrow")
    [first, _] = printed(text)
    assert first["compute_units"] == "110"
    assert not {"memory_bytes_per_sec", "sheet"} & first.keys()
    [first, _] = printed(text.replace("110", "many").replace("8192(0x2000) KB", "-1"))
    assert not {"compute_units", "peak_flops", "l2_bytes"} & first.keys()
    assert first["clock_max_mhz"] == "1700"
