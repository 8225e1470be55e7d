from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from agents.errors import AgentError
from agents.programs.check import (
    argument_values,
    difference,
    is_checkable,
    poisoned,
    reference_outputs,
    tolerance_of,
)
from agents.programs.workloads import network_workloads

#: That of a sum of 4,608 terms in float32, the longest of the known networks.
TOLERANCE = 4.237e-5


def total_module(terms: int, *, dtype: str = "float32", kept_in: str | None = None) -> Any:
    """Four sums of `terms` values."""
    import tvm
    from tvm import te

    kept_in = kept_in or dtype
    source = te.placeholder((4, 4608), name="A", dtype=dtype)
    k = te.reduce_axis((0, terms), "k")
    total = te.compute((4,), lambda i: te.sum(source[i, k].astype(kept_in), axis=k), name="total")
    result = total if kept_in == dtype else te.compute((4,), lambda i: total[i].astype(dtype), name="out")
    return tvm.IRModule({"main": te.create_prim_func([source, result])})


def test_values_depend_on_shape_dtype_and_seed_only() -> None:
    shapes, dtypes = [(2,), (2, 2), ()], ["float32", "int32", "float64"]
    values = argument_values(shapes, dtypes, 3)
    assert [value.dtype.name for value in values] == dtypes
    assert [value.shape for value in values] == shapes
    # Written down, not computed: records made with other values could not be compared.
    assert values[0].tolist() == pytest.approx([0.17708425, 0.31312945], rel=1e-6)
    assert values[1].tolist() == [[0, 1], [1, 1]]
    assert float(values[2]) == pytest.approx(0.18471578, rel=1e-6)
    assert all(isinstance(value, np.ndarray) for value in values)
    assert not np.array_equal(values[0], argument_values(shapes, dtypes, 4)[0])


def test_only_outputs_are_poisoned() -> None:
    dtypes = ["float32", "bfloat16", "int32", "uint8", "bool", "float32"]
    values = argument_values([(3,)] * 6, dtypes, 1)
    before = [value.copy() for value in values]
    spoilt = poisoned(values, {1, 2, 3, 4, 5})
    assert all(map(np.array_equal, values, before))
    assert np.array_equal(spoilt[0], values[0])
    assert all(np.isnan(spoilt[place].astype("float32")).all() for place in (1, 5))
    assert spoilt[2].tolist() == [-1515870811] * 3
    assert spoilt[3].tolist() == spoilt[4].view(np.uint8).tolist() == [165] * 3
    assert [one.dtype for one in spoilt] == [value.dtype for value in values]


#: What is expected, `=` or `!` for whether that agrees, and what is found, all in float32.
AGREEMENTS = """
    1 2      = 1 2
    1 2      = 1.00001 2
    1 2      ! 1.001 2
    nan 1    = nan 1
    nan 1    ! 0 1
    0 1      ! nan 1
    inf 1    = inf 1
    inf 1    ! -inf 1
    inf 1    ! 3e38 1
    3e38 1   ! inf 1
    3e38 1e38 ! 3e38 -1e38
    1e-30 2e-30 ! 1e-30 2.1e-30
    0 0      = 0 -0
    0 0      ! 1e-9 0
    100 0    = 100 1e-5
"""


@pytest.mark.parametrize("line", AGREEMENTS.strip().splitlines())
def test_numbers_agree_to_the_tolerance(line: str) -> None:
    agrees = "=" in line
    expected, found = (np.array(part.split(), "float32") for part in line.split("=" if agrees else "!"))
    assert (difference({0: expected}, {0: found}, tolerance=TOLERANCE) == "") is agrees


#: The same of numbers of other types, and of shapes.
OTHER_AGREEMENTS = """
    []                 = []
    [1, 2]             = [1, 2]
    [1099511627776, 2] ! [1099511627777, 2]
    [true]             ! [false]
    1.0                ! 2.0
    [0.0, 0.0]         ! [0.0, 0.0, 0.0]
    [0.0]              ! [0]
"""


@pytest.mark.parametrize("line", OTHER_AGREEMENTS.strip().splitlines())
def test_integers_agree_if_equal_and_shapes_and_types_if_they_are_the_same(line: str) -> None:
    expected, found = ({0: np.array(json.loads(part))} for part in re.split("[=!]", line))
    assert (difference(expected, found, tolerance=TOLERANCE) == "") is ("=" in line)


def test_a_difference_is_told_in_one_sentence() -> None:
    right = np.arange(12, dtype="float32").reshape(3, 4)
    wrong = right.copy()
    wrong[1, 2], wrong[2, 0] = 60.0, 8.5
    sentence = difference({0: right, 2: right}, {0: right, 2: wrong}, tolerance=TOLERANCE)
    assert sentence == (
        "argument 2 differs in 2 of 12 elements from the unscheduled program's output, which it must equal "
        "to a relative 4.2e-05; worst at [1, 2]: 60.0 instead of 6.0"
    )
    whole = difference({0: np.array([1, 2, 3])}, {0: np.array([1, 5, 9])}, tolerance=TOLERANCE)
    assert whole.endswith("which it must equal exactly; worst at [1]: 5 instead of 2")


@given(arrays.arrays("float32", arrays.array_shapes(max_dims=2, max_side=4), elements=st.floats(width=32)))
def test_every_output_agrees_with_itself_and_with_no_poison(values: Any) -> None:
    assert difference({0: values}, {0: values.copy()}, tolerance=TOLERANCE) == ""
    if np.isfinite(values).any():
        assert difference({0: values}, {0: poisoned([values], {0})[0]}, tolerance=TOLERANCE)


@pytest.mark.tvm
@pytest.mark.parametrize("terms", [64, 4608])
def test_another_order_of_a_sum_agrees_and_a_missing_term_does_not(terms: int) -> None:
    module = total_module(terms)
    values = argument_values([(4, 4608), (4,)], ["float32", "float32"], 1)
    right = reference_outputs(module, values)
    tolerance = tolerance_of(module)
    summed = values[0][:, :terms]
    exact = summed.astype("float64").sum(axis=1).astype("float32")
    assert difference(right, {1: exact}, tolerance=tolerance) == ""
    backwards = np.add.accumulate(summed[:, ::-1], axis=1, dtype="float32")[:, -1]
    assert difference(right, {1: backwards}, tolerance=tolerance) == ""
    short = summed[:, 1:].astype("float64").sum(axis=1).astype("float32")
    assert "differs in" in difference(right, {1: short}, tolerance=tolerance)


@pytest.mark.tvm
def test_the_tolerance_follows_what_a_program_rounds() -> None:
    assert tolerance_of(total_module(64)) < tolerance_of(total_module(4608)) < 1e-4
    assert tolerance_of(total_module(64)) < tolerance_of(total_module(64, dtype="float16")) < 0.05
    # Kept in float16, such a sum stands still long before its end; kept in float32, it is a good one.
    assert math.isinf(tolerance_of(total_module(4608, dtype="float16")))
    assert tolerance_of(total_module(4608, dtype="float16", kept_in="float32")) < 0.02
    assert tolerance_of(total_module(4608, dtype="int32")) == 0


@pytest.mark.tvm
def test_without_a_tolerance_only_numbers_are_asked_for() -> None:
    module = total_module(4608, dtype="float16")
    values = argument_values([(4, 4608), (4,)], ["float16", "float16"], 1)
    right = reference_outputs(module, values)
    exact = values[0].astype("float64").sum(axis=1).astype("float16")
    assert difference(right, {1: exact}, tolerance=0.1)  # plain float16 sums are really that far off
    assert difference(right, {1: exact}, tolerance=tolerance_of(module)) == ""
    unwritten = poisoned(values, {1})[1]
    assert "where either is no number" in difference(right, {1: unwritten}, tolerance=tolerance_of(module))


@pytest.mark.tvm
def test_a_program_that_is_no_plain_loop_is_one_clear_error() -> None:
    from tvm.s_tir.schedule import Schedule

    schedule = Schedule(total_module(64))
    schedule.bind(schedule.get_loops(schedule.get_sblock("total"))[0], "threadIdx.x")
    values = argument_values([(4, 4608), (4,)], ["float32", "float32"], 1)
    with pytest.raises(AgentError, match="unscheduled program does not run on this host's CPU"):
        reference_outputs(schedule.mod, values)


@pytest.mark.tvm
def test_the_layers_of_common_networks_are_checkable_and_larger_programs_are_not() -> None:
    layers = network_workloads(["resnet-50", "bert-base"])
    assert all(is_checkable(layer.flops) for layer in layers)
    assert not is_checkable(8.6e9)
