"""Right answers: the unscheduled program's output, and whether a candidate's output agrees with it.

Called in a worker process (`loaded_workloads.py`). A schedule may reorder and fuse floating-point operations,
so sums agree only within a tolerance that grows with their length; whole numbers must be equal. It knows
nothing of devices: the right answer is computed once, on this host's CPU, and holds everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agents.errors import AgentError

_Array = npt.NDArray[Any]

#: Programs with more floating-point operations are not checked. Plain loops ran at 0.5 (matrix products) to
#: 2.5 GFLOP/s (convolutions) on a 3.7 GHz core: 1.3 s at most there, about 5 s on a core four times slower.
_MOST_FLOPS = 7e8
#: Largest relative error of one rounded operation, by dtype; float8 and narrower count as the coarsest.
_UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_COARSEST_ROUNDOFF = 2.0**-3
#: Fast `exp`, `tanh` and the like of GPUs: relative error at arguments of this size.
_FAST_MATH = 1e-5
#: Rounding errors of a sum of n terms are a random walk: about u*sqrt(n/3) for plain order. Eight times the
#: length's root is more than ten standard deviations, which the worst of a million elements does not reach.
_DEVIATIONS = 8.0
_OPERATIONS = 16.0
#: A running sum to which new terms are too small to add (n*u near 1) has no right digits to compare.
_MOST_STAGNATION = 0.5
#: Byte that poisoned integers are made of: 165, -91 (int8), -1515870811 (int32).
_POISON_BYTE = 0xA5


def is_checkable(flops: float) -> bool:
    """Whether the unscheduled program of a workload with these `flops` is quick enough for a reference."""
    return flops <= _MOST_FLOPS


def argument_values(shapes: Sequence[Sequence[int]], dtypes: Sequence[str], seed: int) -> list[_Array]:
    """Make the values of a workload's arguments, outputs included: the same for the same seed.

    Floating-point values lie in [0.1, 1): no zeros, denormals or infinities, whose speed is not typical.
    All others are 0 or 1, which is a right index into everything.

    Returns:
        One array an argument, of its shape and dtype.
    """
    generator = np.random.default_rng(seed)
    values: list[_Array] = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        if _is_float(dtype):
            drawn = np.asarray(generator.uniform(0.1, 1.0, size=tuple(shape)))
        else:
            drawn = np.asarray(generator.integers(0, 2, size=tuple(shape)))
        values.append(drawn.astype(_numpy_dtype(dtype)))
    return values


def poisoned(values: Sequence[_Array], outputs: Collection[int]) -> list[_Array]:
    """Overwrite outputs with what a right program replaces, so that one that writes too little is found.

    Floating-point outputs become NaN, all others repeat the byte 0xA5. Where that happens to be the right
    value of an integer, leaving it there is right too: a poison never makes a right program look wrong.
    `outputs` are indices of `values`; those get new arrays, the rest are the given ones.
    """
    return [_poison(value) if index in outputs else value for index, value in enumerate(values)]


def tolerance_of(module: Any) -> float:
    """Relative difference that a legal schedule of a program may show in its floating-point outputs.

    For each block u * 8 * sqrt(n), where n terms are reduced in a buffer of unit roundoff u (Higham,
    Accuracy and Stability of Numerical Algorithms, 2.8 and 4.2: rounding errors of a sum act like a random
    walk), over all blocks of the unscheduled `module`, and room for fast intrinsics.

    Returns:
        The tolerance; infinite where a reduction in a short format loses all digits, such as a sum of
        more than 1,024 terms kept in float16.
    """
    return _inspect(module)[1]


def reference_outputs(module: Any, values: Sequence[_Array]) -> dict[int, _Array]:
    """Run the unscheduled program once on this host's CPU.

    Its outputs are poisoned first, as the candidate's are to be: both begin with the same values. It is made
    of plain loops, so it runs on any CPU. `values` has one array an argument, which is left as it is.

    Returns:
        Values of the arguments that it writes, by index.

    Raises:
        AgentError: TVM cannot compile or run it.
    """
    import tvm

    written, _ = _inspect(module)
    begin = poisoned(values, written)
    try:
        program = tvm.tirx.build(module, target=tvm.target.Target({"kind": "llvm"}))
        arguments = [tvm.runtime.tensor(value) for value in begin]
        program.get_function("main", query_imports=True)(*arguments)
    except Exception as error:
        raise AgentError(
            f"the unscheduled program does not run on this host's CPU, so no output of its candidates can be "
            f"checked: {error}; set the protocol's check_share to 0 for such workloads"
        ) from error
    after = [argument.numpy() for argument in arguments]
    # A call into a library writes without telling: its outputs only show in the values.
    return {
        index: output
        for index, output in enumerate(after)
        if index in written or not np.array_equal(output, begin[index])
    }


def difference(expected: Mapping[int, _Array], outputs: Mapping[int, _Array], *, tolerance: float) -> str:
    """Compare outputs with the reference.

    Integers and booleans must be equal. A floating-point element may be off by `tolerance` of its own size
    plus `tolerance` of the array's root mean square (which counts where terms cancel). NaN agrees with NaN
    only, and an infinity with the same infinity. Outputs are given by argument index.

    Returns:
        Empty if they agree, else one sentence.
    """
    for index, right in sorted(expected.items()):
        if index not in outputs:
            return f"argument {index} was not returned"
        sentence = _array_difference(right, outputs[index], tolerance)
        if sentence:
            return f"argument {index} {sentence}"
    return ""


def _array_difference(right: _Array, output: _Array, tolerance: float) -> str:
    if right.shape != output.shape or right.dtype != output.dtype:
        expected = f"{right.dtype} of shape {right.shape}"
        return f"is {output.dtype} of shape {output.shape} instead of {expected}"
    if not _is_float(right.dtype.name):
        wrong = _bytes_of(right) != _bytes_of(output)
        exactness = "exactly"
        distance = np.where(wrong, 1.0, 0.0)
    else:
        exactness = (
            f"to a relative {tolerance:.1e}" if math.isfinite(tolerance) else "where either is no number"
        )
        distance = _excess(right.astype(np.float64), output.astype(np.float64), tolerance)
        wrong = distance > 0
    count = int(np.count_nonzero(wrong))
    if not count:
        return ""
    worst = np.unravel_index(int(np.argmax(distance)), right.shape)
    place = "[" + ", ".join(str(int(position)) for position in worst) + "]"
    return (
        f"differs in {count} of {right.size} elements from the unscheduled program's output, which it must "
        f"equal {exactness}; worst at {place}: {output[worst]} instead of {right[worst]}"
    )


def _excess(right: _Array, output: _Array, tolerance: float) -> _Array:
    """How far each element lies beyond the tolerance; 0 within it, infinite where one is no number."""
    finite = np.isfinite(right) & np.isfinite(output)
    same = (right == output) | (np.isnan(right) & np.isnan(output))
    if math.isinf(tolerance):
        return np.where(finite | same, 0.0, math.inf)
    sizes = np.abs(right[np.isfinite(right)])
    typical = 0.0
    if sizes.size and (largest := float(sizes.max())) > 0:
        # Scaled, since squares of large values overflow.
        typical = largest * math.sqrt(float(np.mean((sizes / largest) ** 2)))
    with np.errstate(invalid="ignore", over="ignore"):
        beyond = np.abs(output - right) - tolerance * (np.abs(right) + typical)
    return np.where(same, 0.0, np.where(finite, np.maximum(beyond, 0.0), math.inf))


def _inspect(module: Any) -> tuple[tuple[int, ...], float]:
    """Read off which arguments the blocks of `main` write and how long they sum.

    Returns:
        Indices of these arguments; the relative error that another order of operations may cause, infinite
        where no digit is sure.
    """
    import tvm_ffi
    from tvm import s_tir, tirx

    function = module["main"]
    written: list[Any] = []
    errors: list[float] = []

    def see_block(block: Any) -> None:
        targets = [region.source for region in block.writes]
        written.extend(targets)
        terms = 1
        for variable in block.iter_vars:
            if variable.iter_type == tirx.IterVar.CommReduce:
                terms *= int(variable.dom.extent)
        dtypes = {str(target.dtype) for target in targets}
        errors.extend(_reduction_error(dtype, terms) for dtype in dtypes if _is_float(dtype))

    def see_store(store: Any) -> None:
        written.append(store.buffer)

    tvm_ffi.structural_walk(
        function.body, [(s_tir.SBlock, see_block), (tirx.BufferStore, see_store)], order="post"
    )
    parameters = list(function.params)
    outputs = [i for i, parameter in enumerate(parameters) if any(parameter.same_as(w) for w in written)]
    dtypes = [str(parameters[index].dtype) for index in outputs]
    room = max((_room(dtype) for dtype in dtypes if _is_float(dtype)), default=0.0)
    return tuple(outputs), room + sum(errors)


def _reduction_error(dtype: str, terms: int) -> float:
    unit = _UNIT_ROUNDOFF.get(dtype, _COARSEST_ROUNDOFF)
    if terms > 1 and unit * terms > _MOST_STAGNATION:
        return math.inf
    return unit * _DEVIATIONS * math.sqrt(terms)


def _room(dtype: str) -> float:
    room = _OPERATIONS * _UNIT_ROUNDOFF.get(dtype, _COARSEST_ROUNDOFF)
    return max(room, _FAST_MATH) if dtype == "float32" else room


def _poison(value: _Array) -> _Array:
    if _is_float(value.dtype.name):
        return np.full(value.shape, math.nan).astype(value.dtype)
    raw = np.full(value.size * value.dtype.itemsize, _POISON_BYTE, np.uint8)
    return raw.view(value.dtype).reshape(value.shape)


def _bytes_of(value: _Array) -> _Array:
    """Booleans as bytes: a poisoned one is neither true nor false."""
    return value.view(np.uint8) if value.dtype == np.bool_ else value


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if _is_float(dtype) and dtype not in ("float16", "float32", "float64"):
        import ml_dtypes  # noqa: F401  # names bfloat16 and float8 to NumPy; a need of TVM's
    return np.dtype(dtype)
