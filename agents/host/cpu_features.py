"""Instruction sets: what the CPU named in a target must offer, in the words of `/proc/cpuinfo`.

LLVM does not refuse a target that its host cannot run: the program is built and dies of an illegal
instruction, or, if the name is unknown, is silently built for the oldest CPU. So the fleet checks first.
Called by `agents.host.probe` (does the host keep what the YAML claims?) and by `fleet.config.init` (which
profiles can this host execute?). Knows names and flags only, no host and no file.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

X86_64 = "x86_64"
AARCH64 = "aarch64"

_ARCH_NAMES = {"x86_64": X86_64, "amd64": X86_64, "x86-64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}


@dataclass(frozen=True, slots=True)
class IsaLevel:
    """One instruction-set level that a CPU keeps whole or does not keep."""

    #: Name of the level; for x86-64 also the LLVM name (`mcpu`).
    name: str
    #: `x86_64` or `aarch64`.
    arch: str
    #: LLVM's `mcpu` for programs of this level.
    mcpu: str
    #: Flags of `/proc/cpuinfo` that the CPU must list, those of lower levels included.
    flags: frozenset[str]


# Levels of the x86-64 psABI, table 3.1, in the spelling of /proc/cpuinfo: SSE3 is `pni`, LZCNT is `abm`,
# LAHF-SAHF is `lahf_lm`, CMPXCHG16B is `cx16`, OSXSAVE shows as `xsave`.
_V1 = frozenset({"cmov", "cx8", "fpu", "fxsr", "mmx", "sse", "sse2"})
_V2 = _V1 | {"cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"}
# LLVM's sandybridge also names xsaveopt, which no compiled program uses and hypervisors often hide.
_SANDYBRIDGE = _V2 | {"avx", "pclmulqdq", "xsave"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

#: Levels with a name of their own, weakest first within an architecture.
LEVELS = (
    IsaLevel("x86-64", X86_64, "x86-64", _V1),
    IsaLevel("x86-64-v2", X86_64, "x86-64-v2", _V2),
    IsaLevel("sandybridge", X86_64, "sandybridge", _SANDYBRIDGE),
    IsaLevel("x86-64-v3", X86_64, "x86-64-v3", _V3),
    IsaLevel("x86-64-v4", X86_64, "x86-64-v4", _V4),
    IsaLevel("aarch64-generic", AARCH64, "generic", frozenset({"fp", "asimd"})),
)

# LLVM's feature name -> flag of /proc/cpuinfo, for the features that generated arithmetic and memory code
# may use. Features of the system (pku, shstk, mwaitx) and of tuning (fast-gather) are left out: a virtual
# machine may hide the first, and the second are no instructions.
# The first lines list those that have one name in both.
_X86_SAME = (
    "adx avx avx2 avx512bw avx512cd avx512dq avx512f avx512ifma avx512vbmi avx512vl bmi2 cmov cx16 cx8 "
    "f16c fma fma4 fxsr gfni mmx movbe popcnt sse sse2 sse4a ssse3 tbm vaes vpclmulqdq xop xsave"
)
_X86_FEATURES = {
    **{name: name for name in _X86_SAME.split()},
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx512bf16": "avx512_bf16",
    "avx512bitalg": "avx512_bitalg",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sahf": "lahf_lm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "x87": "fpu",
}
_AARCH64_SAME = "aes bf16 i8mm sha2 sha3 sme sve sve2"
_AARCH64_FEATURES = {
    **{name: name for name in _AARCH64_SAME.split()},
    "complxnum": "fcma",
    "crc": "crc32",
    "dotprod": "asimddp",
    "fp-armv8": "fp",
    "fp16fml": "asimdfhm",
    "fullfp16": "asimdhp",
    "jsconv": "jscvt",
    "lse": "atomics",
    "neon": "asimd",
    "rcpc": "lrcpc",
    "rdm": "asimdrdm",
}
_FEATURES = {X86_64: _X86_FEATURES, AARCH64: _AARCH64_FEATURES}

#: AArch64 features that change how tensor programs are vectorised, in LLVM's names, in the order in which
#: the architecture added them. A profile of the host's own CPU lists those that it has.
TENSOR_FEATURES = (
    *("neon", "crc", "lse", "rdm", "fullfp16", "dotprod", "fp16fml", "i8mm", "bf16"),
    *("sve", "sve2"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a target asks of a CPU."""

    #: `x86_64`, `aarch64`, another architecture's name, or empty when the target does not say.
    arch: str
    #: Flags of `/proc/cpuinfo` that must be there.
    flags: frozenset[str]
    #: Names in `mcpu` or `mattr` that the tables here do not hold; only LLVM can judge them.
    unlisted: tuple[str, ...] = ()


def normal_arch(name: str) -> str:
    """Give one spelling to an architecture (`amd64` is `x86_64`, `arm64` is `aarch64`)."""
    return _ARCH_NAMES.get(name.lower(), name.lower())


def runnable_levels(arch: str, flags: Collection[str]) -> tuple[IsaLevel, ...]:
    """List the levels that a CPU with these `/proc/cpuinfo` flags can execute, weakest first."""
    have = frozenset(flags)
    return tuple(level for level in LEVELS if level.arch == normal_arch(arch) and level.flags <= have)


def flags_of_features(arch: str, features: Iterable[str]) -> frozenset[str]:
    """Translate LLVM features to `/proc/cpuinfo` flags; those that code cannot need are dropped."""
    table = _FEATURES.get(normal_arch(arch), {})
    return frozenset(table[feature] for feature in features if feature in table)


def tensor_features(flags: Collection[str]) -> tuple[str, ...]:
    """List the features of `TENSOR_FEATURES` that an AArch64 CPU with these flags has."""
    return tuple(feature for feature in TENSOR_FEATURES if _AARCH64_FEATURES[feature] in flags)


def vector_bytes(arch: str, flags: Collection[str], sve_bytes: int = 0) -> int:
    """Give the width in bytes of the widest vector register; 0 for an architecture that is not known.

    No `/proc/cpuinfo` flag tells the width of a scalable vector: that is `sve_bytes` (0: unknown).
    """
    if normal_arch(arch) == X86_64:
        widths = {"avx512f": 64, "avx": 32, "sse2": 16}
        return max((width for flag, width in widths.items() if flag in flags), default=0)
    if normal_arch(arch) == AARCH64:
        neon = 16 if "asimd" in flags else 0
        return max(neon, sve_bytes) if "sve" in flags else neon
    return 0


def requirement(target: Mapping[str, Any], host_arch: str) -> Requirement:
    """Read off a target of kind `llvm` what it asks of a CPU.

    A target without `mtriple` is built for the host's architecture, unless its `mcpu` is a level that
    belongs to another one.
    """
    mcpu = str(target.get("mcpu", ""))
    triple = str(target.get("mtriple", ""))
    named = {level.mcpu: level for level in LEVELS if level.mcpu != "generic"}
    if triple:
        arch = normal_arch(triple.split("-")[0])
    elif mcpu in named:
        arch = named[mcpu].arch
    else:
        arch = normal_arch(host_arch or platform.machine())
    unlisted = []
    if mcpu in named:
        flags = set(named[mcpu].flags)
    else:
        # The weakest level of an architecture is what LLVM builds for without a name, or for `generic`.
        flags = set(next((level.flags for level in LEVELS if level.arch == arch), frozenset()))
        if mcpu not in ("", "generic"):
            unlisted.append(mcpu)
    table = _FEATURES.get(arch, {})
    for entry in target.get("mattr", ()):
        feature = str(entry).lstrip("+-")
        if feature not in table:
            unlisted.append(str(entry))
        elif str(entry).startswith("-"):
            flags.discard(table[feature])
        else:
            flags.add(table[feature])
    return Requirement(arch=arch, flags=frozenset(flags), unlisted=tuple(unlisted))
