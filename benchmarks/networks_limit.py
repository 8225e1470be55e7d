"""The physical limit of a network on some cores: its multiply-adds, and how many the cores do in a second.

A child of `benchmarks.networks`: one JSON object on stdin, one on stdout. The peak is measured with a product
of matrices whose parts stay in registers and in the nearest cache, compiled by TVM for the device. On a core
with AVX-512 it was nearer to what the clock allows than torch's product of two 1,024 x 1,024 matrices.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: Rows, columns and depth of the product: 24 vectors of 16 numbers are added up in registers.
_ROWS, _COLUMNS, _DEPTH, _LANES = 12, 32, 256, 16
#: Runs in a turn, and turns; the fastest turn counts.
_RUNS, _TURNS = 10_000, 20


def network_flops(network: str) -> int:
    """Floating point operations of a network's products, convolutions and attention; 2 per multiply-add.

    Those of norms and activations are left out.

    Args:
        network: As `agents.networks.network_name` reads it; it comes from torch.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from agents.networks.network_name import read_network_name
    from agents.networks.outputs import tensor_of
    from agents.networks.sources import load

    loaded = load(read_network_name(network))
    leaves = [tensor_of(value) for value in loaded.random_inputs()]
    args, named = torch.utils._pytree.tree_unflatten(leaves, loaded.program.call_spec.in_spec)
    # On CPUs torch's counter knows attention only as products.
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loaded.program.module(check_guards=False)(*args, **named)
    return int(counter.get_total_flops())


def peak_flops_per_s(target: dict[str, Any], cores: list[int]) -> float:
    """Multiply-adds of float32 that some cores do together in a second, times 2.

    Args:
        target: Of the device, as TVM reads it.
        cores: Logical CPUs, of which each runs the product at the same time.
    """
    import numpy as np
    import tvm

    built = tvm.build(_product(), target=tvm.target.Target({**target, "num-cores": 1}))
    device = tvm.cpu()

    def fastest(core: int) -> float:
        os.sched_setaffinity(0, {core})  # of this thread
        shapes = ((_DEPTH, _ROWS), (_DEPTH, _COLUMNS), (_ROWS, _COLUMNS))
        arguments = [tvm.runtime.tensor(np.ones(shape, "float32"), device) for shape in shapes]
        timed = built.time_evaluator("main", device, number=_RUNS, repeat=_TURNS)(*arguments)
        return float(min(timed.results))

    with ThreadPoolExecutor(len(cores)) as pool:
        secs = list(pool.map(fastest, cores))
    return sum(2 * _ROWS * _COLUMNS * _DEPTH / turn for turn in secs)


def _product() -> Any:
    """The product's program: sums in registers, columns in vectors."""
    from tvm import te
    from tvm.s_tir import Schedule

    left = te.placeholder((_DEPTH, _ROWS), name="left")
    right = te.placeholder((_DEPTH, _COLUMNS), name="right")
    step = te.reduce_axis((0, _DEPTH), "step")
    product = te.compute(
        (_ROWS, _COLUMNS), lambda i, j: te.sum(left[step, i] * right[step, j], axis=step), name="product"
    )
    schedule = Schedule(te.create_prim_func([left, right, product]))
    block = schedule.get_sblock("product")
    row, column, depth = schedule.get_loops(block)
    outer, lanes = schedule.split(column, [None, _LANES])
    schedule.reorder(depth, row, outer, lanes)
    written = schedule.cache_write(block, 0, "local")
    schedule.vectorize(lanes)
    schedule.unroll(outer)
    schedule.unroll(row)
    *_, last_row, last_column = schedule.get_loops(written)
    outer, lanes = schedule.split(last_column, [None, _LANES])
    schedule.vectorize(lanes)
    schedule.unroll(outer)
    schedule.unroll(last_row)
    schedule.decompose_reduction(block, depth)
    return schedule.mod


def main() -> None:
    """Answer one question: `network`, `target`, `cores`."""
    question = json.load(sys.stdin)
    peak = peak_flops_per_s(question["target"], question["cores"])
    print(json.dumps({"flops": network_flops(question["network"]), "peak_flops_per_s": peak}))


if __name__ == "__main__":
    main()
