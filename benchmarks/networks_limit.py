"""The physical limit of a network on some cores: its multiply-adds, and how many the cores do in a second.

A child of `benchmarks.networks`: one JSON object on stdin, one on stdout. The peak is measured with the
compute canary, a product of matrices whose parts stay in registers and in the nearest cache, in two tilings.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: Sides of the matrices, and how often they are multiplied.
_SIZE, _REPEATS = 64, 64
#: Columns of a tile, whose sums stay in registers: fewer are faster with AVX2, more with AVX-512.
_LANES = (16, 32)
#: Runs in a turn, and turns; the fastest turn counts.
_RUNS, _TURNS = 30, 20


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
    from tvm.s_tir import Schedule

    from agents.programs.canaries import repeated_matmul, tile_for_cpu

    built = []
    for lanes in _LANES:
        schedule = Schedule(repeated_matmul(_SIZE, _SIZE, depth=_SIZE, repeats=_REPEATS))
        tile_for_cpu(schedule, lanes)
        built.append(tvm.build(schedule.mod, target=tvm.target.Target({**target, "num-cores": 1})))

    def fastest(core: int) -> float:
        os.sched_setaffinity(0, {core})  # of this thread
        sides = [tvm.runtime.tensor(np.ones((_SIZE, _SIZE), "float32"), tvm.cpu()) for _ in range(3)]
        timed = (one.time_evaluator("main", tvm.cpu(), number=_RUNS, repeat=_TURNS)(*sides) for one in built)
        return min(float(min(one.results)) for one in timed)

    with ThreadPoolExecutor(len(cores)) as pool:
        secs = list(pool.map(fastest, cores))
    return sum(2 * _SIZE**3 * _REPEATS / turn for turn in secs)


def main() -> None:
    """Answer one question: `network`, `target`, `cores`."""
    question = json.load(sys.stdin)
    peak = peak_flops_per_s(question["target"], question["cores"])
    print(json.dumps({"flops": network_flops(question["network"]), "peak_flops_per_s": peak}))


if __name__ == "__main__":
    main()
