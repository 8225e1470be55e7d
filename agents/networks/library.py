"""A network as a compiled Relax library with the fastest schedules known of its workloads.

Runs in the confined process of `reader_process.py`; imports TVM when called. Two libraries are made: `tuned`
applies the schedules, `untuned` is what TVM compiles without any, which for GPUs are its default schedules.
On CPUs the weights of `tuned` lie in the order in which its schedules read them: a network finds few of them
in a cache, and streams them from memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agents.errors import last_line
from agents.networks.graph import fused, relax_module, workloads_of
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.sources import load
from agents.programs.build import CandidateRefused, scheduled
from agents.programs.design_space import SPACE_TARGETS
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.programs.workloads import workload_id_of
from agents.records import Family

#: The attribute by which a program tells which of its arguments are constants.
_WEIGHTS = "layout_free_buffers"
#: Names of the libraries in the folder of the question.
TUNED, UNTUNED = "tuned.so", "untuned.so"


def build(question: dict[str, Any], family: Family) -> dict[str, Any]:
    """Compile a network twice.

    Args:
        question: `network` (its spelling), `target` (of the device), `folder` (where the libraries go),
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
    target = tvm.target.Target(question["target"])
    module = fused(relax_module(load(read_network_name(text))), family, text)
    known: dict[str, Any] = {one.workload_id: one for one in workloads_of(module, family, text)}
    try:
        _compile(module, target, folder / UNTUNED)
        if family is Family.CPU:
            module = relax.transform.AttachAttrLayoutFreeBuffers()(module)
        database, refused = _database(question["traces"], known, module, family)
        _compile(_scheduled(module, database, target), target, folder / TUNED)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {text}: TVM cannot compile it for {question['target']}: {last_line(error)}"
        ) from None
    return {
        "workloads": len(known),
        "applied": len(question["traces"].keys() & known.keys()) - len(refused),
        "refused": refused,
    }


def _database(
    traces: dict[str, str], known: dict[str, Any], module: Any, family: Family
) -> tuple[Any, dict[str, str]]:
    """The schedules (traces by workload) as TVM looks them up, and why others do not fit, by name.

    The programs of the module may say which arguments are weights.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    made, refused = ms.database.MemoryDatabase(), dict[str, str]()
    target = tvm.target.Target(SPACE_TARGETS[family])
    for task in ms.relax_integration.extract_tasks(module, target):
        program = task.dispatched[0]
        workload_id = workload_id_of(tvm.IRModule({"main": program["main"].without_attr(_WEIGHTS)}))
        if workload_id not in traces:
            continue
        try:
            schedule = scheduled(program, traces[workload_id])
        except CandidateRefused as error:
            refused[known[workload_id].name] = str(error)[:300]
            continue
        # A program that names no weights stays as it is.
        if ms.postproc.RewriteLayout().apply(ordered := schedule.copy()):
            schedule = ordered
        made.commit_tuning_record(
            ms.database.TuningRecord(
                schedule.trace,
                made.commit_workload(program),
                # One schedule a workload: which is the fastest was decided before.
                [1.0],
                target,
                ms.arg_info.ArgInfo.from_prim_func(program["main"]),
            )
        )
    return made, refused


def _scheduled(module: Any, database: Any, target: Any) -> Any:
    """Apply the schedules, and put the weights in their order once and for all."""
    import tvm
    from tvm import relax

    with target, database:
        passes = [
            relax.transform.MetaScheduleApplyDatabase(enable_warning=False),
            relax.transform.SplitLayoutRewritePreproc(),
            relax.transform.FoldConstant(),
            relax.transform.DeadCodeElimination(),
        ]
        return tvm.transform.Sequential(passes)(module)


def _compile(module: Any, target: Any, path: Path) -> None:
    from tvm import relax

    # CUDA's compiler learns the architecture from the target in scope only.
    with target:
        relax.build(module, target).export_library(str(path))
