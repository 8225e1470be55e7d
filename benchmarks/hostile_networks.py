"""Network files of strangers: attacks by every text that torch or TVM runs, two zip readers, faults, bombs.

`make_archive(seed, number, markers)` gives one `.pt2` file. Code in it would make a folder of its own name in
`markers`. Called by `benchmarks.hostile_child` and the tests; needs no torch.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.hostile_archives import (
    CONSTANTS,
    EXAMPLES,
    MODEL,
    WEIGHTS,
    ZIPS,
    Entries,
    archive,
    attacks,
    examples,
    honest,
    program,
    tensor_meta,
)
from benchmarks.hostile_corpus import MARKER, Case
from benchmarks.hostile_values import damaged, deep_text, with_faults
from fleet.json_types import JsonDict

#: Kinds of files, and their shares in per cent.
KINDS = {"attack": 40, "zip": 25, "fault": 20, "bytes": 10, "bomb": 5}
_Program = JsonDict


def _graph(made: _Program) -> JsonDict:
    graph: JsonDict = made["graph_module"]["graph"]
    return graph


def with_attack(rng: Random, marker: str, attack: str) -> Entries:
    """An archive whose graph would make the folder `marker`, in one of the ways of an attack."""
    made = program()
    for path, content in rng.choice(attacks()[attack]):
        if path[0] == "rename":
            made = json.loads(json.dumps(made).replace(json.dumps(path[1]), json.dumps(content)))
            continue
        holder: Any = made
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = content
    code = f"__import__('os').mkdir('{marker}')"
    graph = json.dumps(made).replace("@CODE@", code).replace(MARKER, marker)
    return {**honest(), MODEL: graph.encode()}


def with_pickle(rng: Random, marker: str) -> Entries:
    """An archive in which a pickle would make the folder `marker`."""
    made = honest()
    called = b"posix\nmkdir\n(X" + len(marker).to_bytes(4, "little") + marker.encode() + b"tR0"
    kind = rng.randrange(6)
    if kind == 0:
        made[EXAMPLES] = examples(b"c" + called)
    elif kind == 1:
        parts = b"\x8c\x05posix\x8c\x05mkdir\x93(X" + len(marker).to_bytes(4, "little")
        made[EXAMPLES] = examples(parts + marker.encode() + b"tR0")
    elif kind == 2:
        made[EXAMPLES] = rng.choice((b"\x80\x02c" + called + b".", b"", b"\x80\x02]."))
    elif kind == 3:
        name, file = rng.choice(((WEIGHTS, "data/weights/weight_0"), (CONSTANTS, "data/constants/tensor_0")))
        config = json.loads(made[name])
        next(iter(config["config"].values()))["use_pickle"] = True
        made[name], made[file] = json.dumps(config).encode(), b"\x80\x02c" + called + b"N."
    elif kind == 4:
        config = json.loads(made[CONSTANTS])
        place = rng.choice(("custom_obj_0", "opaque_obj_0"))
        config["config"]["c"] |= {"path_name": place, "use_pickle": rng.random() < 0.5, "tensor_meta": None}
        made[CONSTANTS] = json.dumps(config).encode()
        made[f"data/constants/{place}"] = b"\x80\x02c" + called + b"N."
    else:
        place = rng.choice(
            ("data/weights/model.pt", "data/constants/model.pt", "data/aotinductor/model/a.so", "extra/a.py")
        )
        made[place] = b"\x80\x02c" + called + b"N."
    return made


def _attacked(rng: Random, marker: str) -> bytes:
    attack = rng.choice((*attacks(), "pickle", "pickle"))
    return archive(with_pickle(rng, marker) if attack == "pickle" else with_attack(rng, marker, attack))


def _zipped(rng: Random, marker: str) -> bytes:
    return rng.choice(ZIPS)(rng, honest(), with_attack(rng, marker, rng.choice(list(attacks()))), MODEL)


def _faulty(rng: Random, marker: str) -> bytes:
    """Faults in the values of the graph or of a list of tensors."""
    made = honest()
    name = rng.choice((MODEL, MODEL, MODEL, WEIGHTS, CONSTANTS))
    made[name] = deep_text(with_faults(rng, json.loads(made[name]), (1, 1, 1, 2, 5)))
    if rng.random() < 0.1:
        made[EXAMPLES] = examples(storage=rng.randbytes(rng.choice((0, 1, 31, 64))))
    return archive(made)


def _damaged(rng: Random, marker: str) -> bytes:
    if rng.random() < 0.5:
        return damaged(rng, archive(honest()))
    made = honest()
    name = rng.choice(list(made))
    made[name] = damaged(rng, made[name])
    return archive(made)


def _bomb(rng: Random, marker: str) -> bytes:
    """A small file, or one of some MB, that would take much memory or time."""
    made, whole = honest(), program()
    kind = rng.randrange(8)
    if kind == 0:
        made[MODEL] = deep_text([[]]) if rng.random() < 0.1 else b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    elif kind == 1:
        made[MODEL] = b"[" + rng.choice((b"{},", b'{"a":1},', b"[],", b"0,")) * (2 << 20) + b"0]"
    elif kind == 2:
        _graph(whole)["tensor_values"]["x"] = tensor_meta((10**6,) * rng.choice((2, 5, 64)))
    elif kind == 3:
        config = json.loads(made[WEIGHTS])
        meta = tensor_meta((2**20, 2**13))
        meta["strides"] = [{"as_int": 0}] * 2
        for place in range(rng.choice((1, 100, 5_000))):
            config["config"][f"w{place}"] = {**config["config"]["w"], "tensor_meta": meta}
        made[WEIGHTS] = json.dumps(config).encode()
    elif kind == 4:
        config = json.loads(made[WEIGHTS])
        config["config"]["w"]["tensor_meta"] = tensor_meta((2**16, 2**16))
        made["data/weights/weight_0"] = rng.choice((b"", made["data/weights/weight_0"]))
        made[WEIGHTS] = json.dumps(config).encode()
    elif kind == 5:
        made[EXAMPLES] = examples(b"]" + rng.choice((b"(", b"]0", b"}0", b"K\x01\x850")) * 900_000 + b"0")
    elif kind == 6:
        inner = _graph(program())
        for _ in range(rng.choice((3, 30, 90))):
            outer = _graph(program())
            outer["nodes"][0]["inputs"][0]["arg"] = {"as_graph": {"name": "sub", "graph": inner}}
            inner = outer
        whole["graph_module"]["graph"] = inner
    else:
        _graph(whole)["nodes"] *= 10_000
    if kind in (2, 6, 7):
        made[MODEL] = deep_text(whole)
    packed = zipfile.ZIP_DEFLATED if kind == 1 and rng.random() < 0.5 else zipfile.ZIP_STORED
    return archive(made, compression=packed)


_MAKERS: dict[str, Callable[[Random, str], bytes]] = {
    "attack": _attacked,
    "zip": _zipped,
    "fault": _faulty,
    "bytes": _damaged,
    "bomb": _bomb,
}


def make_archive(seed: int, case: int, markers: str) -> Case:
    """The network file of a number.

    Args:
        seed: Of all cases.
        case: Number of this one.
        markers: Folder in which code of the file would make a folder.
    """
    rng = Random(f"network-{seed}-{case}")
    (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    content = _MAKERS[kind](rng, f"{markers}/{seed}-network{case}")
    return Case(
        name=f"network-{case}",
        dialect=f"network {kind}",
        form="plain",
        files=((b"network.pt2", content),),
        lines=0,
        markers=content.count(markers.encode()),
    )
