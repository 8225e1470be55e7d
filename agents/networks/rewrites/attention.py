"""Attention of a torch program as few programs of TVM: two products of matrices and a softmax.

torch decomposes it for rows that may attend to nothing, and adds a mask of zeros if there is none. Both took
a tenth of the time of a transformer of images. Neither is needed if the mask is known: it is a constant here,
and sequences are padded to a length that vectors divide. Other programs keep torch's way. Called by
`torch_import.py`; imports torch and TVM when called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

#: The operator's name, as TVM's importer looks it up.
ATTENTION: Final = "scaled_dot_product_attention.default"
#: Numbers in a vector of the widest processors. Sequences of more than two vectors are padded to whole ones.
_LANES: Final = 16
#: Of TVM's fusion: a program that nothing joins.
_OPAQUE: Final = 8
#: Largest mask that becomes a constant of the network.
_MOST_MASK: Final = 1 << 24


class _NotConstantError(Exception):
    """A value depends on the network's inputs."""


def keep_attentions(program: Any) -> tuple[Any, Mapping[str, Any]] | None:
    """Decompose a program into core operators, but keep its attention.

    Args:
        program: A `torch.export.ExportedProgram`.

    Returns:
        The program, and the mask of each attention by its node's name: numbers (heads of all images or 1,
        rows, columns) to add to products, or None if each row may attend to all columns. None if there is no
        attention, or one that needs torch's own way: half precision, a mask that depends on inputs, or a row
        without any column.
    """
    import torch

    target = torch.ops.aten.scaled_dot_product_attention.default
    if not any(node.target is target for node in program.graph.nodes):
        return None
    decompositions: Any = torch.export.default_decompositions()
    decompositions.pop(target, None)
    kept = program.run_decompositions(decompositions)
    constants = {
        spec.arg.name: {**kept.state_dict, **kept.constants}.get(spec.target)
        for spec in kept.graph_signature.input_specs
    }
    try:
        masks = {node.name: _mask(node, constants) for node in kept.graph.nodes if node.target is target}
    except _NotConstantError:
        return None
    return kept, masks


def _mask(node: Any, constants: Mapping[str, Any]) -> Any:
    import torch

    arguments = _arguments(node)
    query, key, mask = (arguments[name] for name in ("query", "key", "attn_mask"))
    shape = (*query.meta["val"].shape[:-1], key.meta["val"].shape[-2])
    if query.meta["val"].dtype != torch.float32 or len(shape) != 4:
        raise _NotConstantError
    allowed = torch.ones(shape[-2:], dtype=torch.bool).tril() if arguments["is_causal"] else None
    if mask is not None:
        allowed = _constant(mask, constants)
    if allowed is None or (allowed.dtype == torch.bool and bool(allowed.all())):
        return None
    added = allowed
    if allowed.dtype == torch.bool:
        added = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
    added = added.float().reshape((1,) * (4 - added.ndim) + tuple(added.shape))
    if added.shape[:2] != (1, 1):
        added = added.expand(*shape[:2], *added.shape[2:])
    if added.numel() > _MOST_MASK or bool(torch.isneginf(added).all(-1).any()):
        raise _NotConstantError
    return added.flatten(0, 1).numpy() if bool(added.any()) else None


def _constant(node: Any, constants: Mapping[str, Any]) -> Any:
    """Compute a node of the graph that depends on no input."""
    from torch.fx.node import map_arg

    if node.op == "placeholder" and constants.get(node.name) is not None:
        return constants[node.name].detach()
    if node.op != "call_function":
        raise _NotConstantError
    args, named = map_arg((node.args, node.kwargs), lambda argument: _constant(argument, constants))
    return node.target(*args, **named)


def _arguments(node: Any) -> dict[str, Any]:
    """The arguments of an attention by name."""
    from torch.fx.operator_schemas import normalize_function

    normalised: Any = normalize_function(
        node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True
    )
    arguments: dict[str, Any] = normalised.kwargs
    return arguments


def attention(masks: Mapping[str, Any]) -> Callable[[Any, Any], Any]:
    """The converter of an attention, for TVM's importer.

    Args:
        masks: As `keep_attentions` gives them.
    """

    def convert(node: Any, importer: Any) -> Any:
        from tvm import relax

        arguments = _arguments(node)
        key_node, value_node, scale = arguments["key"], arguments["value"], arguments["scale"]
        query, key, value = (importer.env[arguments[name]] for name in ("query", "key", "value"))
        images, heads, rows, width = (int(extent) for extent in query.ty.shape)
        if arguments["enable_gqa"]:
            repeats = heads // int(key.ty.shape[1])
            key, value = relax.op.repeat(key, repeats, 1), relax.op.repeat(value, repeats, 1)
        columns = int(key_node.meta["val"].shape[-2])
        long, wide = _padded(rows), _padded(columns)
        scaled = relax.op.multiply(query, relax.const(scale or 1 / math.sqrt(width), "float32"))
        left = _stack(scaled, (images * heads, rows, width), (long - rows, 0))
        right = _copied(importer, _stack(key, (images * heads, columns, width), (0, 0)), wide - columns)
        depth = int(value_node.meta["val"].shape[-1])
        values = _stack(value, (images * heads, columns, depth), (wide - columns, 0))
        emit = importer.block_builder.emit
        products = emit(relax.op.matmul(emit(left), emit(relax.op.permute_dims(right, [0, 2, 1]))))
        mask = _padded_mask(masks[node.name], (rows, columns), (long, wide))
        if mask is not None:
            products = emit(relax.op.add(products, relax.const(mask)))
        shares_of = emit(relax.op.nn.softmax(products, -1))
        output = emit(relax.op.matmul(shares_of, emit(values)))
        if long > rows:
            output = emit(relax.op.strided_slice(output, axes=[1], begin=[0], end=[rows]))
        return emit(relax.op.reshape(output, (images, heads, rows, depth)))

    return convert


def _padded(extent: int) -> int:
    """The length to which a sequence is padded."""
    return extent if extent <= 2 * _LANES else -(-extent // _LANES) * _LANES


def _stack(tensor: Any, shape: tuple[int, ...], after: tuple[int, int]) -> Any:
    """All heads one after the other, with zeros behind rows and columns."""
    from tvm import relax

    stacked = relax.op.reshape(tensor, shape)
    return relax.op.nn.pad(stacked, [0, 0, 0, after[0], 0, after[1]]) if any(after) else stacked


def _copied(importer: Any, tensor: Any, rows_after: int) -> Any:
    """A copy of (heads, rows, width) with rows of zeros behind it, in a program of its own.

    The keys of a ViT-tiny's layer take 101 us in a program that puts heads first, pads and transposes, and
    27 us in two programs.
    """
    from tvm import topi

    return importer.block_builder.emit_te(
        topi.nn.pad,
        importer.block_builder.emit(tensor),
        [0, 0, 0],
        [0, rows_after, 0],
        primfunc_name_hint="pad",
        primfunc_attrs={"op_pattern": _OPAQUE},
    )


def _padded_mask(mask: Any, extents: tuple[int, int], padded: tuple[int, int]) -> Any:
    """The mask with columns that nothing attends to behind it; None if everything may be attended to."""
    import numpy as np

    (rows, columns), (long, wide) = extents, padded
    if mask is None and wide == columns:
        return None
    if mask is None:
        mask = np.zeros((1, 1, columns), "float32")
    mask = np.broadcast_to(mask, (*mask.shape[:2], columns))
    mask = np.pad(mask, [(0, 0), (0, long - rows if mask.shape[1] > 1 else 0), (0, 0)])
    return np.pad(mask, [(0, 0), (0, 0), (0, wide - columns)], constant_values=-np.inf)
