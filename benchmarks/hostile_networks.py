"""Network files of strangers: attacks by every text that torch or TVM runs, two zip readers, faults, bombs.

Attacks change an honest `.pt2` archive made by hand, which is what torch 2.13 writes; zip files hold an
honest and a hostile entry of one name, of which two readers see one each. Bombs that `test_archive.py` has
are left out. Nothing here needs torch.
"""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_corpus import MARKER, Made
from benchmarks.hostile_values import SEEDS, damaged, deep_text, seed_json, with_faults
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


def honest() -> Entries:
    """An archive that torch loads: relu(x + w) * c, with a weight and a constant."""
    return _entries((SEEDS / "network.pt2").read_bytes())


def _entries(content: bytes) -> Entries:
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        return {name.partition("/")[2]: zipped.read(name) for name in zipped.namelist()}


def program() -> JsonDict:
    """Its graph, as torch describes it."""
    return dict(json.loads(honest()[MODEL]))


def tensors(name: str, **changes: Any) -> bytes:
    """Its list of weights or of constants, with changes in the only entry."""
    whole = json.loads(honest()[name])
    next(iter(whole["config"].values())).update(changes)
    return json.dumps(whole).encode()


def examples(before: bytes = b"", storage: bytes = bytes(32)) -> bytes:
    """Its example inputs ((x,), {}), as `torch.save` writes them.

    Args:
        before: Opcodes that leave nothing on the stack, run first.
        storage: Bytes of x.
    """
    entries = _entries(honest()[EXAMPLES])
    pickle = entries["data.pkl"]
    return archive(
        {**entries, "data.pkl": pickle[:2] + before + pickle[2:], "data/0": storage}, root="archive"
    )


def archive(entries: Mapping[str, bytes], root: str = _ROOT, compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, content in entries.items():
            # The same bytes at any time of the day.
            entry = zipfile.ZipInfo(f"{root}/{name}" if root else name)
            zipped.writestr(entry, content, compression)
    return file.getvalue()


# Zip files of an honest and a hostile set of entries, which differ in the entry of a name.


def _twice(_: Random, good: Entries, bad: Entries, name: str) -> bytes:
    file = io.BytesIO(archive(good))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(file, "a") as zipped:
        zipped.writestr(zipfile.ZipInfo(f"{_ROOT}/{name}"), bad[name])
    return file.getvalue()


def _other_case(rng: Random, good: Entries, bad: Entries, name: str) -> bytes:
    other = rng.choice((name.upper(), name.title(), name.replace("model", "Model")))
    rest = {key: content for key, content in good.items() if key != name}
    return archive({**dict(rng.sample([(other, bad[name]), (name, good[name])], 2)), **rest})


def _joined(rng: Random, good: Entries, bad: Entries, _: str) -> bytes:
    """Two archives, or one and junk: one behind the other, or in the comment of the other."""
    outer, inner = (archive(entries) for entries in rng.sample((good, bad), 2))
    junk = rng.choice((b"#!/bin/sh\n", bytes(4_096), inner[:-30], b"PK\x05\x06" + bytes(18), inner))
    comment = inner[-65_535:]
    return rng.choice((junk + outer, outer + junk, outer[:-2] + struct.pack("<H", len(comment)) + comment))


def _headers(rng: Random, good: Entries, bad: Entries, name: str) -> bytes:
    """Another number in an entry's own header, in the directory, or at the directory's end."""
    content = bytearray(archive(rng.choice((good, bad))))
    path = f"{_ROOT}/{name}".encode()
    start, length = rng.choice(
        ((content.find(path) - 30, 30), (content.rfind(path) - 46, 46), (content.rfind(b"PK\x05\x06"), 22))
    )
    form = rng.choice(("<H", "<I"))
    most = 2 ** (8 * struct.calcsize(form)) - 1
    number = rng.choice((0, 1, 8, 12, 14, 64, 99, 2049, most // 2 + 1, most - 1, most))
    struct.pack_into(form, content, start + rng.randrange(4, length - 3, 2), number)
    return bytes(content)


def _directory_of_64_bits(rng: Random, good: Entries, _: Entries, __: str) -> bytes:
    content = bytearray(archive(good))
    end = content.rfind(b"PK\x05\x06")
    counts = [rng.choice((0, 1, 2**32, 2**63 - 1, 2**64 - 1)) for _ in range(4)]
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, *counts)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    content[end + 8 : end + 20] = b"\xff" * 12
    return bytes(content[:end]) + record + locator + bytes(content[end:])


def _names(rng: Random, good: Entries, bad: Entries, name: str) -> bytes:
    odd = rng.choice((f"/{name}", f"../{name}", f"x/../{name}", f"{name}\0", f" {name}", f"{name}/", "?"))
    with warnings.catch_warnings(action="ignore"):  # Python cuts names at a NUL, and warns of two of a name
        return archive({**good, odd: bad[name]}, root=rng.choice((_ROOT, "", "..", "/", "a/b")))


def _link(_: Random, good: Entries, __: Entries, name: str) -> bytes:
    content = bytearray(archive({**good, name: b"/etc/passwd"}))
    place = content.rfind(f"{_ROOT}/{name}".encode()) - 46 + 38
    struct.pack_into("<I", content, place, 0o120777 << 16)
    return bytes(content)


def _packed(rng: Random, good: Entries, _: Entries, name: str) -> bytes:
    """A bomb, or an archive that somebody packed again."""
    entries = rng.choice((good, {**good, name: b"[" * (64 << 20)}))
    return archive(entries, compression=zipfile.ZIP_DEFLATED)


def _overlapping(_: Random, good: Entries, __: Entries, ___: str) -> bytes:
    """Thousands of entries that share the same bytes."""
    content = archive(good)
    end = content.rfind(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", content, end + 12)
    length = 46 + sum(struct.unpack_from("<HHH", content, start + 28))
    first, count = content[start : start + length], 30_000
    more = b"".join(first[:46] + b"%08d" % number + first[54:] for number in range(count))
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, size + len(more), start, 0)
    return content[:end] + more + tail


ZIPS: tuple[Callable[[Random, Entries, Entries, str], bytes], ...] = (
    *(_twice, _other_case, _joined, _headers, _directory_of_64_bits),
    *(_names, _link, _packed, _overlapping),
)


def with_attack(rng: Random, marker: str, attack: str) -> Entries:
    """An archive whose graph would make the folder `marker`, in one of the ways of an attack."""
    whole = program()
    for path, content in rng.choice(attacks()[attack]):
        if path[0] == "rename":
            whole = json.loads(json.dumps(whole).replace(json.dumps(path[1]), json.dumps(content)))
            continue
        holder: Any = whole
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = content
    code = f"__import__('os').mkdir('{marker}')"
    graph = json.dumps(whole).replace("@CODE@", code).replace(MARKER, marker)
    return {**honest(), MODEL: graph.encode()}


def with_pickle(rng: Random, marker: str) -> Entries:
    """An archive in which a pickle would make the folder `marker`."""
    argument = b"(X" + len(marker).to_bytes(4, "little") + marker.encode() + b"tR0"
    call = b"cposix\nmkdir\n" + argument
    code = b"\x80\x02" + call + b"N."
    objects = [(name, flag) for name in ("custom_obj_0", "opaque_obj_0") for flag in (False, True)]
    places = ("data/weights/model.pt", "data/constants/model.pt", "data/aotinductor/model/a.so", "extra/a.py")
    ways: list[Entries] = [
        {EXAMPLES: examples(call)},
        {EXAMPLES: examples(b"\x8c\x05posix\x8c\x05mkdir\x93" + argument)},
        *({EXAMPLES: pickle} for pickle in (b"\x80\x02" + call + b".", b"", b"\x80\x02].")),
        {WEIGHTS: tensors(WEIGHTS, use_pickle=True), "data/weights/weight_0": code},
        {CONSTANTS: tensors(CONSTANTS, use_pickle=True), "data/constants/tensor_0": code},
        *({place: code} for place in places),
    ]
    for name, flag in objects:
        listed = tensors(CONSTANTS, path_name=name, use_pickle=flag, tensor_meta=None)
        ways.append({CONSTANTS: listed, f"data/constants/{name}": code})
    return honest() | rng.choice(ways)


def _attack(rng: Random, marker: str) -> bytes:
    attack = rng.choice((*attacks(), "pickle", "pickle"))
    return archive(with_pickle(rng, marker) if attack == "pickle" else with_attack(rng, marker, attack))


def _zip(rng: Random, marker: str) -> bytes:
    return rng.choice(ZIPS)(rng, honest(), with_attack(rng, marker, rng.choice(list(attacks()))), MODEL)


def _fault(rng: Random, _: str) -> bytes:
    """Faults in the values of the graph or of a list of tensors, or in bytes."""
    entries = honest()
    name = rng.choice((MODEL, MODEL, MODEL, WEIGHTS, CONSTANTS))
    if rng.random() < 0.7:
        entries[name] = deep_text(with_faults(rng, json.loads(entries[name]), (1, 1, 1, 2, 5)))
    else:
        entries[name] = damaged(rng, entries[name])
    storage = rng.randbytes(rng.choice((*[32] * 30, 0, 1, 31, 64)))
    content = archive({**entries, EXAMPLES: examples(storage=storage)})
    return damaged(rng, content) if rng.random() < 0.2 else content


def _bomb(rng: Random, _: str) -> bytes:
    """A small file that would take much memory or time."""
    whole = program()
    holder = whole["graph_module"]
    kind = rng.randrange(3)
    if kind == 0:
        holder["graph"]["tensor_values"]["x"] = tensor_meta((10**6,) * rng.choice((2, 5, 64)))
    elif kind == 1:
        holder["graph"]["nodes"] *= 10_000
    else:
        for _level in range(rng.choice((3, 30, 90))):
            outer = program()["graph_module"]["graph"]
            outer["nodes"][0]["inputs"][0]["arg"] = {"as_graph": {"name": "sub", "graph": holder["graph"]}}
            holder["graph"] = outer
    return archive({**honest(), MODEL: deep_text(whole)})


#: Kinds of files, and their shares in per cent.
_SHARES: dict[Callable[[Random, str], bytes], int] = {_attack: 40, _zip: 25, _fault: 30, _bomb: 5}


def make_networks(rng: Random, folder: Path, marker: str, count: int = 1) -> Made:
    """Write network files into a new folder; `marker` begins the names of what code in them would make."""
    folder.mkdir()
    attacks = 0
    for place in range(count):
        content = rng.choices(list(_SHARES), list(_SHARES.values()))[0](rng, f"{marker}{place}")
        attacks += marker.encode() in content
        (folder / f"network{place}.pt2").write_bytes(content)
    return Made("network", attacks=attacks)
