"""What a device is, as numbers: the hardware vector beside the features of its candidates.

The vector describes the *target* that programs are built for, on the host they run on: two instruction-set
profiles of one box share their caches and differ in their vectors. Called by `transfer.data` and at
onboarding; knows nothing of programs or models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agents.records import ANSOR_HARDWARE_PARAMS, Descriptor, DeviceSpec, Family
from transfer.arrays import Floats, Ints, Singles

HARDWARE_NAMES: tuple[str, ...] = (
    "threads",
    "physical_cores",
    "logical_cores",
    "smt",
    "clock_mhz",
    "l1d_bytes",
    "l2_bytes",
    "l3_bytes",
    "cache_line_bytes",
    "memory_bytes",
    "host_vector_bytes",
    "target_vector_bytes",
    "target_fma",
    "target_avx512",
    "target_ternary_ops",
    "arch_x86",
    "arch_arm",
    "arch_other",
    "is_gpu",
    *(f"ansor_{name}" for name in ANSOR_HARDWARE_PARAMS),
)
#: What the canaries measured, behind those names (`Descriptor.roofline`). Imported devices have none, and
#: `hardware_table` leaves them out where not every device has them.
MEASURED_NAMES: tuple[str, ...] = ("flops_per_sec", "bytes_per_sec", "loads_per_sec")
#: Slots of a vector without measured numbers, and with them.
WIDTHS = (len(HARDWARE_NAMES), len(HARDWARE_NAMES) + len(MEASURED_NAMES))


#: What the slots hold of a GPU whose descriptor tells of the card itself (`compute_units`); CPUs and GPUs
#: share no backbone. A GPU whose card is not known has the vector of its host.
GPU_SLOTS: dict[str, str] = {
    "physical_cores": "compute_units",
    "logical_cores": "peak_flops",
    "clock_mhz": "clock_max_mhz",
    "l1d_bytes": "shared_bytes_per_unit",
    "l2_bytes": "l2_bytes",
    "l3_bytes": "register_bytes_per_unit",
    "cache_line_bytes": "memory_bytes_per_sec",
    "memory_bytes": "memory_bytes",
    "host_vector_bytes": "thread_warp_size",
}
#: Which maker's architecture, in the slots of the host's.
_GPU_MAKERS = (("arch_x86", "sm_"), ("arch_arm", "gfx"))
#: Slots that devices of one maker share, and those that devices of one architecture share beside them.
_OF_MAKER = ("is_gpu", "arch_x86", "arch_arm", "arch_other")
_OF_ARCHITECTURE = (
    "host_vector_bytes",
    "target_vector_bytes",
    "target_fma",
    "target_avx512",
    "target_ternary_ops",
    "l1d_bytes",
    "l3_bytes",
)


class Isa(NamedTuple):
    """What the code generator may use under one target."""

    #: Widest vector register, in bytes.
    vector_bytes: int
    #: Fused multiply-add.
    fma: bool
    avx512: bool
    #: Three-operand vector instructions (AVX and later, Arm): no copies to save an operand.
    ternary_ops: bool


_SSE = Isa(16, False, False, False)
_AVX = Isa(32, False, False, True)
_AVX2 = Isa(32, True, False, True)
_AVX512 = Isa(64, True, True, True)
_NEON = Isa(16, True, False, True)
_SVE256 = Isa(32, True, False, True)
_SVE512 = Isa(64, True, False, True)

# CPU names of LLVM (`llc -mcpu=help`) by the widest instruction set that LLVM's tables give them
# (llvm/lib/Target/X86/X86.td, llvm/lib/Target/AArch64/AArch64Processors.td).
_ISA_NAMES: tuple[tuple[Isa, str], ...] = (
    (
        _SSE,
        "x86-64 x86-64-v2 generic-x86 k8 core2 penryn nehalem westmere corei7 silvermont goldmont "
        "goldmont-plus tremont bonnell atom btver1 amdfam10 barcelona",
    ),
    (_AVX, "sandybridge ivybridge corei7-avx core-avx-i btver2 bdver1"),
    (
        _AVX2,
        "x86-64-v3 haswell broadwell skylake core-avx2 alderlake raptorlake meteorlake arrowlake "
        "arrowlake-s lunarlake pantherlake gracemont sierraforest grandridge clearwaterforest bdver2 bdver3 "
        "bdver4 znver1 znver2 znver3",
    ),
    (
        _AVX512,
        "x86-64-v4 skylake-avx512 skx cascadelake cooperlake cannonlake icelake-client icelake-server "
        "tigerlake rocketlake sapphirerapids emeraldrapids graniterapids graniterapids-d diamondrapids knl "
        "knm znver4 znver5",
    ),
    (
        _NEON,
        "generic cortex-a34 cortex-a35 cortex-a53 cortex-a55 cortex-a57 cortex-a65 cortex-a72 cortex-a73 "
        "cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78c cortex-a510 cortex-a520 "
        "cortex-a710 cortex-a715 cortex-a720 cortex-x1 cortex-x1c cortex-x2 cortex-x3 cortex-x4 "
        "neoverse-e1 neoverse-n1 neoverse-n2 neoverse-n3 neoverse-v2 neoverse-v3 grace ampere1 ampere1a "
        "ampere1b apple-a12 apple-a13 apple-a14 apple-a15 apple-a16 apple-a17 apple-m1 apple-m2 apple-m3 "
        "apple-m4 carmel kryo falkor saphira thunderx thunderx2t99 thunderx3t110 tsv110 exynos-m3 exynos-m4 "
        "exynos-m5 oryon-1",
    ),
    (_SVE256, "neoverse-v1 neoverse-512tvb"),
    (_SVE512, "a64fx"),
)
_ISA_OF = {name: isa for isa, names in _ISA_NAMES for name in names.split()}


def target_isa(target: dict[str, Any], descriptor: Descriptor) -> Isa:
    """Instruction set that a TVM target lets its programs use.

    A CPU name outside the table, `native`, or none at all falls back on the host's own flags; `mattr`
    entries (`+avx2`, `-fma`) are applied on top.

    Args:
        target: TVM target as a dictionary.
        descriptor: Host on which the programs run.
    """
    name = str(target.get("mcpu") or "")
    x86 = _is_x86(descriptor)
    if not name and x86 and target.get("kind") == "llvm" and target.get("mattr") is None:
        isa = _SSE  # LLVM's own default for x86-64 without a CPU name
    elif name == "generic" and x86:
        isa = _SSE
    else:
        isa = _ISA_OF.get(name) or _host_isa(descriptor)
    attributes = target.get("mattr") or ()
    if isinstance(attributes, str):
        attributes = attributes.split(",")
    # Targets of imported logs hold whatever a stranger wrote.
    for word in attributes if isinstance(attributes, list) else ():
        isa = _with_attribute(isa, str(word).strip())
    return isa


def _host_isa(descriptor: Descriptor) -> Isa:
    """Instruction set of the host itself."""
    flags = set(descriptor.isa_flags)
    if not _is_x86(descriptor):
        return _NEON._replace(vector_bytes=max(descriptor.vector_bytes, 16 if _is_arm(descriptor) else 0))
    return Isa(
        descriptor.vector_bytes,
        "fma" in flags,
        "avx512f" in flags,
        bool(flags & {"avx", "avx2", "avx512f"}),
    )


def _with_attribute(isa: Isa, word: str) -> Isa:
    """Apply one LLVM feature switch."""
    switch, feature = word[:1], word[1:]
    on = switch == "+"
    if switch not in ("+", "-"):
        return isa
    if feature == "fma":
        return isa._replace(fma=on)
    if feature == "avx512f":
        return (
            isa._replace(vector_bytes=64, avx512=True, ternary_ops=True)
            if on
            else isa._replace(vector_bytes=min(isa.vector_bytes, 32), avx512=False)
        )
    if feature in ("avx", "avx2"):
        if on:
            return isa._replace(vector_bytes=max(isa.vector_bytes, 32), ternary_ops=True)
        if feature == "avx":
            return _SSE
    return isa


def _is_x86(descriptor: Descriptor) -> bool:
    return descriptor.arch.lower() in ("x86_64", "amd64", "x86", "i386", "i686")


def _is_arm(descriptor: Descriptor) -> bool:
    return descriptor.arch.lower().startswith(("aarch64", "arm"))


def hardware_vector(spec: DeviceSpec, descriptor: Descriptor) -> Singles:
    """Describe one device; sizes, counts and clocks as log2(1 + x), unknown ones as 0.

    Args:
        spec: What the YAML of the device claims; gives target and threads.
        descriptor: What the probe saw on its host, and of its GPU.

    Returns:
        (H,) values in the order of `HARDWARE_NAMES`, of GPUs as in `GPU_SLOTS`; then of `MEASURED_NAMES`.
    """
    card = card_of(spec, descriptor)
    claimed = _gpu_vector(card) if "compute_units" in card else _host_vector(spec, descriptor)
    speeds = dict(descriptor.roofline)
    measured = [_log(speeds.get(name, 0.0)) for name in MEASURED_NAMES]
    return np.concatenate([claimed, np.array(measured, dtype=np.float32)])


def hardware_table(vectors: Sequence[Singles]) -> Singles:
    """(D, H) vectors of several devices, with measured numbers only where each device has all of them.

    Half of a column unknown would tell who was measured, and not how fast it is.

    Args:
        vectors: Of each device, with the measured numbers or without.
    """
    named, whole = WIDTHS
    if all(len(vector) == whole and vector[named:].all() for vector in vectors):
        return np.stack(vectors)
    return np.stack([vector[:named] if len(vector) in WIDTHS else vector for vector in vectors])


def vector_distances(hardware: Singles, own: int) -> Floats:
    """(D,) distances of (D, H) hardware vectors to that of row `own`.

    Each slot is in units of its spread over all devices.
    """
    spread = hardware.std(axis=0)
    # A slot with one value for all devices tells nothing; float32 noise must not be blown up.
    used = spread > 1e-6 * np.maximum(1.0, np.abs(hardware).max(axis=0))
    scaled = hardware[:, used] / spread[used] / np.sqrt(max(1, int(used.sum())))
    return np.asarray(np.linalg.norm(scaled - scaled[own], axis=1), dtype=np.float64)


def kinship_steps(hardware: Singles) -> Ints:
    """(D, D) steps between devices of (D, H) vectors: 0 in an architecture, 1 within a maker, 2 beyond.

    Number of cores, clock and bandwidth make no step: they change how fast all candidates are, and less which
    one is the fastest. A GPU's architecture shows in what each of its units has. Vectors of
    another width than `WIDTHS` make no step.
    """
    steps = np.zeros((len(hardware), len(hardware)), dtype=np.int64)
    for names in (_OF_MAKER, _OF_ARCHITECTURE) if hardware.shape[1] in WIDTHS else ():
        slots = hardware[:, [HARDWARE_NAMES.index(name) for name in names]]
        steps += (np.abs(slots[:, None] - slots[None]) > 1e-3).any(axis=2) | (steps > 0)
    return steps


def fitted_hardware(vector: Singles, width: int) -> Singles:
    """(..., width) vectors as a model with or without the measured numbers reads them.

    Numbers that it does not read are cut off, those that nobody measured are NaN, which trees take as
    unknown. Another width stays as it is: the model says what is wrong.
    """
    length = vector.shape[-1]
    if length == width or length not in WIDTHS or width not in WIDTHS:
        return vector
    if length > width:
        return vector[..., :width]
    unknown = np.full((*vector.shape[:-1], width - length), np.nan, dtype=np.float32)
    return np.concatenate([vector, unknown], axis=-1)


def _host_vector(spec: DeviceSpec, descriptor: Descriptor) -> Singles:
    isa = target_isa(spec.target, descriptor)
    x86, arm = _is_x86(descriptor), _is_arm(descriptor)
    ansor = (*descriptor.ansor_params, *(0,) * len(ANSOR_HARDWARE_PARAMS))[: len(ANSOR_HARDWARE_PARAMS)]
    values = (
        _log(spec.threads),
        _log(descriptor.physical_cores),
        _log(descriptor.logical_cores),
        float(descriptor.smt),
        _log(descriptor.clock_max_mhz or descriptor.clock_now_mhz),
        _log(descriptor.l1d_bytes),
        _log(descriptor.l2_bytes),
        _log(descriptor.l3_bytes),
        _log(descriptor.cache_line_bytes),
        _log(descriptor.memory_bytes),
        _log(descriptor.vector_bytes),
        _log(isa.vector_bytes),
        float(isa.fma),
        float(isa.avx512),
        float(isa.ternary_ops),
        float(x86),
        float(arm),
        float(not x86 and not arm),
        float(spec.family is Family.GPU),
        *(_log(value) for value in ansor),
    )
    return np.array(values, dtype=np.float32)


def card_of(spec: DeviceSpec, descriptor: Descriptor) -> dict[str, str]:
    """What a descriptor says of the GPU of a spec; empty for CPUs and where it says nothing."""
    listed = descriptor.cuda_devices
    if spec.target.get("kind") == "rocm" and descriptor.rocm_devices:
        listed = descriptor.rocm_devices
    cards = [dict(pairs) for pairs in listed]
    if spec.family is not Family.GPU or not cards:
        return {}
    return next((card for card in cards if card.get("index", "") == str(spec.index)), cards[0])


def _gpu_vector(card: dict[str, str]) -> Singles:
    """The vector of a GPU; sizes as log2(1 + x), unknown ones as 0."""
    values = {slot: _log(_number(card.get(name, ""))) for slot, name in GPU_SLOTS.items()}
    arch = card.get("arch", "")
    makers = {slot: float(arch.startswith(prefix)) for slot, prefix in _GPU_MAKERS}
    values |= makers | {"arch_other": float(not any(makers.values())), "is_gpu": 1.0, "target_fma": 1.0}
    return np.array([values.get(name, 0.0) for name in HARDWARE_NAMES], dtype=np.float32)


def _number(text: str) -> float:
    """A number that a descriptor or a stranger's log wrote; 0 where it is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def _log(value: float) -> float:
    """log2(1 + value) of a size; 0 where it is unknown or not a number."""
    try:
        return math.log2(1.0 + value) if value > 0 and math.isfinite(value) else 0.0
    except OverflowError:  # a whole number of a stranger that no float holds
        return 0.0
