"""The graph of a `.pt2` file, as an allow-list: the keys, values, operators of a network of fixed shapes.

Follows torch 2.13's schema of exported programs (`torch/_export/serde/schema.py`, major version 8). torch
runs text of that JSON as Python (guards, expressions of shapes, names of inputs in the source that it
writes), imports the types that the trees of inputs and outputs name, and looks up whatever an operator is
called. So nothing passes that is not listed here, and what a network does not need is replaced: guards, notes
of nodes, and trees, of which only the leaves stay. Standard library only.
"""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

_Check = Callable[[Any], None]

#: Major version of the schema; torch reads no other one.
_SCHEMA: Final = 8
#: Tensor operators with their overload, taking one of several results, and two blocks that hold graphs.
#: What is no operator in those places (`torch.ops.aten.name`) is refused by `torch_program.py`.
_OPERATOR: Final = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed)"
    r"\.((?!__|from_file\.)[A-Za-z_]\w{0,99}|__i?(and|or|xor|lshift|rshift)__)\.(?!_)\w{1,99}"
    r"|_operator\.getitem|torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)",
    re.ASCII,
)
#: Graphs in graphs.
_MOST_LEVELS: Final = 3
_MOST_DIMENSIONS: Final = 64
#: Elements of one tensor of a graph.
_MOST_ELEMENTS: Final = 1 << 34
_IDENTIFIER: Final = re.compile(r"(?!__)[A-Za-z_]\w{0,255}", re.ASCII)
#: Names of parameters and buffers: attributes of modules, and keys of their dictionaries.
_ATTRIBUTE: Final = re.compile(r"(?!__)[\w-]{1,128}(\.(?!__)[\w-]{1,128}){0,31}", re.ASCII)
#: Names of modes, equations and messages: no path, no quote, no line.
_WORDS: Final = re.compile(r"[A-Za-z0-9_ ,.:;=<>()+*-]{0,512}")
_VERSION: Final = re.compile(r"[A-Za-z0-9_.+<= -]{1,64}")
_MOST_NUMBER: Final = 1 << 63
#: Bytes of an element, by torch's number of the type.
ELEMENT_BYTES: Final[Mapping[int, int]] = {
    **{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2, 28: 2},
    **{29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8},
}
_STRIDED: Final = 7


class UnknownValueError(ValueError):
    """A value that is not on the list; `path` leads to it, innermost key first."""

    def __init__(self, why: str, *, is_dynamic: bool = False) -> None:
        super().__init__(why)
        self.path: list[str] = []
        #: Of a size that is not fixed: the operator that gives it, if one does.
        self.operator = ""
        self.is_dynamic = is_dynamic

    def __str__(self) -> str:
        text = f"{'.'.join(reversed(self.path))}: {super().__str__()}".removeprefix(": ")
        return "".join(char if char.isprintable() else "?" for char in text[:400])


def check_program(program: Any) -> None:
    """Check an exported program's JSON, and replace in place what torch would run and no network needs.

    Raises:
        UnknownValueError: It holds something that is not on the list.
    """
    version = program.get("schema_version") if isinstance(program, dict) else None
    if isinstance(version, dict) and version.get("major") != _SCHEMA:
        raise UnknownValueError(
            f"has version {_quoted(version.get('major'))} of its schema, and torch 2.13 writes {_SCHEMA}; "
            "save it again with that one"
        )
    try:
        _PROGRAM(program)
    except UnknownValueError as error:
        if error.is_dynamic:
            error.operator = _value_shaped_operator(program)
        raise
    module = program["graph_module"]
    signature = module["signature"]
    entry: dict[str, Any] = {"inputs": [], "outputs": [], "forward_arg_names": None}
    inputs = _leaves(sum("user_input" in each for each in signature["input_specs"]))
    entry["in_spec"] = _tree(_branch("tuple", "null", [inputs, _branch("dict", "[]", [])]))
    entry["out_spec"] = _tree(_leaves(sum("user_output" in each for each in signature["output_specs"])))
    module["module_call_graph"] = [{"fqn": "", "signature": entry}]
    module["metadata"], module["treespec_namedtuple_fields"], program["guards_code"] = {}, {}, []
    for node in _nodes(module["graph"]):
        node["metadata"] = {}


def _value_shaped_operator(program: Any) -> str:
    """The first operator that gives a size which is no number, of a program that may be malformed.

    Returns:
        Its name; empty if an input has such a size already, or none is seen.
    """
    try:
        graph = program["graph_module"]["graph"]
        metas = graph["tensor_values"].items()
        is_open = {name for name, meta in metas if any("as_int" not in size for size in meta["sizes"])}
        if not is_open & {value["as_tensor"]["name"] for value in graph["inputs"] if "as_tensor" in value}:
            for node in graph["nodes"]:
                names = {value["as_tensor"]["name"] for value in node["outputs"] if "as_tensor" in value}
                if names & is_open and _OPERATOR.fullmatch(node["target"]):
                    return str(node["target"]).removeprefix("torch.ops.")
    except (AttributeError, LookupError, TypeError):
        pass
    return ""


def _nodes(graph: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for node in graph["nodes"]:
        yield node
        for argument in node["inputs"]:
            if "as_graph" in argument["arg"]:
                yield from _nodes(argument["arg"]["as_graph"]["graph"])


def _tree(root: dict[str, Any]) -> str:
    return json.dumps([1, root])


def _branch(kind: str, context: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": f"builtins.{kind}", "context": context, "children_spec": children}


def _leaves(count: int) -> dict[str, Any]:
    return _branch("tuple", "null", [{"type": None, "context": None, "children_spec": []}] * count)


def _quoted(value: Any) -> str:
    return f"{value!r:.80}" if isinstance(value, str | int | float | None) else type(value).__name__


def _under(key: str | int, check: _Check, value: Any) -> None:
    try:
        check(value)
    except UnknownValueError as error:
        is_plain = isinstance(key, int) or key.isidentifier()
        error.path.append(f"{key}"[:80] if is_plain else f"{key!r:.80}")
        raise


def _struct(required: Mapping[str, _Check], optional: Mapping[str, _Check] | None = None) -> _Check:
    checks = {**required, **(optional or {})}

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise UnknownValueError(f"expected an object, got {_quoted(value)}")
        for key in value:
            if key not in checks:
                raise UnknownValueError(f"has the unknown key {_quoted(key)}")
        for key in required:
            if key not in value:
                raise UnknownValueError(f"has no {key}")
        # In the order of the list: a shape that is not fixed is found before what uses it.
        for key in filter(value.__contains__, checks):
            _under(key, checks[key], value[key])

    return check


def _union(checks: Mapping[str, _Check]) -> _Check:
    """One of several kinds, by the one key."""

    def check(value: Any) -> None:
        if not isinstance(value, dict) or len(value) != 1:
            raise UnknownValueError(f"expected one of {', '.join(list(checks)[:4])}, got {_quoted(value)}")
        ((key, held),) = value.items()
        if key not in checks:
            raise UnknownValueError(f"has the unknown kind {_quoted(key)}", is_dynamic=key in _SYMBOLIC)
        _under(key, checks[key], held)

    return check


def _list(check: _Check, most: int | None = None) -> _Check:
    def check_all(value: Any) -> None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            raise UnknownValueError(f"expected a list, got {_quoted(value)}")
        for place, held in enumerate(value):
            _under(place, check, held)

    return check_all


def _mapping(name: _Check, check: _Check) -> _Check:
    def check_all(value: Any) -> None:
        if not isinstance(value, dict):
            raise UnknownValueError(f"expected an object, got {_quoted(value)}")
        for key, held in value.items():
            name(key)
            _under(key, check, held)

    return check_all


def _text(pattern: re.Pattern[str], what: str, refused: Collection[str] = ()) -> _Check:
    def check(value: Any) -> None:
        if not isinstance(value, str) or not pattern.fullmatch(value) or value in refused:
            raise UnknownValueError(f"expected {what}, got {_quoted(value)}")

    return check


def _among(values: Collection[Any]) -> _Check:
    def check(value: Any) -> None:
        if type(value) not in (int, str) or value not in values:
            raise UnknownValueError(f"{_quoted(value)} is none of those that a network may have")

    return check


def _empty(value: Any) -> None:
    if value:
        raise UnknownValueError(f"expected nothing, got {_quoted(value)}")


def _no_symbols(value: Any) -> None:
    if value:
        raise UnknownValueError("holds sizes that are not fixed", is_dynamic=True)


def _replaced(value: Any) -> None:
    """Whatever stands here is not given to torch."""


def _integer(value: Any) -> None:
    if type(value) is not int or abs(value) > _MOST_NUMBER:
        raise UnknownValueError(f"expected an integer of 64 bits, got {_quoted(value)}")


def _float(value: Any) -> None:
    # torch writes these three as texts.
    if value in ("Infinity", "-Infinity", "NaN") and isinstance(value, str):
        return
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e308:
        raise UnknownValueError(f"expected a number, got {_quoted(value)}")


def _bool(value: Any) -> None:
    if type(value) is not bool:
        raise UnknownValueError(f"expected true or false, got {_quoted(value)}")


def _optional(check: _Check) -> _Check:
    def check_some(value: Any) -> None:
        if value is not None:
            check(value)

    return check_some


def sizes_of(meta: Mapping[str, Any], key: str) -> list[int]:
    """Sizes or strides of a tensor whose description was checked."""
    return [each["as_int"] for each in meta[key]]


def _size(value: Any) -> None:
    _integer(value)
    if value < 0:
        raise UnknownValueError(f"expected a size, got {value}")


def check_tensor_meta(value: Any) -> None:
    """Check the description of a tensor of fixed shape that lies dense in memory.

    Raises:
        UnknownValueError: It holds something else, or more elements than any network has.
    """
    _TENSOR_META(value)
    if len(value["sizes"]) != len(value["strides"]):
        raise UnknownValueError("has another number of strides than of sizes")
    if math.prod(sizes_of(value, "sizes")) > _MOST_ELEMENTS:
        raise UnknownValueError(f"has more than {_MOST_ELEMENTS:,} elements")


#: Kinds that a program has only if its shapes are not fixed.
_SYMBOLIC = ("as_expr", "as_name")
_name = _text(_IDENTIFIER, "a name", keyword.kwlist)
check_attribute = _text(_ATTRIBUTE, "the name of a parameter or buffer")
_words = _text(_WORDS, "words")
_fixed_size = _union({"as_int": _size})
_dtype = _among(ELEMENT_BYTES.keys())
_device = _struct({"type": _among(("cpu", "cuda", "mps", "xpu"))}, {"index": _optional(_among(range(1024)))})
_TENSOR_META = _struct(
    {
        "sizes": _list(_fixed_size, _MOST_DIMENSIONS),
        "strides": _list(_fixed_size, _MOST_DIMENSIONS),
        "storage_offset": _fixed_size,
        "dtype": _dtype,
        "device": _device,
        "layout": _among((_STRIDED,)),
        "requires_grad": _bool,
    }
)
_tensor = _struct({"name": _name})
_maybe_tensor = _union({"as_tensor": _tensor, "as_none": _bool})
#: What goes into a program and comes out of it.
_VALUES: Final[Mapping[str, _Check]] = {
    "as_tensor": _tensor,
    "as_none": _bool,
    "as_int": _integer,
    "as_float": _float,
    "as_bool": _bool,
    "as_string": _words,
}
_value = _union(_VALUES)
#: What an operator takes besides.
_ARGUMENTS: Final[Mapping[str, _Check]] = {
    **_VALUES,
    "as_tensors": _list(_tensor),
    "as_ints": _list(_integer),
    "as_floats": _list(_float),
    "as_bools": _list(_bool),
    "as_strings": _list(_words),
    "as_sym_int": _union({"as_int": _integer}),
    "as_sym_ints": _list(_union({"as_int": _integer})),
    "as_sym_float": _union({"as_float": _float}),
    "as_sym_floats": _list(_union({"as_float": _float})),
    "as_sym_bool": _union({"as_bool": _bool}),
    "as_sym_bools": _list(_union({"as_bool": _bool})),
    "as_scalar_type": _dtype,
    "as_memory_format": _among(range(1, 5)),
    "as_layout": _among((_STRIDED,)),
    "as_device": _device,
    "as_complex": _struct({"real": _float, "imag": _float}),
    "as_optional_tensor": _maybe_tensor,
    "as_optional_tensors": _list(_maybe_tensor),
    "as_nested_tensors": _list(_list(_tensor)),
}
#: Names of an operator's own arguments may be Python's words; torch looks them up in the operator.
_parameter = _text(re.compile(r"|(?!__)[A-Za-z_]\w{0,99}", re.ASCII), "the name of an argument")


def _graph(levels: int) -> _Check:
    """A graph, with so many levels of graphs in its blocks."""
    arguments = dict(_ARGUMENTS)
    if levels:
        arguments["as_graph"] = _struct({"name": _name, "graph": _graph(levels - 1)})
    argument = _struct({"name": _parameter, "arg": _union(arguments)}, {"kind": _optional(_among(range(3)))})
    fields = _struct(
        {
            "target": _text(_OPERATOR, "a tensor operator of torch"),
            "inputs": _list(argument),
            "outputs": _list(_union({key: _ARGUMENTS[key] for key in _RESULTS})),
            "metadata": _replaced,
        },
        {"is_hop_single_tensor_return": _optional(_bool), "name": _optional(_name)},
    )

    def node(value: Any) -> None:
        try:
            fields(value)
        except UnknownValueError as error:
            if isinstance(value, dict) and isinstance(value.get("target"), str):
                error.path.append(value["target"][:100])
            raise

    return _struct(
        {
            "tensor_values": _mapping(_name, check_tensor_meta),
            "inputs": _list(_value),
            "outputs": _list(_value),
            "nodes": _list(node),
            "sym_int_values": _no_symbols,
            "sym_bool_values": _no_symbols,
        },
        {"is_single_tensor_return": _bool, "custom_obj_values": _empty, "sym_float_values": _no_symbols},
    )


_RESULTS = ("as_tensor", "as_tensors", "as_none", "as_optional_tensor", "as_optional_tensors")


def _spec(key: str, name: _Check) -> _Check:
    return _struct({"arg": _tensor, key: name})


_INPUTS = {
    "user_input": _struct({"arg": _value}),
    "constant_input": _struct({"name": _name, "value": _value}),
    "parameter": _spec("parameter_name", check_attribute),
    "buffer": _struct({"arg": _tensor, "buffer_name": check_attribute, "persistent": _bool}),
    "tensor_constant": _spec("tensor_constant_name", check_attribute),
}
_OUTPUTS = {
    "user_output": _struct({"arg": _value}),
    "buffer_mutation": _spec("buffer_name", check_attribute),
    "parameter_mutation": _spec("parameter_name", check_attribute),
    "user_input_mutation": _spec("user_input_name", _name),
}
_PROGRAM = _struct(
    {
        "graph_module": _struct(
            {
                "graph": _graph(_MOST_LEVELS),
                "signature": _struct(
                    {"input_specs": _list(_union(_INPUTS)), "output_specs": _list(_union(_OUTPUTS))}
                ),
                "module_call_graph": _replaced,
            },
            {"metadata": _replaced, "treespec_namedtuple_fields": _replaced},
        ),
        "opset_version": _mapping(_name, _integer),
        "range_constraints": _no_symbols,
        "schema_version": _struct({"major": _among((_SCHEMA,)), "minor": _integer}),
    },
    {
        "verifiers": _list(_among(("TRAINING", "ATEN", "")), 1),
        "torch_version": _text(_VERSION, "a version"),
        "guards_code": _replaced,
    },
)
