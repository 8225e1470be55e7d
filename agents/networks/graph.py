"""A network as TVM's Relax has it: imported, simplified for inference, fused, and cut into workloads.

Runs in the confined process of `reader_process.py`; imports TVM when called. The same network gives the same
workloads each time, and the compiled library calls exactly these.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from agents.errors import last_line
from agents.networks.network_name import NetworkRefusedError, why_value_shaped
from agents.networks.operator_kind import operator_kind
from agents.networks.rewrites.convolutions import channels_last, lower_convolution
from agents.networks.rewrites.movements import fold_paddings, settle_movements
from agents.networks.rewrites.reductions import means_as_products
from agents.networks.sources import LoadedNetwork
from agents.networks.torch_import import import_program
from agents.programs.design_space import SPACE_TARGETS
from agents.programs.workloads import workload_from_module, workload_id_of
from agents.records import Family, Workload

#: ONNX operators whose output's size depends on values; torch's are found when a program is loaded.
_VALUE_SHAPED = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
_DIGITS = re.compile(r"\d+(?=_|$)")
_MOST_NAME = 60
#: The attribute by which a program tells which of its arguments are constants.
WEIGHTS = "layout_free_buffers"
#: A Relax operator's tensor program: (block builder, call) -> expression.
_Lowering = Callable[[Any, Any], Any]


def lowered(loaded: LoadedNetwork, family: Family) -> Any:
    """A network as tensor programs of fixed shape, the same for all devices of the family.

    Raises:
        NetworkRefusedError: TVM cannot import or lower it, or a shape in it depends on values.
    """
    module = fused(relax_module(loaded), family, loaded.network.text)
    if _is_dynamic(module):
        names = [name for name in loaded.operators() if name in _VALUE_SHAPED]
        raise NetworkRefusedError(
            f"network {loaded.network.text}: {why_value_shaped(' and '.join(names) or 'an operator')}"
        )
    return module


def relax_module(loaded: LoadedNetwork) -> Any:
    """Import a network; its weights are constants of the module.

    Raises:
        NetworkRefusedError: TVM has no way to import an operator of it, or to read it at all.
    """
    name = loaded.network.text
    try:
        if loaded.program is not None:
            return import_program(loaded.program)
        from tvm.relax.frontend.onnx import from_onnx

        return from_onnx(loaded.onnx_model)
    except Exception as error:
        raise NetworkRefusedError(f"network {name}: TVM cannot import it: {last_line(error, 400)}") from None


def fused(module: Any, family: Family, network: str) -> Any:
    """Make the tensor programs of a module: norms folded, exponentials as polynomials, neighbours fused.

    They are the same for all devices of the family.

    Raises:
        NetworkRefusedError: An operator has no tensor program.
    """
    import tvm
    from tvm import relax

    target = tvm.target.Target(SPACE_TARGETS[family])
    try:
        module = fold_batch_norms(module)
        module = relax.transform.DecomposeOpsForInference()(module)
        module = relax.transform.FoldConstant()(module)
        # TVM changes no order of axes whose number it does not know; such a network is refused afterwards.
        if family is Family.CPU and not _is_dynamic(module):
            module = relax.transform.FoldConstant()(means_as_products(channels_last(fold_paddings(module))))
        with target:
            # Cumulative sums and sorts have no tensor program of their own: decoders make masks with them.
            # Those that TVM has for GPUs are scheduled already, and take any length.
            if family is Family.CPU:
                module = relax.backend.DispatchSortScan()(settle_movements(module))
                module = relax.transform.LegalizeOps(_fast_lowerings())(module)
            module = relax.get_pipeline("zero")(module)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network}: TVM's Relax pipeline cannot lower it: {last_line(error, 400)}"
        ) from None
    if operators := _high_level(module):
        raise NetworkRefusedError(
            f"network {network}: has no tensor program for {', '.join(operators)}: TVM cannot schedule it"
        )
    return module


def workloads_of(module: Any, family: Family, network: str) -> list[Workload]:
    """The distinct workloads of a fused module, each with how often it is called.

    Raises:
        NetworkRefusedError: There is none.
        AgentError: A workload has a dynamic shape.
    """
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    tasks = ms.relax_integration.extract_tasks(module, tvm.target.Target(SPACE_TARGETS[family]))
    workloads: dict[str, Workload] = {}
    for task in tasks:
        # The machine gives the same numbers another shape without a program.
        if relax.analysis.has_reshape_pattern(task.dispatched[0]["main"]):
            continue
        name = str(task.task_name)
        workload = workload_from_module(
            task.dispatched[0], name=name, operator="", networks=[(network, int(task.weight))]
        )
        workload = replace(workload, operator=operator_kind(name, workload.arg_shapes))
        workloads[workload.workload_id] = named(workload)
    if not workloads:
        raise NetworkRefusedError(
            f"network {network}: computes nothing, so there is nothing to schedule; name another network"
        )
    return merged(workloads.values())


def workload_ids(module: Any) -> dict[str, str]:
    """The workload of each tensor program of a fused module, by the program's name."""
    import tvm

    return {
        str(variable.name_hint): id_of_program(function)
        for variable, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


def id_of_program(function: Any) -> str:
    """The workload of a tensor program, which may say which of its arguments are weights."""
    import tvm

    plain = function.with_attr("global_symbol", "main").without_attr(WEIGHTS)
    return workload_id_of(tvm.IRModule({"main": plain}))


def named(workload: Workload) -> Workload:
    """Give a workload a name that does not depend on the network: operators, output, and a part of its id."""
    words = _DIGITS.sub("", workload.name.removeprefix("fused_")).replace("tir_clip", "clip")
    shape = "x".join(map(str, workload.arg_shapes[-1])) if workload.arg_shapes else ""
    return replace(workload, name=f"{words[:_MOST_NAME]}_{shape}_{workload.workload_id[:6]}")


def merged(workloads: Iterable[Workload]) -> list[Workload]:
    """Each workload once with its uses in all networks, heaviest share of all FLOPs first."""
    workload_by_id: dict[str, Workload] = {}
    for workload in workloads:
        same = workload_by_id.get(workload.workload_id, workload)
        uses = {**dict(same.networks), **dict(workload.networks)}
        workload_by_id[workload.workload_id] = replace(workload, networks=tuple(sorted(uses.items())))
    return sorted(
        workload_by_id.values(),
        key=lambda workload: (-workload.weight * workload.flops, workload.workload_id),
    )


def fold_batch_norms(module: Any) -> Any:
    """Fold inference batch normalisations into the weights and biases of the convolutions before them.

    TVM's own pass leaves those whose convolution has a bias, and computes in the graph what is constant here.
    """
    from tvm import relax
    from tvm.relax.dpl import TupleGetItemPattern, is_const, is_op, rewrite_call, wildcard

    for has_bias in (True, False):
        conv = is_op("relax.nn.conv2d")(wildcard(), is_const())
        bias = is_const() if has_bias else None
        inner = conv if bias is None else is_op("relax.add")(conv, is_op("relax.reshape")(bias, wildcard()))
        norm = is_op("relax.nn.batch_norm")(inner, *(values := [is_const() for _ in range(4)]))
        parts = (conv, bias, norm, values)

        def rewrite(expr: Any, matches: Any, parts: tuple[Any, ...] = parts) -> Any:
            conv, bias, norm, values = parts
            call, attrs = matches[conv], matches[norm].attrs
            if call.attrs.kernel_layout != "OIHW" or int(attrs.axis) != 1:
                return expr
            constants = [matches[pattern].value.numpy() for pattern in values]
            return _folded(call, 0.0 if bias is None else matches[bias].value.numpy(), constants, attrs)

        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                pattern = TupleGetItemPattern(norm, 0)
                module.update_func(variable, rewrite_call(pattern, rewrite, function))
    return module


def _folded(call: Any, bias: Any, constants: list[Any], attrs: Any) -> Any:
    """The convolution with its normalisation in it, and what is added behind."""
    import numpy as np
    from tvm import relax

    gamma, beta, mean, variance = (constant.astype(np.float64) for constant in constants)
    scale = (gamma if attrs.scale else 1.0) / np.sqrt(variance + float(attrs.epsilon))
    weight = call.args[1].value.numpy()
    after = (bias - mean) * scale + (beta if attrs.center else 0.0)
    scaled = relax.const((weight * scale[:, None, None, None]).astype(weight.dtype))
    convolution = relax.Call(call.op, [call.args[0], scaled], call.attrs)
    return relax.op.add(convolution, relax.const(after.reshape(1, -1, 1, 1).astype(weight.dtype)))


def _expressions(module: Any) -> list[Any]:
    """All expressions of the Relax functions of a module."""
    from tvm import relax

    expressions: list[Any] = []
    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, expressions.append)
    return expressions


def _is_dynamic(module: Any) -> bool:
    """Whether a tensor between tensor programs has a shape that is not fixed."""
    import tvm
    from tvm import relax

    types = [expr.ty for expr in _expressions(module) if isinstance(expr, relax.Var)]
    shapes = [ty.shape or (None,) for ty in types if isinstance(ty, relax.TensorType)]
    return not all(isinstance(extent, tvm.tirx.IntImm) for shape in shapes for extent in shape)


def _high_level(module: Any) -> list[str]:
    """Relax operators that are left where only calls of tensor programs should be."""
    from tvm import relax

    calls = [expr for expr in _expressions(module) if isinstance(expr, relax.Call)]
    names = dict.fromkeys(str(getattr(call.op, "name", "")) for call in calls)
    return [
        name.removeprefix("relax.") for name in names if name.startswith("relax.") and name not in _LOWERED
    ]


#: What may be left: calls, and what the virtual machine does itself.
_LOWERED = frozenset(
    {
        *("relax.call_tir", "relax.call_tir_inplace", "relax.call_pure_packed", "relax.memory.view"),
        *("relax.call_dps_packed", "relax.reshape", "relax.shape_of", "relax.tensor_to_shape"),
    }
)


def _fast_lowerings() -> dict[str, _Lowering]:
    """Lowerings of Relax operators to polynomials, which a processor computes eight or sixteen at a time.

    TVM lowers `exp`, `tanh` and `erf` to a call of the C library for each number: a GELU of 65,536 numbers
    takes 480 us, with TVM's own polynomials 27 us. They are right to some 4e-7 of the largest output. GPUs
    have instructions of their own for them, and operators of other types than float32 keep TVM's lowering.
    """
    from tvm import topi

    def sigmoid(x: Any) -> Any:
        return topi.divide(1.0, topi.add(1.0, topi.fast_exp(topi.negative(x))))

    def gelu(x: Any) -> Any:
        return topi.multiply(
            x, topi.add(0.5, topi.multiply(0.5, topi.fast_erf(topi.multiply(x, math.sqrt(0.5)))))
        )

    def gelu_tanh(x: Any) -> Any:
        cubic = topi.multiply(x, topi.add(1.0, topi.multiply(0.044715, topi.multiply(x, x))))
        inner = topi.fast_tanh(topi.multiply(math.sqrt(2 / math.pi), cubic))
        return topi.multiply(x, topi.add(0.5, topi.multiply(0.5, inner)))

    def silu(x: Any) -> Any:
        return topi.multiply(x, sigmoid(x))

    plain = {
        "relax.erf": topi.fast_erf,
        "relax.exp": topi.fast_exp,
        "relax.tanh": topi.fast_tanh,
        "relax.sigmoid": sigmoid,
        "relax.nn.gelu": gelu,
        "relax.nn.gelu_tanh": gelu_tanh,
        "relax.nn.silu": silu,
    }
    own = {operator: _lowering(operator, compute) for operator, compute in plain.items()}
    own |= {"relax.nn.softmax": _lowering("relax.nn.softmax", topi.nn.fast_softmax, "axis")}
    return own | {"relax.nn.conv2d": lower_convolution, "relax.power": _lower_power}


def _lower_power(builder: Any, call: Any) -> Any:
    """Lower a square or a cube to products: the C library has a call per number for them."""
    from tvm import topi
    from tvm.ir import Op
    from tvm.ir.expr import GenericConst

    base, exponent = call.args
    if (
        isinstance(exponent, GenericConst)
        and not exponent.ty.shape
        and float(exponent.value.numpy()) in (2, 3)
    ):
        count = int(exponent.value.numpy())
        return builder.call_te(
            lambda x: functools.reduce(topi.multiply, [x] * count), base, primfunc_name_hint="power"
        )
    return Op.get("relax.power").get_attr("FLegalize")(builder, call)


def _lowering(operator: str, compute: Callable[..., Any], *attributes: str) -> _Lowering:
    """Lower an operator by a function of its input and of the values of some attributes."""
    from tvm.ir import Op

    usual, name = Op.get(operator).get_attr("FLegalize"), operator.rpartition(".")[2]

    def lower(builder: Any, call: Any) -> Any:
        if call.ty.dtype != "float32":
            return usual(builder, call)
        values = [int(call.attrs[attribute]) for attribute in attributes]
        return builder.call_te(compute, call.args[0], *values, primfunc_name_hint=name)

    return lower
