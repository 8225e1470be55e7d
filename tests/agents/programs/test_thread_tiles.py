"""Tiles of GPU spaces: drawn as TVM draws them, but for those whose threads no GPU takes."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from agents.programs.design_space import DesignSpace, draw_tile, prime_powers
from agents.programs.workloads import workload_from_module
from agents.records import Family


def test_a_stranger_s_extent_holds_nobody_up() -> None:
    largest = 2**61 - 1  # a prime
    assert prime_powers(4 * largest) == {2: 2, largest: 1}


@given(st.integers(1, 5_000), st.integers(1, 5), st.integers(0, 2**32))
def test_a_tile_makes_its_loop_and_keeps_its_innermost_factor_small(
    extent: int, count: int, seed: int
) -> None:
    most = extent if count == 1 else 8
    tile = draw_tile(prime_powers(extent), count, most, random.Random(seed))
    assert math.prod(tile) == extent
    assert (len(tile), tile[-1] <= most) == (count, True)


@pytest.mark.tvm
def test_tiles_are_drawn_as_tvm_draws_them() -> None:
    import tvm
    from tvm import te
    from tvm.s_tir.schedule import Schedule

    extent, most = 36, 3
    source = te.placeholder((extent,), name="A")
    made = te.compute((extent,), lambda i: source[i], name="copy")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([source, made])}), seed=1)
    [loop] = schedule.get_loops(schedule.get_sblock("copy"))
    draws, powers, count = random.Random(1), prime_powers(extent), 3_000
    theirs = Counter(
        tuple(int(schedule.get(one)) for one in schedule.sample_perfect_tile(loop, 3, most))
        for _ in range(count)
    )
    ours = Counter(tuple(draw_tile(powers, 3, most, draws)) for _ in range(count))
    assert ours.keys() == theirs.keys()
    table = [[counts[tile] for tile in sorted(ours)] for counts in (ours, theirs)]
    assert chi2_contingency(table).pvalue > 1e-3


@pytest.mark.tvm
def test_tiles_of_tensor_cores_count_warps() -> None:
    """A warp uses tensor cores as a whole: drawn as threads, each program would have 32 warps or more."""
    import tvm
    from tvm import te
    from tvm.s_tir.meta_schedule.testing.te_workload import matmul

    function = te.create_prim_func(matmul(128, 768, 768, in_dtype="float16", out_dtype="float32"))
    module = tvm.IRModule({"main": function})
    workload = workload_from_module(module, name="product", operator="GMM")
    drawn = DesignSpace(workload, Family.GPU).sample(8, seed=3)
    assert len(drawn.candidates) == 8
    # Seventeen of forty draws passed, and one of forty that were drawn as threads.
    assert drawn.tries < 8 * 8
    warps = []
    for candidate in drawn.candidates:
        steps, decisions = json.loads(candidate.trace)
        tiles = [value for place, value in decisions if steps[place][0] == "SamplePerfectTile"]
        warps.append(math.prod(tile[2] for tile in tiles if len(tile) == 5))
    assert max(warps) <= 32
    assert min(warps) < 16
