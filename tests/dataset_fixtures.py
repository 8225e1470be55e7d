"""Real schedules and made-up latencies for the tests of reading, features, datasets and splits."""

from __future__ import annotations

import json
from typing import Any

from msgspec import convert, to_builtins
from msgspec.structs import replace

from agents.records import (
    REMEASURE,
    Candidate,
    Descriptor,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Outcome,
    Protocol,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
    content_hash,
)
from tests.record_fixtures import host_descriptor
from tests.scenario_fixtures import fields_of

#: What TVM 0.27 writes for a candidate of GMM(2, 128, 64, 128) on a CPU before post-processing...
GMM_HEAD: list[list[Any]] = json.loads(
    '[["GetSBlock",[],["Z","main"],["b0"]],["GetSBlock",[],["root","main"],["b1"]],["Annotate",["b0",'
    '"\\"SSRSRS\\""],["meta_schedule.tiling_structure"],[]],["GetLoops",["b0"],[],["l2","l3","l4","l5"]],'
    '["SamplePerfectTile",["l2"],[4,64],["v6","v7","v8","v9"]],["Split",["l2","v6","v7","v8","v9"],'
    '[true,false],["l10","l11","l12","l13"]],["SamplePerfectTile",["l3"],[4,64],["v14","v15","v16","v17"]],'
    '["Split",["l3","v14","v15","v16","v17"],[true,false],["l18","l19","l20","l21"]],["SamplePerfectTile",'
    '["l4"],[4,64],["v22","v23","v24","v25"]],["Split",["l4","v22","v23","v24","v25"],[true,false],["l26",'
    '"l27","l28","l29"]],["SamplePerfectTile",["l5"],[2,64],["v30","v31"]],["Split",["l5","v30","v31"],'
    '[true,false],["l32","l33"]],["Reorder",["l10","l18","l26","l11","l19","l27","l32","l12","l20","l28",'
    '"l33","l13","l21","l29"],[],[]],["GetConsumers",["b0"],[],[]],["CacheWrite",["b0",[]],[0,"global"],'
    '["b34"]],["ReverseComputeAt",["b34","l26"],[1,-1],[]],["Annotate",["b1",16],["meta_schedule.parallel"],'
    '[]],["Annotate",["b1",64],["meta_schedule.vectorize"],[]],["SampleCategorical",[],[[0,16,64,512],'
    '[0.25,0.25,0.25,0.25]],["v35"]],["Annotate",["b1","v35"],["meta_schedule.unroll_explicit"],[]]]'
)
#: ...and the beginning and end of what its post-processors add.
GMM_TAIL: list[list[Any]] = json.loads(
    '[["GetSBlock",[],["root","main"],["b36"]],["Unannotate",["b36"],["meta_schedule.parallel"],[]],'
    '["Unannotate",["b36"],["meta_schedule.vectorize"],[]],["Unannotate",["b36"],'
    '["meta_schedule.unroll_explicit"],[]],["GetChildBlocks",["b36"],[],["b37","b38"]],["GetLoops",["b37"],'
    '[],["l39","l40","l41"]],["Fuse",["l39","l40"],[1],["l53"]],["Parallel",["l53"],[],[]],["Annotate",'
    '["l53",64],["pragma_auto_unroll_max_step"],[]],["GetSBlock",[],["Z","main"],["b61"]],["GetLoops",'
    '["b61"],[],["l62","l63","l64"]],["DecomposeReduction",["b61","l63"],[],["b75"]]]'
)
ENTER_POSTPROC: list[Any] = ["EnterPostproc", [], [], []]
GMM_DECISIONS: list[list[Any]] = [
    [4, [2, 1, 1, 1]],
    [6, [16, 2, 1, 4]],
    [8, [1, 1, 2, 32]],
    [10, [16, 8]],
    [18, 2],
]
#: A candidate of NRM(1, 256, 256), whose reduction is factored, as TVM 0.27 writes it (post-processing cut).
NRM_TRACE = (
    '[[["GetSBlock",[],["C","main"],["b0"]],["GetSBlock",[],["D","main"],["b1"]],["GetSBlock",[],["root",'
    '"main"],["b2"]],["GetLoops",["b0"],[],["l3","l4","l5"]],["Fuse",["l4","l5"],[1],["l6"]],'
    '["SamplePerfectTile",["l6"],[2,64],["v7","v8"]],["Split",["l6","v7","v8"],[true,false],["l9","l10"]],'
    '["RFactor",["l10"],[1],["b11"]],["GetLoops",["b11"],[],["l12","l13","l14"]],["Annotate",["b0",1],'
    '["meta_schedule.random_compute_producer"],[]],["Annotate",["b2",16],["meta_schedule.parallel"],[]],'
    '["Annotate",["b2",64],["meta_schedule.vectorize"],[]],["SampleCategorical",[],[[0,16,64,512],[0.25,'
    '0.25,0.25,0.25]],["v15"]],["Annotate",["b2","v15"],["meta_schedule.unroll_explicit"],[]],'
    '["GetProducers",["b0"],[],["b16"]],["Unannotate",["b0"],["meta_schedule.random_compute_producer"],[]],'
    '["SampleComputeLocation",["b0"],[],["l17"]],["ComputeAt",["b0","l17"],[1,-1],[]],'
    '["SampleComputeLocation",["b16"],[],["l18"]],["ComputeAt",["b16","l18"],[1,-1],[]],["EnterPostproc",[],'
    "[],[]]],[[5,[2048,32]],[12,2],[16,-1],[18,-2]]]"
)


def gmm_trace(
    *,
    i: tuple[int, ...] = (16, 2, 1, 4),
    j: tuple[int, ...] = (1, 1, 2, 32),
    k: tuple[int, ...] = (16, 8),
    unroll: int = 2,
    tail: bool = True,
) -> str:
    """Trace of a GMM candidate with these tile factors (outermost first) and this choice of unrolling."""
    decisions = [[4, [2, 1, 1, 1]], [6, list(i)], [8, list(j)], [10, list(k)], [18, unroll]]
    return canonical_json([GMM_HEAD + (GMM_TAIL if tail else []), decisions])


def gmm_workload(
    name: str = "gmm", *, operator: str = "GMM", networks: tuple[str, ...] = ("bert",)
) -> Workload:
    """A workload whose candidates `gmm_trace` gives; each name is another one."""
    return Workload(
        workload_id=WorkloadId(content_hash(name)[:16]),
        name=name,
        operator=operator,
        arg_shapes=((2, 128, 128), (2, 128, 64), (2, 128, 64)),
        arg_dtypes=("float32",) * 3,
        flops=4194304.0,
        networks=tuple((network, 2) for network in networks),
        module_json="{}",
    )


def gmm_candidates(workload: Workload, count: int) -> list[Candidate]:
    """Unlike candidates of a workload."""
    return [
        Candidate(workload_id=workload.workload_id, trace=gmm_trace(i=(2, 2, 2, 16), k=(1 + number, 128)))
        for number in range(count)
    ]


def record_of(
    candidate: Candidate, device: str, *run_secs: float, outcome: Outcome = Outcome.OK, attempt: int = 0
) -> Record:
    """One measurement of a candidate."""
    return Record(
        device_id=DeviceId(device),
        workload_id=candidate.workload_id,
        candidate_id=candidate.candidate_id,
        dialect=candidate.dialect,
        trace=candidate.trace,
        origin=candidate.origin,
        outcome=outcome,
        run_secs=run_secs,
        warmup_secs=(),
        number=1,
        build_secs=0.1,
        wait_secs=0.0,
        timing_secs=0.1,
        error="" if outcome is Outcome.OK else "it broke",
        protocol=Protocol(),
        environment="{}",
        environment_id="e",
        attempt=attempt,
        measured_at=0.0,
    )


def again(record: Record, **changes: object) -> Record:
    """A second measurement of what was measured."""
    return replace(record, **{"attempt": record.attempt + 1, "origin": REMEASURE} | changes)


def changed(record: Record, changes: str) -> Record:
    """A record with other values of some fields, which are written as `name: value, ...`."""
    return convert({**to_builtins(record), **fields_of(changes)}, Record)


def cpu_device(name: str, mcpu: str = "x86-64-v3", **changes: Any) -> tuple[DeviceSpec, Descriptor]:
    """Spec and descriptor of one instruction-set profile of an AVX-512 host."""
    spec = DeviceSpec(
        device_id=DeviceId(name),
        kind=DeviceKind.LOCAL,
        family=Family.CPU,
        target_json=canonical_json({"kind": "llvm", "mcpu": mcpu} if mcpu else {"kind": "llvm"}),
    )
    return spec, replace(host_descriptor("avx512"), **changes)
