"""An honest `.pt2` archive written by hand, and zip files that two readers read differently.

Called by `benchmarks.hostile_networks` and the tests. Needs no torch: what is written here is what torch 2.13
writes.
"""

from __future__ import annotations

import copy
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from benchmarks.hostile_values import seed_json
from fleet.json_types import JsonDict

#: Entries of an archive by their names within its folder.
Entries = dict[str, bytes]

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
EXAMPLES = "data/sample_inputs/model.pt"
_SHAPE = (2, 4)
_FLOAT = 7
_ROOT = "network"


def tensor_meta(shape: tuple[int, ...] = _SHAPE, dtype: int = _FLOAT) -> JsonDict:
    """The description of a dense tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return {
        "dtype": dtype,
        "sizes": [{"as_int": size} for size in shape],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": stride} for stride in strides[: len(shape)]],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def attacks() -> dict[str, list[list[tuple[list[str | int], Any]]]]:
    """Ways to put code into the graph, by name: of each, changes of `program` that hold `@CODE@`.

    A change is a path and what stands there then; `rename` and a name are another name for a value.
    """
    return dict(seed_json("networks")["attacks"])


def program() -> JsonDict:
    """relu(x + w) * c, with a weight and a constant, as torch describes it."""
    return dict(copy.deepcopy(seed_json("networks")["program"]))


def honest() -> Entries:
    """An archive that torch loads."""
    payload = {"path_name": "weight_0", "is_param": True, "use_pickle": False, "tensor_meta": tensor_meta()}
    constant = {**payload, "path_name": "tensor_0", "is_param": False}
    return {
        "data/weights/weight_0": struct.pack("<8f", *range(8)),
        WEIGHTS: json.dumps({"config": {"w": payload}}).encode(),
        "data/constants/tensor_0": struct.pack("<8f", *[2.0] * 8),
        CONSTANTS: json.dumps({"config": {"c": constant}}).encode(),
        MODEL: json.dumps(program()).encode(),
        EXAMPLES: examples(),
        "archive_format": b"pt2",
        "archive_version": b"0",
        ".data/version": b"6\n",
        "byteorder": b"little",
        ".data/serialization_id": b"0" * 40,
    }


def examples(before: bytes = b"", storage: bytes = b"\0" * 32) -> bytes:
    """Example inputs ((x,), {}) as `torch.save` writes them.

    Args:
        before: Opcodes that leave nothing on the stack, run first.
        storage: Bytes of x.
    """
    place = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x08tQ"
    rebuilt = b"ctorch._utils\n_rebuild_tensor_v2\n(" + place + b"K\0K\x02K\x04\x86K\x04K\x01\x86\x89"
    rebuilt += b"ccollections\nOrderedDict\n)RtR"
    pickle = b"\x80\x02" + before + rebuilt + b"\x85}\x86."
    return archive(
        {"data.pkl": pickle, "data/0": storage, "version": b"3\n", "byteorder": b"little"}, root="archive"
    )


def archive(entries: Mapping[str, bytes], root: str = _ROOT, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of entries."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as written:
        for name, content in entries.items():
            # The same bytes at any time of the day.
            entry = zipfile.ZipInfo(f"{root}/{name}" if root else name)
            written.writestr(entry, content, compression)
    return made.getvalue()


def _twice(_: Random, good: Entries, bad: Entries, name: str) -> bytes:
    made = io.BytesIO(archive(good))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of the second one
        with zipfile.ZipFile(made, "a") as written:
            written.writestr(zipfile.ZipInfo(f"{_ROOT}/{name}"), bad[name])
    return made.getvalue()


def _other_case(rng: Random, good: Entries, bad: Entries, name: str) -> bytes:
    other = rng.choice((name.upper(), name.title(), name.replace("model", "Model")))
    pair = [(other, bad[name]), (name, good[name])]
    rng.shuffle(pair)
    return archive({**dict(pair), **{key: held for key, held in good.items() if key != name}})


def _directories(rng: Random, good: Entries, bad: Entries, _: str) -> bytes:
    first, second = archive(good), archive(bad)
    return first + second if rng.random() < 0.5 else second + first


def _in_comment(rng: Random, good: Entries, bad: Entries, _: str) -> bytes:
    outer, inner = archive(good), archive(bad)
    if rng.random() < 0.5:
        outer, inner = inner, outer
    if len(inner) > 65_535:
        inner = inner[-65_535:]
    return outer[:-2] + struct.pack("<H", len(inner)) + inner


def _around(rng: Random, good: Entries, bad: Entries, _: str) -> bytes:
    junk = rng.choice((b"#!/bin/sh\n", b"\0" * 4_096, archive(bad)[:-30], b"PK\x05\x06" + b"\0" * 18))
    return junk + archive(good) if rng.random() < 0.5 else archive(good) + junk


#: Records of a zip file: signature, bytes before the name, fields (flags, method, sizes, counts, places).
_RECORDS = (
    (b"PK\x03\x04", 30, ((6, "<H"), (8, "<H"), (18, "<I"), (22, "<I"), (26, "<H"))),
    (b"PK\x01\x02", 46, ((8, "<H"), (10, "<H"), (20, "<I"), (24, "<I"), (42, "<H"))),
    (b"PK\x05\x06", 0, ((8, "<H"), (10, "<H"), (12, "<I"), (16, "<I"), (20, "<H"))),
)


def _headers(rng: Random, good: Entries, bad: Entries, name: str) -> bytes:
    """Another name or number in an entry's own header, in the directory, or at the directory's end."""
    made = bytearray(archive(rng.choice((good, bad))))
    signature, length, fields = rng.choice(_RECORDS)
    named = f"{_ROOT}/{name}".encode()
    start = (made.find if length == 30 else made.rfind)(named) - length if length else made.rfind(signature)
    assert made[start : start + 4] == signature
    if length and rng.random() < 0.2:
        odd = rng.choice((b"../../etc", b"/tmp/abcd", b"NETWORK/m", b"network\0/"))
        made[start + length : start + length + len(odd)] = odd
        return bytes(made)
    field, form = rng.choice(fields)
    most = 2 ** (8 * struct.calcsize(form)) - 1
    number = rng.choice((0, 1, 8, 12, 14, 64, 99, 2049, most // 2 + 1, most - 1, most))
    struct.pack_into(form, made, start + field, number)
    return bytes(made)


def _directory_of_64_bits(rng: Random, good: Entries, _: Entries, __: str) -> bytes:
    made = bytearray(archive(good))
    end = made.rfind(b"PK\x05\x06")
    counts = [rng.choice((0, 1, 2**32, 2**63 - 1, 2**64 - 1)) for _ in range(4)]
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, *counts)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    made[end + 8 : end + 20] = b"\xff" * 12
    return bytes(made[:end]) + record + locator + bytes(made[end:])


def _names(rng: Random, good: Entries, bad: Entries, name: str) -> bytes:
    odd = rng.choice(
        (f"/{name}", f"../{name}", f"x/../{name}", f"{name}\0", f" {name}", f"{name}/", "\udcff")
    )
    odd = odd.encode(errors="replace").decode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python cuts names at a NUL, and warns of two of a name
        return archive({**good, odd: bad[name]}, root=rng.choice((_ROOT, "", "..", "/", "a/b")))


def _link(_: Random, good: Entries, __: Entries, name: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as written:
        for key, content in good.items():
            entry = zipfile.ZipInfo(f"{_ROOT}/{key}")
            if key == name:
                entry.external_attr = 0o120777 << 16
                content = b"/etc/passwd"
            written.writestr(entry, content)
    return made.getvalue()


def _packed(rng: Random, good: Entries, _: Entries, name: str) -> bytes:
    """A bomb, or an archive that somebody packed again."""
    if rng.random() < 0.5:
        return archive(good, compression=zipfile.ZIP_DEFLATED)
    return archive({**good, name: b"[" * (64 << 20)}, compression=zipfile.ZIP_DEFLATED)


def _overlapping(_: Random, good: Entries, __: Entries, ___: str) -> bytes:
    """Thousands of entries that share the same bytes."""
    made = archive(good)
    end = made.rfind(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", made, end + 12)
    entry = made.find(b"PK\x01\x02", start)
    length = 46 + sum(struct.unpack_from("<HHH", made, entry + 28))
    first = made[entry : entry + length]
    names = [b"%08d" % number for number in range(30_000)]
    more = b"".join(first[:46] + name + first[54:] for name in names)
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 30_000, 30_000, size + len(more), start, 0)
    return made[:end] + more + tail


#: Zip files of an honest and a hostile set of entries, which differ in the entry of a name.
ZIPS: tuple[Callable[[Random, Entries, Entries, str], bytes], ...] = (
    _twice,
    _other_case,
    _directories,
    _in_comment,
    _around,
    _headers,
    _directory_of_64_bits,
    _names,
    _link,
    _packed,
    _overlapping,
)
