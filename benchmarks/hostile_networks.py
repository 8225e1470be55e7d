"""Network files of strangers: attacks by every text that torch or TVM runs, two zip readers, faults, bombs.

`make_archive(seed, number, markers)` gives one `.pt2` file. Code in it would make a folder of its own name in
`markers`. Called by `benchmarks.hostile_child` and the tests; needs no torch.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
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
    examples,
    honest,
    node,
    program,
    spec,
    tensor,
    tensor_meta,
)
from benchmarks.hostile_files import Case
from benchmarks.hostile_values import damaged, deep_text, with_fault

#: Kinds of files, and their shares in per cent.
KINDS = {"attack": 40, "zip": 25, "fault": 20, "bytes": 10, "bomb": 5}
#: Archives that one confined process reads: it takes some ten seconds to start.
_TOGETHER = 6
#: One in so many goes through that process.
_READ_EVERY = 10
#: Names of cases, and the stage that each goes through.
_STAGES = {"network": "archive", "networks": "reader"}
_Program = dict[str, Any]


def _graph(made: _Program) -> dict[str, Any]:
    graph: dict[str, Any] = made["graph_module"]["graph"]
    return graph


def _signature(made: _Program) -> dict[str, Any]:
    call: dict[str, Any] = made["graph_module"]["module_call_graph"][0]["signature"]
    return call


def _renamed(made: _Program, old: str, new: str) -> _Program:
    """The program with another name for a value, wherever it stands."""
    whole = json.dumps(made).replace(json.dumps(old), json.dumps(new))
    changed: _Program = json.loads(whole)
    return changed


def _guards(rng: Random, made: _Program, code: str) -> _Program:
    made["guards_code"] = [rng.choice((code, f"L['x'].size()[0] == 2 or {code}", f"x\n    {code}"))]
    return made


def _input_name(rng: Random, made: _Program, code: str) -> _Program:
    forms = (f"x={code}", f"x: {code}", f"x=({code}), y", f"x):\n    {code}\n    def g(", f"x = {code} or x")
    return _renamed(made, rng.choice(("x", "p_w", "add", "mul")), rng.choice(forms))


def _argument_names(rng: Random, made: _Program, code: str) -> _Program:
    _signature(made)["forward_arg_names"] = [f"x={code}"]
    return made


def _tree(rng: Random, made: _Program, code: str) -> _Program:
    """Types that torch imports, and contexts that it evaluates, in the trees of inputs and outputs."""
    factory: dict[str, Any] = {
        "default_factory_module": rng.choice(("antigravity", "this", "os")),
        "default_factory_name": "_exit",
    }
    factory["dict_context"] = ["y"]
    leaf = spec(None)
    kinds = (
        {"type": "collections.defaultdict", "context": factory, "children_spec": [leaf]},
        {"type": "collections.namedtuple", "context": json.dumps("os.system"), "children_spec": [leaf]},
        {"type": "collections.OrderedDict", "context": json.dumps([code]), "children_spec": [leaf]},
        {"type": rng.choice(("os.system", code)), "context": json.dumps(code), "children_spec": [leaf]},
        spec("dict", json.dumps([f"y={code}"]), leaf),
    )
    _signature(made)[rng.choice(("in_spec", "out_spec"))] = json.dumps([1, rng.choice(kinds)])
    return made


def _expression(rng: Random, made: _Program, code: str) -> _Program:
    expression = {"as_expr": {"expr_str": code, "hint": rng.choice((None, {"as_int": 2}))}}
    meta = _graph(made)["tensor_values"][rng.choice(("x", "add", "p_w"))]
    place = rng.randrange(4)
    if place == 0:
        meta["sizes"][0] = expression
    elif place == 1:
        meta["strides"][0] = expression
    elif place == 2:
        meta["storage_offset"] = expression
    else:
        _graph(made)[rng.choice(("sym_int_values", "sym_float_values", "sym_bool_values"))] = {
            "s": expression
        }
        made["range_constraints"] = {code: {"min_val": 1, "max_val": 2}}
    return made


def _operator(rng: Random, made: _Program, code: str) -> _Program:
    called = (
        "torch.os.system",
        "torch.os.mkdir",
        "torch.load",
        "torch.utils.data.os.mkdir",
        "torch.ops.load_library",
        "torch.ops.aten.name.format",
        "torch.ops.aten.add.__class__",
        "torch.ops.aten.add.op",
        "torch.ops.aten._dir.append",
        "torch.ops.aten.from_file.default",
        "torch.ops.inductor._alloc_from_pool",
        "torch.ops.higher_order.run_const_graph",
        "_operator.methodcaller",
        "math.pow",
        "#aoti:x",
        "torch.ops.aten.add.Tensor\n",
        code,
    )
    given: dict[str, Any] = {"": {"as_string": code.split("'")[-2]}}
    if rng.random() < 0.5:
        given = {"self": tensor("x")}
    _graph(made)["nodes"][0] = node(rng.choice(called), given, "add")
    return made


def _argument(rng: Random, made: _Program, code: str) -> _Program:
    kinds = (
        {"as_operator": "torch.os.system"},
        {"as_custom_obj": {"name": "c", "class_fqn": code}},
        {"as_string": code},
        {"as_strings": [code]},
        {"as_string_to_argument": {code: {"as_string": code}}},
        {"as_sym_int": {"as_expr": {"expr_str": code}}},
        {"as_sym_int": {"as_name": code}},
        {"as_graph": {"name": code, "graph": _graph(program())}},
        {"as_graph": {"name": "sub", "graph": _graph(_input_name(rng, program(), code))}},
        {"as_device": {"type": code, "index": None}},
    )
    given = rng.choice(_graph(made)["nodes"])["inputs"]
    given[rng.randrange(len(given))]["arg"] = rng.choice(kinds)
    return made


def _metadata(rng: Random, made: _Program, code: str) -> _Program:
    source = {"name": code, "target": "torch.os.system", "pass_name": code, "action": [1], "graph_id": 1}
    notes = {
        "stack_trace": code,
        "nn_module_stack": f"L__self__,{code},{code}",
        "source_fn_stack": f"x,{rng.choice(('torch.os.system', 'torch.nn.os', code.replace(',', '')))}",
        "torch_fn": f"{code};{code}",
        "custom": json.dumps({code: code}),
        "from_node": json.dumps([source]),
    }
    for called in _graph(made)["nodes"]:
        called["metadata"] = dict(rng.sample(sorted(notes.items()), rng.randrange(1, 7)))
    made["graph_module"]["metadata"] = {"custom": json.dumps(code)}
    made["graph_module"]["treespec_namedtuple_fields"] = {code: {"field_names": [code]}}
    return made


def _attribute(rng: Random, made: _Program, code: str) -> _Program:
    specs = made["graph_module"]["signature"]["input_specs"]
    name = rng.choice((code, f'w"); {code}; ("', "__class__.__init__", "forward", "w.__dict__"))
    specs[0]["parameter"]["parameter_name"] = name
    return made


def _verifier(rng: Random, made: _Program, code: str) -> _Program:
    made[rng.choice(("verifiers", "torch_version", "opset_version"))] = rng.choice(([code], code, {code: 1}))
    return made


#: Texts of the graph that are run, looked up or imported.
ATTACKS: tuple[Callable[[Random, _Program, str], _Program], ...] = (
    _guards,
    _input_name,
    _argument_names,
    _tree,
    _expression,
    _operator,
    _argument,
    _metadata,
    _attribute,
    _verifier,
)


def with_attack(rng: Random, marker: str, attack: Callable[[Random, _Program, str], _Program]) -> Entries:
    """An archive whose graph would make the folder `marker`."""
    code = f"__import__('os').mkdir('{marker}')"
    return {**honest(), MODEL: json.dumps(attack(rng, program(), code)).encode()}


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
    choice = rng.randrange(len(ATTACKS) + 2)
    return archive(
        with_pickle(rng, marker) if choice >= len(ATTACKS) else with_attack(rng, marker, ATTACKS[choice])
    )


def _zipped(rng: Random, marker: str) -> bytes:
    return rng.choice(ZIPS)(rng, honest(), with_attack(rng, marker, rng.choice(ATTACKS)), MODEL)


def _faulty(rng: Random, marker: str) -> bytes:
    """Faults in the values of the graph or of a list of tensors."""
    made = honest()
    name = rng.choice((MODEL, MODEL, MODEL, WEIGHTS, CONSTANTS))
    whole = json.loads(made[name])
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        whole = with_fault(rng, whole)
    made[name] = deep_text(whole)
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


def network_names(count: int) -> list[str]:
    """Names of the cases of so many network files.

    Each is checked, which most do not pass; some are read then: some attacks on the graph pass the check,
    without what they carry.
    """
    groups = range(0, count // _READ_EVERY, _TOGETHER)
    return [*(f"network-{number}" for number in range(count)), *(f"networks-{start}" for start in groups)]


def is_network_case(name: int | str) -> bool:
    """Whether a case is one of these."""
    kind, _, number = str(name).partition("-")
    return kind in _STAGES and number.isdigit()


def network_stages(name: str) -> tuple[str, ...]:
    """Stages of a case."""
    return (_STAGES[name.partition("-")[0]],)


def network_case(name: str, seed: int, markers: str) -> Case:
    """One network file, or some together."""
    kind, _, number = name.partition("-")
    first = make_archive(seed, int(number), markers)
    if kind == "network":
        return first
    several = [make_archive(seed, int(number) + more, markers) for more in range(_TOGETHER)]
    files = tuple((f"{place}.pt2".encode(), case.files[0][1]) for place, case in enumerate(several))
    markers_inside = sum(case.markers for case in several)
    return replace(first, name=name, dialect="network reader", files=files, markers=markers_inside)
