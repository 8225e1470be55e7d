"""Tensor programs to schedule: operators of known networks. Others come from `agents.networks`.

Imports TVM when called, so only worker processes and one-off preparation call it. It knows nothing of
devices: a workload is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agents.errors import AgentError
from agents.programs.networks import NETWORKS, layers
from agents.records import Workload, WorkloadId, is_imported


def workload_id_of(module: Any) -> WorkloadId:
    """Name a `tvm.IRModule` by TVM's structural hash (64 bits, 16 hexadecimal digits)."""
    import tvm_ffi

    return WorkloadId(f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}")


class WorkloadRefusedError(AgentError):
    """A workload whose program is not the one that its id names."""


def own_module(workload: Workload) -> Any:
    """Load the module of a workload of ours; whoever schedules or builds it comes through here.

    Who sends a workload has made sure that it is ours (`docs/import.md`). This is a second look: structural
    hashes are no secure ones, so it finds mistakes and clumsy forgeries, and does not stand alone.

    Raises:
        WorkloadRefusedError: It was imported, or its program has another structural hash than its id says.
    """
    import tvm

    if is_imported(workload.workload_id):
        raise WorkloadRefusedError(
            f"workload {workload.workload_id} was imported: its program is not run; list the workload "
            "with an agent of the fleet, and its imported candidates are derived again"
        )
    module = tvm.ir.load_json(workload.module_json)
    module_hash = workload_id_of(module)
    if module_hash != workload.workload_id:
        raise WorkloadRefusedError(
            f"workload {workload.workload_id} holds a program with structural hash {module_hash}: another "
            "version of TVM made it, or it is forged; list it again with this one"
        )
    return module


def arguments_of(module: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Shapes and types of the arguments of `main`; what TVM raises where a shape is not fixed."""
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    infos = ArgInfo.from_prim_func(module["main"])
    shapes = tuple(tuple(int(extent) for extent in info.shape) for info in infos)
    return shapes, tuple(str(info.dtype) for info in infos)


def workload_from_module(
    module: Any, *, name: str, operator: str, networks: Iterable[tuple[str, int]] = ()
) -> Workload:
    """Describe a `tvm.IRModule` with one PrimFunc `main`.

    Raises:
        AgentError: An argument has a dynamic shape, so it cannot be allocated.
    """
    import tvm
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        shapes, dtypes = arguments_of(module)
    except Exception as error:
        raise AgentError(
            f"workload {name}: its arguments cannot be read as tensors of fixed shape ({error}); "
            "schedule it with concrete shapes"
        ) from error
    return Workload(
        workload_id=workload_id_of(module),
        name=name,
        operator=operator,
        arg_shapes=shapes,
        arg_dtypes=dtypes,
        flops=float(estimate_tir_flops(module)),
        networks=tuple(sorted(networks)),
        # TVM's own kind of text is no text to an encoder.
        module_json=str(tvm.ir.save_json(module)),
    )


def operator_workload(
    operator: str, args: Sequence[int], networks: Iterable[tuple[str, int]] = ()
) -> Workload:
    """Make one workload of TVM's operator suite (`te_workload.CONFIGS`), such as `C2D` or `GMM`.

    Its arguments are in the suite's order.

    Raises:
        AgentError: The suite has no such operator, or refuses the shape.
    """
    import tvm
    from tvm import te
    from tvm.s_tir.meta_schedule.testing import te_workload

    if operator not in te_workload.CONFIGS:
        operators = ", ".join(sorted(te_workload.CONFIGS))
        raise AgentError(f"operator {operator!r} is not in TVM's operator suite; known: {operators}")
    function, _ = te_workload.CONFIGS[operator]
    try:
        module = tvm.IRModule({"main": te.create_prim_func(function(*args))})
    except Exception as error:
        raise AgentError(f"operator {operator} refuses the shape {tuple(args)}: {error}") from error
    name = f"{operator}_{'x'.join(str(arg) for arg in args)}"
    return workload_from_module(module, name=name, operator=operator, networks=networks)


def network_workloads(networks: Sequence[str]) -> list[Workload]:
    """List the distinct workloads of some networks, heaviest share of all their FLOPs first.

    Raises:
        AgentError: A network is unknown.
    """
    unknown = sorted(set(networks) - set(NETWORKS))
    if unknown:
        raise AgentError(f"unknown network {unknown[0]!r}; known: {', '.join(NETWORKS)}")
    counts: dict[tuple[str, tuple[int, ...]], dict[str, int]] = {}
    for network in networks:
        for layer in layers(network):
            counts.setdefault((layer.operator, layer.args), {})[network] = layer.count
    workloads = [operator_workload(op, args, uses.items()) for (op, args), uses in counts.items()]
    return sorted(workloads, key=lambda workload: (-workload.weight * workload.flops, workload.workload_id))
