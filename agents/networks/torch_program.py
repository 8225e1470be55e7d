"""Load a `.pt2` file with torch, from the checked copy that `archive.py` writes.

Runs in the confined process of `reader_process.py`; imports torch when called.
"""

from __future__ import annotations

import io
import operator
import tempfile
from collections.abc import Sequence
from typing import Any

from agents.errors import first_line
from agents.networks.archive import rewrite_archive
from agents.networks.network_name import NetworkName, NetworkRefusedError
from agents.networks.outputs import array_of

#: Blocks that hold graphs; they compute nothing themselves.
_BLOCKS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def load_program(network: NetworkName) -> tuple[Any, list[Any]]:
    """Load an exported program.

    Args:
        network: Its file.

    Returns:
        The `torch.export.ExportedProgram`, which takes its inputs and gives its outputs one by one, and its
        example inputs in that order, none if the file has none.

    Raises:
        NetworkRefusedError: The file holds more than a network of fixed shapes, or torch cannot load it.
    """
    import torch
    from torch.export.pt2_archive._package import load_pt2  # torch.export.load hides the reason of a failure

    assert network.path is not None
    with tempfile.NamedTemporaryFile(suffix=".pt2") as copy:
        with network.path.open("rb") as opened:
            examples = rewrite_archive(opened, copy, network.text)
        copy.flush()
        try:
            program = load_pt2(copy.name).exported_programs["model"]
            exported = torch.load(io.BytesIO(examples), weights_only=True) if examples else ()
        except Exception as error:
            raise NetworkRefusedError(
                f"network {network.text}: torch {torch.__version__} cannot load it ({first_line(error)}); "
                "export it with this version"
            ) from None
    _check_operators(program.graph_module, network)
    return program, torch.utils._pytree.tree_leaves(exported)


def _check_operators(module: Any, network: NetworkName) -> None:
    """Refuse whatever torch's look-up of a name made of it, unless it is an operator."""
    import torch

    graphs = [each.graph for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        called = node.target
        is_block = isinstance(called, torch._ops.HigherOrderOperator) and str(called) in _BLOCKS
        if node.op == "call_function" and not (
            is_block or isinstance(called, torch._ops.OpOverload) or called is operator.getitem
        ):
            raise NetworkRefusedError(
                f"network {network.text}: calls {called!s:.100}, which is no operator of torch "
                f"{torch.__version__}"
            )


def example_arrays(
    exported: Sequence[Any], inputs: Sequence[tuple[str, tuple[int, ...], str]]
) -> tuple[Any, ...] | None:
    """Values that were exported with a network, as NumPy arrays.

    Args:
        exported: What its file has for examples.
        inputs: (name, shape, dtype) of each input.

    Returns:
        One array per input; None if these are no tensors of the inputs' shapes.
    """
    import torch

    if len(exported) != len(inputs):
        return None
    arrays = []
    for value, (_, shape, dtype) in zip(exported, inputs, strict=True):
        is_alike = (
            isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"
        )
        if not is_alike or (tuple(value.shape), f"torch.{dtype}") != (shape, str(value.dtype)):
            return None
        arrays.append(array_of(value))
    return tuple(arrays)
