"""Look at a `.pt2` file before torch does: torch's own reader unpickles, looks names up, and evaluates text.

What torch 2.13 does with such a file: weights that its safe reader refuses are unpickled without bounds; a
node's target is any attribute of `torch`, `operator` or `math`; expressions of shapes go through `eval`; and
compiled libraries in it are loaded. So a file is read here first, as zip and JSON, and refused where it holds
more than tensors and operators of fixed shape. What passes is loaded by a confined process, in which torch is
told never to unpickle more than tensors (`reader_process.py`). Standard library only.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from typing import IO, Any, Final

from agents.networks.network_name import NetworkRefusedError

_MOST_ENTRIES = 100_000
_MOST_MODEL_BYTES = 256 << 20
_MOST_BYTES = 16 << 30
#: How deep the JSON of a graph may nest; the interpreter counts to 1000.
_MOST_DEPTH = 200
#: Parts of an archive that hold code, objects with code, or programs of other compilers.
_CODE = ("data/aotinductor/", "data/executorch/", "data/mtia/", "data/constants/custom_obj_")
_CODE_SUFFIXES = (".so", ".dll", ".dylib", ".py", ".cpp", ".o")
_MODEL = re.compile(r"models/[^/]+\.json")
#: Operators that a graph may call: torch's own tensor operators, and taking one of several results.
_TARGET = re.compile(r"torch\.ops\.(aten|prims|quantized_decomposed)\.\w+(\.\w+)?|_operator\.getitem")
#: Keys under which an export keeps expressions and code; none of a program of fixed shapes is filled.
_SYMBOLIC: Final = ("as_expr", "expr_str", "as_sym_int", "as_sym_float", "as_sym_bool")


def check_archive(opened: IO[bytes], network: str) -> None:
    """Look through a `.pt2` file: the same bytes that torch is given afterwards.

    Raises:
        NetworkRefusedError: It is none, has dynamic shapes, or holds what is not loaded; the message says so.
    """
    try:
        with zipfile.ZipFile(opened) as archive:
            entry = _model(archive, network)
            text = archive.read(entry)
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise NetworkRefusedError(
                    f"network {network}: {entry.filename} is no JSON: {error}"
                ) from None
            _check_model(value, network)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        if isinstance(error, NetworkRefusedError):
            raise
        raise NetworkRefusedError(
            f"network {network}: is no archive of torch.export.save ({error}); save it with "
            "torch.export.save(torch.export.export(model, inputs), 'model.pt2')"
        ) from None


def _model(archive: zipfile.ZipFile, network: str) -> zipfile.ZipInfo:
    """The entry of the graph in an archive, after a look at all entries."""
    entries = archive.infolist()
    size = sum(entry.file_size for entry in entries)
    if len(entries) > _MOST_ENTRIES or size > _MOST_BYTES:
        raise NetworkRefusedError(
            f"network {network}: {len(entries):,} entries of {size:,} bytes are more than a network has"
        )
    models = []
    for entry in entries:
        # Everything lies in one folder with a name of its own.
        inner = entry.filename.partition("/")[2]
        if inner.startswith(_CODE) or inner.endswith(_CODE_SUFFIXES):
            raise NetworkRefusedError(
                f"network {network}: holds code or objects ({inner}), which are not loaded; save the "
                "exported program alone, before it is compiled"
            )
        if _MODEL.fullmatch(inner):
            if entry.file_size > _MOST_MODEL_BYTES:
                raise NetworkRefusedError(f"network {network}: its graph has {entry.file_size:,} bytes")
            models.append(entry)
    if len(models) != 1:
        raise NetworkRefusedError(
            f"network {network}: expected an archive of torch.export.save with one program, found "
            f"{len(models)}; torch 2.8 or later writes it"
        )
    return models[0]


def _check_model(value: Any, network: str) -> None:
    unknown: dict[str, None] = {}
    for key, held in _walk(value, network):
        if (key in _SYMBOLIC and not _is_plain(held)) or (key == "range_constraints" and held):
            raise NetworkRefusedError(
                f"network {network}: has dynamic shapes; export it with fixed ones (no dynamic_shapes)"
            )
        if key == "target" and isinstance(held, str) and not _TARGET.fullmatch(held):
            unknown[held] = None
    if unknown:
        names = ", ".join(list(unknown)[:5])
        raise NetworkRefusedError(
            f"network {network}: calls what is no tensor operator of torch: {names:.300}"
        )


def _is_plain(held: Any) -> bool:
    """Whether a symbolic argument holds a plain number after all: `{"as_int": 3}`."""
    return isinstance(held, dict) and set(held) <= {"as_int", "as_float", "as_bool"}


def _walk(value: Any, network: str) -> Iterator[tuple[str, Any]]:
    """Every key with its value, without recursion."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        held, depth = waiting.pop()
        if depth > _MOST_DEPTH:
            raise NetworkRefusedError(f"network {network}: its graph nests deeper than {_MOST_DEPTH}")
        if isinstance(held, dict):
            yield from held.items()
            waiting += [(one, depth + 1) for one in held.values()]
        elif isinstance(held, list):
            waiting += [(one, depth + 1) for one in held]
