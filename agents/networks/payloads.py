"""Weights, constants and example inputs of a `.pt2` file, checked before torch takes them for tensors.

Weights and constants lie as bytes, each described in JSON: the descriptions are checked against the bytes
that are there, and none may be a pickle. Example inputs are a file of `torch.save`: the names that its pickle
looks up are those of tensors alone, and torch's reader of weights unpickles it. Standard library only.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Mapping
from typing import Any, Final

from agents.networks.graph_schema import (
    ELEMENT_BYTES,
    UnknownValueError,
    check_attribute,
    check_tensor_meta,
    sizes_of,
)

_KEYS: Final = {"path_name", "is_param", "use_pickle", "tensor_meta"}
#: Tensors repeat what they hold (strides of 0, tied weights): all of them laid out take so much more at most.
_MOST_REPEATS: Final = 4
_MORE_BYTES: Final = 256 << 20
#: What the pickle of tensors in tuples and dictionaries looks up.
_LOOKED_UP: Final = re.compile(
    r"torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage|torch\.storage UntypedStorage"
    r"|collections OrderedDict",
    re.ASCII,
)
#: Other ways to look a name up, or to make objects.
_FORBIDDEN: Final = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "BUILD"}
_MOST_OPCODES: Final = 100_000


def check_payloads(config: Any, byte_counts: Mapping[str, int]) -> None:
    """Check how the tensors of one folder of an archive are described.

    Args:
        config: The JSON that describes them, by the name of the parameter, buffer or constant.
        byte_counts: Bytes of each file there.

    Raises:
        UnknownValueError: It describes anything but tensors that lie within these bytes.
    """
    if not isinstance(config, dict) or set(config) != {"config"} or not isinstance(config["config"], dict):
        raise UnknownValueError("the list of weights is none of torch.export.save")
    dtypes: dict[str, int] = {}
    laid_out = 0
    for name, payload in config["config"].items():
        try:
            check_attribute(name)
            laid_out += _check_payload(payload, byte_counts, dtypes)
        except UnknownValueError as error:
            error.path.append(f"weight {name!r:.100}")
            raise
    if laid_out > _MOST_REPEATS * sum(byte_counts.values()) + _MORE_BYTES:
        raise UnknownValueError(f"its weights have {laid_out:,} bytes, of which the file holds few")


def _check_payload(payload: Any, byte_counts: Mapping[str, int], dtypes: dict[str, int]) -> int:
    """Check one tensor; returns its bytes if it was laid out densely."""
    if not isinstance(payload, dict) or set(payload) != _KEYS:
        raise UnknownValueError("is described by other keys than torch.export.save writes")
    if payload["use_pickle"] is not False:
        raise UnknownValueError("is a pickle, which is never unpickled; save plain tensors")
    if type(payload["is_param"]) is not bool:
        raise UnknownValueError("says of no parameter whether it is one")
    place, meta = payload["path_name"], payload["tensor_meta"]
    if not isinstance(place, str) or place not in byte_counts:
        raise UnknownValueError(f"lies in {place!r:.80}, which the archive does not have")
    check_tensor_meta(meta)
    dtype, sizes = meta["dtype"], sizes_of(meta, "sizes")
    if dtypes.setdefault(place, dtype) != dtype:
        raise UnknownValueError(f"shares {place} with a tensor of another type")
    held, rest = divmod(byte_counts[place], ELEMENT_BYTES[dtype])
    last = meta["storage_offset"]["as_int"]
    elements = math.prod(sizes)
    if elements:
        steps = zip(sizes, sizes_of(meta, "strides"), strict=True)
        last += 1 + sum((size - 1) * stride for size, stride in steps)
    if rest or last > held:
        raise UnknownValueError(
            f"its shape {sizes} needs {last:,} elements, and {place} holds {byte_counts[place]:,} bytes"
        )
    return elements * ELEMENT_BYTES[dtype]


def check_pickle(content: bytes) -> None:
    """Check that a pickle of `torch.save` looks up nothing but what tensors are made of; it is not run.

    Raises:
        UnknownValueError: It looks something else up, or is no pickle.
    """
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if number >= _MOST_OPCODES or opcode.name in _FORBIDDEN:
                raise UnknownValueError("example inputs: hold more than tensors, which is never unpickled")
            if opcode.name == "GLOBAL" and not _LOOKED_UP.fullmatch(str(argument)):
                raise UnknownValueError(
                    f"example inputs: hold {argument!r:.80}, which is never unpickled; export with "
                    "tensors only"
                )
    except UnknownValueError:
        raise
    except Exception as error:
        raise UnknownValueError(f"example inputs: are no file of torch.save ({error!s:.80})") from None
