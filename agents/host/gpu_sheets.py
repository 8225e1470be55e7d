"""What public data sheets say of GPUs, by the name that a driver or a log gives them.

For devices that exist in logs only, and for what a driver does not report. A name that no row fits gives
nothing: such a device is described by what was measured. Called by `agents.host.probe` and by the readers of
logs. No library of a GPU is loaded.
"""

from __future__ import annotations

import re
from functools import cache

# A row a GPU, the first that fits counts: pattern of its names; architecture, streaming multiprocessors or
# compute units, boost clock (MHz), memory bandwidth (GB/s), memory (GiB), L2 (MiB), shared memory of a unit
# (KiB), vector registers of a unit (KiB), threads of a warp or wavefront, peak of 32-bit floats without
# matrix units (TFLOP/s); title of the document that publishes the numbers. Rows of A100 (40 GB), A4000, A10,
# A40, T4, MI250X, RX 480, MI50 and MI60 were compared with independent lists of specifications, the others
# not yet. An Instinct MI250X is two devices to a program: its row describes one of them, half of the sheet's
# numbers. Rows of AMD also fit what MIOpen names its databases after: architecture, and what the driver
# counts, which for RDNA are pairs of compute units.
_TABLE = r"""
p100 ; sm_60 56 1303 732 16 4 64 256 32 9.3 ; NVIDIA Tesla P100 GPU Accelerator data sheet
v100.*pcie ; sm_70 80 1380 900 16 6 96 256 32 14 ; NVIDIA V100 Tensor Core GPU data sheet
v100 ; sm_70 80 1530 900 16 6 96 256 32 15.7 ; NVIDIA V100 Tensor Core GPU data sheet
titan rtx ; sm_75 72 1770 672 24 6 64 256 32 16.3 ; NVIDIA Turing GPU Architecture white paper
(tesla|nvidia) t4 ; sm_75 40 1590 320 16 4 64 256 32 8.1 ; NVIDIA T4 Tensor Core GPU data sheet
rtx 2080 ti ; sm_75 68 1545 616 11 5.5 64 256 32 13.4 ; NVIDIA Turing GPU Architecture white paper
gtx 1650 ; sm_75 14 1665 128 4 1 64 256 32 3 ; NVIDIA GeForce GTX 1650 specifications
a100.(80gb|pcie).*(80gb|pcie) ; sm_80 108 1410 1935 80 40 164 256 32 19.5 ; NVIDIA A100 GPU data sheet
a100.*80gb ; sm_80 108 1410 2039 80 40 164 256 32 19.5 ; NVIDIA A100 GPU data sheet
a100 ; sm_80 108 1410 1555 40 40 164 256 32 19.5 ; NVIDIA A100 Tensor Core GPU Architecture white paper
a30\b ; sm_80 56 1440 933 24 24 164 256 32 10.3 ; NVIDIA A30 Tensor Core GPU data sheet
a10\b ; sm_86 72 1695 600 24 6 100 256 32 31.2 ; NVIDIA A10 Tensor Core GPU data sheet
a40\b ; sm_86 84 1740 696 48 6 100 256 32 37.4 ; NVIDIA A40 data sheet
a4000 ; sm_86 48 1560 448 16 4 100 256 32 19.2 ; NVIDIA RTX A4000 data sheet
a5000 ; sm_86 64 1695 768 24 6 100 256 32 27.8 ; NVIDIA RTX A5000 data sheet
rtx a6000 ; sm_86 84 1800 768 48 6 100 256 32 38.7 ; NVIDIA RTX A6000 data sheet
rtx 3060(?! ti) ; sm_86 28 1777 360 12 3 100 256 32 12.7 ; NVIDIA GeForce RTX 3060 specifications
rtx 3090(?! ti) ; sm_86 82 1695 936 24 6 100 256 32 35.6 ; NVIDIA Ampere GA102 GPU Architecture white paper
l4\b ; sm_89 58 2040 300 24 48 100 256 32 30.3 ; NVIDIA L4 Tensor Core GPU data sheet
l40s ; sm_89 142 2520 864 48 96 100 256 32 91.6 ; NVIDIA L40S data sheet
rtx 4090 ; sm_89 128 2520 1008 24 72 100 256 32 82.6 ; NVIDIA Ada GPU Architecture white paper
h200 ; sm_90 132 1980 4800 141 50 228 256 32 67 ; NVIDIA H200 Tensor Core GPU data sheet
h100.*pcie ; sm_90 114 1755 2000 80 50 228 256 32 51 ; NVIDIA H100 Tensor Core GPU data sheet
h100 ; sm_90 132 1980 3350 80 50 228 256 32 67 ; NVIDIA H100 Tensor Core GPU data sheet
mi100\b|gfx908 120\b ; gfx908 120 1502 1229 32 8 64 512 64 23.1 ; AMD Instinct MI100 Accelerator brochure
mi210\b|gfx90a 104\b ; gfx90a 104 1700 1638 64 8 64 512 64 22.6 ; AMD Instinct MI210 Accelerator data sheet
mi250x\b|gfx90a 110\b ; gfx90a 110 1700 1638 64 8 64 512 64 23.9 ; AMD Instinct MI250X Accelerator data sheet
mi300x\b ; gfx942 304 2100 5300 192 32 64 512 64 163.4 ; AMD Instinct MI300X Accelerator data sheet
rx 480\b|gfx803 36\b ; gfx803 36 1266 256 8 2 64 256 64 5.8 ; AMD Radeon RX 480 specifications
vega 56\b|gfx900 56\b ; gfx900 56 1471 410 8 4 64 256 64 10.5 ; AMD Radeon RX Vega 56 specifications
mi50\b|gfx906 60\b ; gfx906 60 1725 1024 16 4 64 256 64 13.4 ; AMD Radeon Instinct MI50 data sheet
mi60\b|gfx906 64\b ; gfx906 64 1800 1024 32 4 64 256 64 14.8 ; AMD Radeon Instinct MI60 data sheet
rx 6800 xt|gfx1030 36\b ; gfx1030 72 2250 512 16 4 64 256 32 20.7 ; AMD Radeon RX 6800 XT specifications
w6600\b ; gfx1032 28 2903 224 8 2 64 256 32 10.4 ; AMD Radeon PRO W6600 data sheet
7900 xtx ; gfx1100 96 2500 960 24 6 64 384 32 61.4 ; AMD Radeon RX 7900 XTX specifications
"""
#: Names of the numbers after the architecture, and the unit of each.
_NUMBERS = (
    ("compute_units", 1),
    ("clock_max_mhz", 1),
    ("memory_bytes_per_sec", 1e9),
    ("memory_bytes", 1 << 30),
    ("l2_bytes", 1 << 20),
    ("shared_bytes_per_unit", 1 << 10),
    ("register_bytes_per_unit", 1 << 10),
    ("thread_warp_size", 1),
    ("peak_flops", 1e12),
)
_LONGEST_NAME = 256


@cache
def _rows() -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    rows = []
    for line in _TABLE.strip().splitlines():
        names, numbers, source = line.split(" ; ")
        arch, *values = numbers.split()
        facts = {
            name: str(round(float(value) * unit))
            for (name, unit), value in zip(_NUMBERS, values, strict=True)
        }
        pattern = re.compile(rf"\b(?:{names})(?!\d)")
        rows.append((pattern, {"arch": arch, **facts, "sheet": source}))
    return tuple(rows)


def gpu_sheet(name: str) -> dict[str, str]:
    """What the data sheet of a GPU says, named as the driver or a log has it; an id that holds that will do.

    Returns:
        `arch`, `compute_units`, `clock_max_mhz`, `memory_bytes_per_sec`, `memory_bytes`, `l2_bytes`,
        `shared_bytes_per_unit`, `register_bytes_per_unit`, `thread_warp_size`, `peak_flops` and `sheet`, the
        title of the document. Empty for a name that no row fits.
    """
    words = re.sub(r"[_\-]+", " ", name[:_LONGEST_NAME].lower())
    return dict(next((facts for pattern, facts in _rows() if pattern.search(words)), {}))
