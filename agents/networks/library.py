"""A network as a compiled Relax library with the fastest schedules known of its workloads.

Runs in the confined process of `reader_process.py`; imports TVM when called. `build` makes the library
`tuned`, which applies the schedules; `untuned` is of `agents.networks.first_run`: what TVM compiles without
any, which for GPUs are its default schedules. On CPUs the network is compiled in several ways
(`agents.networks.schedule_choice`), in most of which its weights lie in the order in which the schedules read
them: a network finds few of them in a cache, and streams them from memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.errors import last_line
from agents.host.device_kinds import compiled_target
from agents.host.host_lock import timing_lock
from agents.networks.graph import WEIGHTS, id_of_program, lowered, workload_ids, workloads_of
from agents.networks.latency import least_program_secs
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.schedule_choice import Way, fastest_ways, ways
from agents.networks.sources import load
from agents.programs.build import CandidateRefused, compiled, scheduled
from agents.programs.design_space import SPACE_TARGETS
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.records import Family

#: The annotation of the block that puts weights in order.
_ORDERED = "layout_rewrite_preproc"
#: What TVM adds to the name of a program whose weights were put in order.
_PREPACKED = "_prepacked"
#: Names of the libraries in the folder of the question.
TUNED, UNTUNED = "tuned.so", "untuned.so"
#: Seconds after which a network is compiled in no further way.
_MOST_SECS = 120.0
#: Ways that are compiled at once at most, if there are so many cores: each takes memory.
_MOST_AT_ONCE = 4


def build(question: dict[str, Any], family: Family) -> dict[str, Any]:
    """Compile a network with schedules.

    Args:
        question: `network` (its spelling), `target` (of the device), `folder` (where the library goes),
            `traces` (schedules of each workload by its id, the fastest one alone first), `lock` (path of the
            timing lock, may be empty), `cores` (on which programs are timed).
        family: Of the device.

    Returns:
        `workloads` of the network, `applied` (how many have a schedule), `refused` (schedules that TVM did
        not apply), `ways` (in which the network was compiled and timed), `changed` (programs that took
        another way than the first).

    Raises:
        NetworkRefusedError: TVM cannot read, lower or compile it.
    """
    load_tensor_intrinsics(family)
    import tvm
    from tvm import relax

    text, path = question["network"], Path(question["folder"]) / TUNED
    loaded = load(read_network_name(text))
    module = lowered(loaded, family)
    workloads: dict[str, Any] = {
        workload.workload_id: workload for workload in workloads_of(module, family, text)
    }
    try:
        if family is Family.CPU:
            module = relax.transform.AttachAttrLayoutFreeBuffers()(module)
        # Programs that the virtual machine does itself are no workloads, and keep what TVM makes of them.
        traces = {name: traces for name, traces in question["traces"].items() if name in workloads}
        programs, refused = _programs(module, traces, family)
        network = _Network(module, family, tvm.target.Target(question["target"]), programs)
        secs: list[Mapping[str, float]] = []
        if family is Family.CPU:
            secs = _timed(network, loaded.random_inputs(), question["lock"], question["cores"])
        chosen = fastest_ways(secs) if secs else {}
        module = network.scheduled(chosen)
    except Exception as error:
        raise NetworkRefusedError(
            f"network {text}: TVM cannot apply its schedules for {question['target']}: {last_line(error)}"
        ) from None
    compile_library(module, tvm.target.Target(compiled_target(question["target"])), path, text)
    return {
        "workloads": len(workloads),
        "applied": len(programs),
        "refused": {workloads[workload_id].name: why for workload_id, why in refused.items()},
        "ways": len(secs),
        "changed": sum(place > 0 for place in chosen.values()),
    }


@dataclass(frozen=True, slots=True)
class _Program:
    """A program of the network and its schedules."""

    #: `tvm.IRModule` as the network holds it, with `main`.
    module: Any
    #: `tvm.s_tir.Schedule` of each way; at least one.
    schedules: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Network:
    """A lowered network, whose programs may say which arguments are weights."""

    module: Any
    family: Family
    #: `tvm.target.Target` without options of LLVM: TVM sets those for the process, so not in several threads.
    target: Any
    #: Those with a schedule, by workload.
    programs: Mapping[str, _Program]

    def scheduled(self, places: Mapping[str, int]) -> Any:
        """The module with its programs scheduled, and the weights in their order once and for all.

        Args:
            places: Of the way that each workload takes; beyond its ways is the last, none is the first.
        """
        import tvm
        from tvm import relax

        with self.target, self._database(places):
            module = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(self.module)
            module = _split(module)
            passes = [
                relax.transform.FoldConstant(),
                # The cut leaves tuples of weights, which the machine would make and take apart in each run.
                relax.transform.CanonicalizeBindings(),
                relax.transform.DeadCodeElimination(),
            ]
            return tvm.transform.Sequential(passes)(module)

    def _database(self, places: Mapping[str, int]) -> Any:
        """The schedules as TVM looks them up."""
        import tvm
        from tvm.s_tir import meta_schedule as ms

        database = ms.database.MemoryDatabase()
        for workload_id, program in self.programs.items():
            last = len(program.schedules) - 1
            record = ms.database.TuningRecord(
                program.schedules[min(places.get(workload_id, 0), last)].trace,
                database.commit_workload(program.module),
                # One schedule a workload: which is the fastest was decided before.
                [1.0],
                tvm.target.Target(SPACE_TARGETS[self.family]),
                ms.arg_info.ArgInfo.from_prim_func(program.module["main"]),
            )
            database.commit_tuning_record(record)
        return database


def _programs(
    module: Any, traces: Mapping[str, Sequence[str]], family: Family
) -> tuple[dict[str, _Program], dict[str, str]]:
    """The programs of a module with their schedules, and why others do not fit, by workload."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    programs, refused = dict[str, _Program](), dict[str, str]()
    target = tvm.target.Target(SPACE_TARGETS[family])
    for task in ms.relax_integration.extract_tasks(module, target):
        program = task.dispatched[0]
        workload_id = id_of_program(program["main"])
        schedules = []
        # Programs that name no weights stay as they are: those of sorts and scans have no block to rewrite.
        for way in ways(traces.get(workload_id, ()), WEIGHTS in (program["main"].attrs or {})):
            try:
                schedules.append(_schedule(program, way))
            except CandidateRefused as error:
                refused[workload_id] = str(error)[:300]
        if schedules:
            programs[workload_id] = _Program(program, schedules)
            refused.pop(workload_id, None)
    return programs, refused


def _schedule(program: Any, way: Way) -> Any:
    """Apply a way's schedule to a program.

    Raises:
        CandidateRefused: It does not fit.
    """
    from tvm.s_tir import meta_schedule as ms

    schedule = scheduled(program, way.trace)
    is_ordered = way.is_ordered and ms.postproc.RewriteLayout().apply(ordered := schedule.copy())
    return ordered if is_ordered else schedule


def _timed(
    network: _Network, values: list[Any], lock: str, cores: Sequence[int]
) -> list[Mapping[str, float]]:
    """Seconds of each workload inside the network, for each way in which it was compiled.

    Ways are compiled at once, on all cores of this process, and then timed one after the other.

    Args:
        network: With at least one schedule, or nothing is compiled.
        values: Inputs of a run.
        lock: Path of the timing lock; empty without one.
        cores: Where they are timed.
    """
    import tvm
    from tvm import relax

    usable_cores = os.sched_getaffinity(0)
    began = time.monotonic()
    ids = {name: key for name, key in workload_ids(network.module).items() if key in network.programs}
    most = max((len(program.schedules) for program in network.programs.values()), default=1)
    secs_by_way: list[Mapping[str, float]] = []

    def executable(place: int) -> Any:
        return relax.build(network.scheduled(dict.fromkeys(network.programs, place)), network.target)

    workers = min(len(usable_cores), _MOST_AT_ONCE)
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, most if most > 1 else 0, workers):
            if time.monotonic() - began > _MOST_SECS:
                break
            executables = list(pool.map(executable, range(first, min(first + workers, most))))
            with timing_lock(Path(lock)) if lock else nullcontext():
                os.sched_setaffinity(0, cores or usable_cores)
                for compiled_way in executables:
                    by_function = least_program_secs(relax.VirtualMachine(compiled_way, tvm.cpu()), values)
                    secs_by_way.append(secs_by_workload(by_function, ids))
                os.sched_setaffinity(0, usable_cores)
    return secs_by_way


def secs_by_workload(by_function: Mapping[str, float], ids: Mapping[str, str]) -> dict[str, float]:
    """Add up the seconds of a network's functions by workload; others are of the virtual machine.

    Args:
        by_function: Seconds of each function in a run.
        ids: Workloads by function.
    """
    secs: dict[str, float] = {}
    for name, function_secs in by_function.items():
        if workload_id := ids.get(name.removesuffix(_PREPACKED)):
            secs[workload_id] = secs.get(workload_id, 0.0) + function_secs
    return secs


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
            compiled(lambda: relax.build(module, target)).export_library(str(path))
    except Exception as error:
        raise NetworkRefusedError(
            f"network {network}: TVM cannot compile it for {target}: {last_line(error)}"
        ) from None
