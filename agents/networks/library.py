"""A network as a compiled Relax library with the fastest schedules known of its workloads.

Runs in the confined process of `reader_process.py`; imports TVM when called. `build` makes the library
`tuned`, which applies the schedules; `untuned` is of `agents.networks.first_run`: what TVM compiles without
any, which for GPUs are its default schedules. On CPUs the weights of `tuned` lie in the order in which its
schedules read them: a network finds few of them in a cache, and streams them from memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.errors import last_line
from agents.host.device_kinds import compiled_target
from agents.networks.graph import lowered, workloads_of
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.sources import load
from agents.programs.build import CandidateRefused, scheduled
from agents.programs.design_space import SPACE_TARGETS
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.programs.workloads import workload_id_of
from agents.records import Family

#: The attribute by which a program tells which of its arguments are constants.
_WEIGHTS = "layout_free_buffers"
#: The annotation of the block that puts weights in order.
_ORDERED = "layout_rewrite_preproc"
#: Names of the libraries in the folder of the question.
TUNED, UNTUNED = "tuned.so", "untuned.so"


def build(question: dict[str, Any], family: Family) -> dict[str, Any]:
    """Compile a network with schedules.

    Args:
        question: `network` (its spelling), `target` (of the device), `folder` (where the library goes),
            `traces` (the schedule of each workload, by id).
        family: Of the device.

    Returns:
        `workloads` of the network, `applied` (how many have a schedule), `refused` (schedules that TVM did
        not apply).

    Raises:
        NetworkRefusedError: TVM cannot read, lower or compile it.
    """
    load_tensor_intrinsics(family)
    import tvm
    from tvm import relax

    text, folder = question["network"], Path(question["folder"])
    target = tvm.target.Target(compiled_target(question["target"]))
    module = lowered(load(read_network_name(text)), family)
    workloads: dict[str, Any] = {
        workload.workload_id: workload for workload in workloads_of(module, family, text)
    }
    try:
        if family is Family.CPU:
            module = relax.transform.AttachAttrLayoutFreeBuffers()(module)
        database, refused = _database(question["traces"], workloads, module, family)
        module = _scheduled(module, database, target)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {text}: TVM cannot apply its schedules for {question['target']}: {last_line(error)}"
        ) from None
    compile_library(module, target, folder / TUNED, text)
    return {
        "workloads": len(workloads),
        "applied": len(question["traces"].keys() & workloads.keys()) - len(refused),
        "refused": refused,
    }


def _database(
    traces: dict[str, str], workloads: dict[str, Any], module: Any, family: Family
) -> tuple[Any, dict[str, str]]:
    """The schedules (traces by workload) as TVM looks them up, and why others do not fit, by name.

    The programs of the module may say which arguments are weights.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    database, refused = ms.database.MemoryDatabase(), dict[str, str]()
    target = tvm.target.Target(SPACE_TARGETS[family])
    for task in ms.relax_integration.extract_tasks(module, target):
        program = task.dispatched[0]
        workload_id = workload_id_of(tvm.IRModule({"main": program["main"].without_attr(_WEIGHTS)}))
        if workload_id not in traces:
            continue
        try:
            schedule = scheduled(program, traces[workload_id])
        except CandidateRefused as error:
            refused[workloads[workload_id].name] = str(error)[:300]
            continue
        # Programs that name no weights stay as they are: those of sorts and scans have no block to rewrite.
        names_weights = _WEIGHTS in (program["main"].attrs or {})
        if names_weights and ms.postproc.RewriteLayout().apply(ordered := schedule.copy()):
            schedule = ordered
        database.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace,
                database.commit_workload(program),
                # One schedule a workload: which is the fastest was decided before.
                [1.0],
                target,
                ms.arg_info.ArgInfo.from_prim_func(program["main"]),
            )
        )
    return database, refused


def _scheduled(module: Any, database: Any, target: Any) -> Any:
    """Apply the schedules, and put the weights in their order once and for all."""
    import tvm
    from tvm import relax

    with target, database:
        module = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(module)
        module = _split(module)
        passes = [
            relax.transform.FoldConstant(),
            # The cut leaves tuples of weights, which the machine would make and take apart in each run.
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
        return tvm.transform.Sequential(passes)(module)


def _split(module: Any) -> Any:
    """Cut the programs that put weights in order in two; others, which TVM's pass fails on, stay aside."""
    import tvm
    from tvm import relax

    aside = {
        variable: function
        for variable, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and _ORDERED not in function.script()
    }
    module = tvm.IRModule(
        {variable: function for variable, function in module.functions_items() if variable not in aside},
        attrs=module.attrs,
    )
    module = relax.transform.SplitLayoutRewritePreproc()(module)
    for variable, function in aside.items():
        module.update_func(variable, function)
    return module


def compile_library(module: Any, target: Any, path: Path, network: str) -> None:
    """Compile a module into a library.

    Raises:
        NetworkRefusedError: TVM cannot.
    """
    from tvm import relax

    try:
        # CUDA's compiler learns the architecture from the target in scope only.
        with target:
            relax.build(module, target).export_library(str(path))
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network}: TVM cannot compile it for {target}: {last_line(error)}"
        ) from None
