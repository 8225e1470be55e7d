"""Targets in device YAML: the options that TVM's target kinds have, and what is wrong with a file's.

Called by `fleet.config.device_files`. What the target makes of a program is TVM's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fleet.config.yaml_files import kind_of, nearest, show

_MAX_NUMBER = 2**31 - 1

# Options of TVM 0.27's target kinds and their types (`target.ListTargetKindOptionsFromName`).
_COMMON_OPTIONS: dict[str, type] = {
    "kind": str,
    "keys": list,
    "tag": str,
    "device": str,
    "model": str,
    "libs": list,
    "host": dict,
    "from_device": int,
    "target_device_type": int,
    "mcpu": str,
}
#: Options of each kind of target, and their types.
TARGET_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "llvm": {
        **_COMMON_OPTIONS,
        "mattr": list,
        "mtriple": str,
        "mfloat-abi": str,
        "mabi": str,
        "num-cores": int,
        "fast-math": bool,
        "fast-math-nnan": bool,
        "fast-math-ninf": bool,
        "fast-math-nsz": bool,
        "fast-math-arcp": bool,
        "fast-math-contract": bool,
        "fast-math-reassoc": bool,
        "opt-level": int,
        "cl-opt": list,
        "jit": str,
        "vector-width": int,
    },
    "cuda": {
        **_COMMON_OPTIONS,
        "arch": str,
        "max_shared_memory_per_block": int,
        "max_threads_per_block": int,
        "thread_warp_size": int,
        "registers_per_block": int,
        "l2_cache_size_bytes": int,
        "max_num_threads": int,
    },
}
_CUDA_NEEDS = ("arch", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size")


def target_faults(target: Mapping[str, Any], kind_of_device: str, threads: int) -> Iterable[str]:
    """Say what is wrong with the target of a device file, each fault as `key: sentence`."""
    kind = target.get("kind")
    if not isinstance(kind, str) or not kind:
        yield "target.kind: missing; write the kind of TVM target, such as llvm or cuda"
        return
    yield from _option_faults(target, TARGET_OPTIONS.get(kind), "target")
    if kind == "llvm" and kind_of_device != "replay":
        cores = target.get("num-cores")
        if cores is None:
            yield f"target.num-cores: missing; TVM's search needs it: write num-cores: {threads}"
        elif isinstance(cores, int) and cores != threads:
            yield f"target.num-cores: is {show(cores)}, but threads is {threads}: make them equal"
    if kind == "cuda" and kind_of_device != "replay":
        for key in _CUDA_NEEDS:
            if key not in target:
                yield f"target.{key}: missing; TVM's search needs it: `fleet init` writes it"


def _option_faults(
    target: Mapping[Any, Any], options: Mapping[str, type] | None, where: str
) -> Iterable[str]:
    for key, value in target.items():
        if not isinstance(key, str) or not is_encodable(key):
            yield f"{where}: key {show(key)} is {kind_of(key)}, expected plain text"
            continue
        name = f"{where}.{key}"
        if options is not None and key not in options:
            yield f"{name}: unknown key{nearest(key, options)}"
            continue
        option_type = None if options is None else options[key]
        if isinstance(value, dict):
            if option_type not in (None, dict):
                yield f"{name}: must be {kind_of(option_type())}, got a mapping"
            elif key == "host":
                yield from _option_faults(value, TARGET_OPTIONS.get(str(value.get("kind"))), name)
            else:
                yield from _option_faults(value, None, name)
        elif isinstance(value, list):
            if option_type not in (None, list):
                yield f"{name}: must be {kind_of(option_type())}, got a list"
            elif not all(isinstance(item, str) and is_encodable(item) for item in value):
                yield f"{name}: must be a list of texts, got {show(value)}"
        elif type(value) not in (str, int, bool) or (
            option_type is not None and type(value) is not option_type
        ):
            expected = (
                "text, a whole number, yes or no, or a list"
                if option_type is None
                else kind_of(option_type())
            )
            yield f"{name}: must be {expected}, got {show(value)}"
        elif (isinstance(value, int) and abs(value) > _MAX_NUMBER) or (
            isinstance(value, str) and not is_encodable(value)
        ):
            yield f"{name}: {show(value)} is out of range"


def is_encodable(text: str) -> bool:
    """Tell whether text can be written to a file: YAML can spell half a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
