"""What a log tells of the device that it was measured on: TVM target, family, hardware parameters.

Called by the readers of the dialects and by `fleet.interchange.import_report`. Target texts are read without
TVM, which refuses the old `llvm -keys=cpu` form anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from agents.host.gpu_sheets import gpu_sheet
from agents.records import (
    ANSOR_HARDWARE_PARAMS,
    Descriptor,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    canonical_json,
)
from fleet.interchange.logs.json_values import MAX_TIMESTAMP, Rejected, seconds_of

# Units of time and dates as tuners write them: each tool has words and forms of its own.
#
# Called by the readers of configurations (`kernel_tuner.py`). A unit or date of an unknown form is an error
# of its line, never a guess: a wrong unit makes a program a thousand times slower or faster.

#: How many of a unit make a second, by its words without a plural's `s`; Kernel Tuner wrote `miliseconds`.
_PER_SECOND: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("ms", "msec", "milli", "millisec", "millisecond", "milisecond"), 1e3),
    **dict.fromkeys(("us", "usec", "micro", "microsec", "microsecond"), 1e6),
    **dict.fromkeys(("ns", "nsec", "nano", "nanosec", "nanosecond"), 1e9),
}
_MICRO = str.maketrans({"\u00b5": "u", "\u03bc": "u"})
_UNIT_KEY = "timeunit"
_MAX_CHARS = 64


def units_per_second(word: Any) -> float | None:
    """Number of units in a second, such as 1000 for `ms` or `Milliseconds`; None for no unit of time."""
    if type(word) is not str or len(word) > _MAX_CHARS:
        return None
    name = word.strip().lower().translate(_MICRO)
    return _PER_SECOND.get(name) or _PER_SECOND.get(name.removesuffix("s"))


def stated_unit(value: Mapping[str, Any]) -> float | None:
    """Units per second by the key `timeunit`, `time_unit` or `TimeUnit` of an object; None without one.

    Raises:
        Rejected: What stands there is no unit of time.
    """
    for key, word in value.items():
        if key.replace("_", "").lower() == _UNIT_KEY and word not in (None, ""):
            return checked_unit(word)
    return None


def checked_unit(word: Any) -> float:
    """Units per second of a word that must be a unit of time.

    Raises:
        Rejected: It is none.
    """
    units = units_per_second(word)
    if units is None:
        raise Rejected("the unit of time is not known", got=word)
    return units


def unix_secs(value: Any) -> float:
    """Unix seconds of a date; 0 without one.

    Args:
        value: A text in ISO 8601, also with a blank for the `T` and `UTC` at its end; or seconds since 1970.

    Raises:
        Rejected: It is no date, or one before 1970.
    """
    if value is None or value == "":
        return 0.0
    if type(value) is str:
        try:
            at = datetime.fromisoformat(value.removesuffix("UTC").strip())
        except ValueError:
            raise Rejected("timestamp is not a time", got=value) from None
        value = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return seconds_of(value, "timestamp", MAX_TIMESTAMP)


_FAMILIES = {
    **dict.fromkeys(("llvm", "c", "hexagon", "webgpu-cpu", "hybrid", "stackvm"), Family.CPU),
    **dict.fromkeys(("cuda", "rocm", "opencl", "vulkan", "metal", "nvptx", "webgpu", "sdaccel"), Family.GPU),
}
_MAX_TEXT = 4096
_MAX_THREADS = 1024
_MAX_INT = 2**31 - 1

_INTEGER = re.compile(r"-?[0-9]{1,10}")

# Words of a device's name, for tools that keep no target.
_CPU_NAME = re.compile(
    r"\b(cpu|xeon|core\(tm\)|epyc|ryzen|threadripper|x86|x86_64|i386|aarch64|arm64|armv\d\w*|neoverse)\b"
)
_GPU_KINDS = (
    ("cuda", re.compile(r"nvidia|geforce|tesla|quadro|\b[rg]tx\b")),
    ("rocm", re.compile(r"radeon|instinct|\bmi\d{2,3}[ax]?\b|gfx\d|\bamd\b")),
    ("metal", re.compile(r"\bapple m\d")),
)

#: Options whose value is a list in a target's JSON.
_LISTS = ("keys", "libs", "mattr")


class Target(NamedTuple):
    """One target, read."""

    #: As a dictionary of TVM's JSON form.
    options: Mapping[str, Any]
    family: Family

    @property
    def kind(self) -> str:
        """TVM's target kind, such as `llvm`."""
        return str(self.options["kind"])


def parse_target(value: Any) -> Target:
    """Read a target: the JSON form, that form as text, or the old text (`cuda -arch=sm_75 ...`).

    Raises:
        Rejected: No target, or of a kind that is not known to be a CPU's or a GPU's.
    """
    if type(value) is dict:
        options: dict[str, Any] = value
    elif type(value) is str and len(value) <= _MAX_TEXT:
        words = value.split()
        options = {"kind": words[0] if words else ""}
        for word in words[1:]:
            name, _, text = word.lstrip("-").partition("=")
            options[name] = _option(name, text)
    else:
        raise Rejected("target is not a text", got=value)
    kind = options.get("kind")
    family = _FAMILIES.get(kind) if type(kind) is str else None
    if family is None:
        raise Rejected("target of an unknown kind", got=kind)
    return Target(options, family)


def gpu_target(device_name: str) -> Target:
    """Target of a device that a tuner of GPU kernels names; without a name it is a GPU of any kind."""
    name = device_name.lower()
    for kind, pattern in _GPU_KINDS:
        if pattern.search(name) and not _CPU_NAME.search(name):
            return Target({"kind": kind}, Family.GPU)
    return (
        Target({"kind": "llvm"}, Family.CPU)
        if _CPU_NAME.search(name)
        else Target({"kind": "opencl"}, Family.GPU)
    )


def _option(name: str, text: str) -> Any:
    if name in _LISTS:
        return text.split(",")
    if _INTEGER.fullmatch(text) and abs(int(text)) <= _MAX_INT:
        return int(text)
    return text or True


class Machine(NamedTuple):
    """What one line says of its device."""

    target: Target
    tvm_version: str = ""
    #: Ansor's eight hardware parameters, or fewer; () where the dialect has none.
    hardware: tuple[int, ...] = ()
    #: Name of what was measured there; AutoTVM's say which processors they are for.
    function: str = ""
    #: As the driver names it, and properties that a log states.
    device_name: str = ""
    device_facts: tuple[tuple[str, str], ...] = ()


def device_from_log(device_id: DeviceId, machine: Machine) -> tuple[DeviceSpec, Descriptor]:
    """Describe a device that exists in logs only; what they do not say is 0 or empty."""
    options = machine.target.options
    hardware = dict(zip(ANSOR_HARDWARE_PARAMS, machine.hardware, strict=False))
    cores = options.get("num-cores", hardware.get("num_cores", 0))
    cores = cores if type(cores) is int and 0 < cores <= _MAX_THREADS else 0
    is_cpu = machine.target.family is Family.CPU
    threads = cores if is_cpu and cores else 1
    spec = DeviceSpec(
        device_id=device_id,
        kind=DeviceKind.REPLAY,
        family=machine.target.family,
        target_json=canonical_json(dict(options)),
        threads=threads,
        cores=tuple(range(threads)),
        note="known from imported logs only",
    )
    descriptor = Descriptor(
        host="",
        arch=_architecture(machine),
        physical_cores=cores if is_cpu else 0,
        vector_bytes=max(0, hardware.get("vector_unit_bytes", 0)) if is_cpu else 0,
        cache_line_bytes=max(0, hardware.get("cache_line_bytes", 0)) if is_cpu else 0,
        versions=(("tvm", machine.tvm_version),) if machine.tvm_version else (),
        ansor_params=machine.hardware,
        cuda_devices=() if is_cpu else _gpu(device_id, machine),
    )
    return spec, descriptor


def has_sheet(descriptor: Descriptor) -> bool:
    """Whether the data sheet of a described GPU is known."""
    return any("sheet" in dict(facts) for facts in descriptor.cuda_devices)


def _gpu(device_id: DeviceId, machine: Machine) -> tuple[tuple[tuple[str, str], ...], ...]:
    """What a log says of its GPU, and the data sheet of its name; where it has none, of the device's id."""
    said = dict(machine.device_facts)
    if machine.device_name:
        said["name"] = machine.device_name
    if "arch" in machine.target.options:
        said["arch"] = str(machine.target.options["arch"])
    facts = {**gpu_sheet(machine.device_name or device_id), **said}
    return (tuple(sorted(facts.items())),) if facts else ()


def _architecture(machine: Machine) -> str:
    options = machine.target.options
    triple = options.get("mtriple")
    if type(triple) is str and triple:
        return triple.split("-")[0]
    if machine.target.family is Family.GPU:
        return ""
    said = f"{options.get('device', '')} {options.get('mcpu', '')} {machine.function.partition('.')[2]}"
    if "arm" in said or "cortex" in said:
        return "aarch64"
    return "x86_64" if "x86" in said else ""
