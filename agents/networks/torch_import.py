"""The import of a torch program by TVM's Relax, with the mistakes of TVM's importer mended on our side.

Runs in the confined process of `reader_process.py`; imports torch and TVM when called. TVM converts the graph
operator by operator, and forgets torch's types in many places: products are `float32` whatever goes in,
cumulative sums of booleans stay booleans. torch wrote shape and type of each result into the graph. So each
result gets the type that torch has, and a result of another shape is refused with its operator. Operators of
half precision compute in `float32` and round once, as torch's do: sums and norms of TVM's would overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import methodcaller
from typing import Any, Final

from agents.errors import last_line
from agents.networks.rewrites.attention import ATTENTION, attention, keep_attentions

#: Converts a node of the graph: (node, importer) -> Relax expression.
_Converter = Callable[[Any, Any], Any]

_HALVES: Final = ("float16", "bfloat16")
#: Arguments that products take in half precision, by operator: GPUs multiply these much faster. Their sums
#: are `float32`, as TVM's importer has them.
_HALF_ARGUMENTS: Final = {
    **dict.fromkeys(("mm.default", "bmm.default", "matmul.default", "linear.default"), (0, 1)),
    **dict.fromkeys(("addmm.default", "baddbmm.default"), (1, 2)),
    **dict.fromkeys(("convolution.default", "conv1d.default", "conv2d.default", "conv3d.default"), (0, 1)),
}
#: Operators that move numbers as they are, and those that say themselves which type they give.
_MOVES: Final = frozenset(
    f"{name}.{overload}"
    for overload, names in {
        "default": "alias cat clone contiguous embedding expand flip gather index_put index_select permute "
        "repeat reshape roll split_with_sizes stack tril triu unsqueeze view _to_copy",
        "int": "select transpose unbind",
        "Tensor": "index slice split",
        "dim": "squeeze",
        "dims": "squeeze",
    }.items()
    for name in names.split()
) | {"getitem"}


def import_program(program: Any) -> Any:
    """The Relax module of a `torch.export.ExportedProgram`; its weights are constants of the module.

    Raises:
        Exception: Of many kinds: TVM cannot import an operator.
    """
    from tvm.relax.frontend.torch import from_exported_program
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    converters = dict.fromkeys(ExportedProgramImporter().convert_map, _usual()) | _OWN
    kept = keep_attentions(program)
    if kept is not None:
        program, masks = kept
        converters[ATTENTION] = attention(masks)
    return from_exported_program(
        program,
        custom_convert_map={name: _typed(convert) for name, convert in converters.items()},
        run_ep_decomposition=kept is None,
    )


def _usual() -> _Converter:
    """TVM's own converters, which `custom_convert_map` hides in an importer: made once per importer."""
    table_of = cache(methodcaller("create_convert_map"))

    def convert(node: Any, importer: Any) -> Any:
        return table_of(importer)[node.target.__name__](node)

    return convert


def _typed(convert: _Converter) -> _Converter:
    """The same converter, whose result has the type that torch's has."""

    def checked(node: Any, importer: Any) -> Any:
        narrow = _widen(node, importer)
        try:
            value = convert(node, importer)
        except Exception as error:
            raise ValueError(f"{_operator(node)}: {last_line(error)}") from error
        finally:
            importer.env.update(narrow)
        return _as_torch_has_it(node, importer, value, node.meta.get("val"))

    return checked


def _widen(node: Any, importer: Any) -> dict[Any, Any]:
    """Have an operator see its arguments of half precision as `float32`; returns them as they were."""
    from tvm import relax

    name, narrow = node.target.__name__, dict[Any, Any]()
    if name in _MOVES:
        return narrow
    stays = [node.args[place] for place in _HALF_ARGUMENTS.get(name, ())]
    for argument in node.all_input_nodes:
        value = importer.env[argument]
        is_tensor = isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType)
        if is_tensor and argument not in stays and str(value.ty.dtype) in _HALVES:
            narrow[argument] = value
            importer.env[argument] = importer.block_builder.emit(relax.op.astype(value, "float32"))
    return narrow


def _as_torch_has_it(node: Any, importer: Any, value: Any, expected: Any) -> Any:
    import torch
    from tvm import relax

    if not isinstance(expected, torch.Tensor) or not isinstance(value, relax.Expr):
        return value
    if not isinstance(value.ty, relax.TensorType):
        return value
    shape = [getattr(extent, "value", None) for extent in value.ty.shape or ()]
    if None not in shape and value.ty.ndim == len(shape) and shape != list(expected.shape):
        raise ValueError(f"{_operator(node)} gives shape {shape}, and torch {list(expected.shape)}")
    dtype = _dtype(expected)
    if str(value.ty.dtype) == dtype:
        return value
    return importer.block_builder.emit(relax.op.astype(value, dtype))


def _operator(node: Any) -> str:
    """The name of an operator as people write it: `aten.topk.default`."""
    return str(node.target).removeprefix("torch.ops.")


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _cumulative(operator: str) -> _Converter:
    """Sums and products in the type of torch's result: TVM's stay booleans."""

    def convert(node: Any, importer: Any) -> Any:
        from tvm import relax

        dtype = _dtype(node.meta["val"])
        values = importer.block_builder.emit(relax.op.astype(importer.env[node.args[0]], dtype))
        return importer.block_builder.emit(getattr(relax.op, operator)(values, node.args[1], dtype))

    return convert


_OWN: dict[str, _Converter] = {
    "cumsum.default": _cumulative("cumsum"),
    "cumprod.default": _cumulative("cumprod"),
}
