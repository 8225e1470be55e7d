"""A database that was exported, used by TVM itself: real measurements, a real network, a real run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from agents.records import Candidate, DeviceSpec, Outcome, Protocol, Record, Workload
from agents.sandbox.job import CandidateJob
from agents.sandbox.pool import WorkerPool
from fleet.interchange.export_store import export
from fleet.store.store import Store
from tests.record_fixtures import make_descriptor, make_record, make_workload, record_for

pytestmark = pytest.mark.tvm

QUICK = Protocol(repeat=2, extra_repeats=0, min_repeat_ms=1.0, check_share=0.0, reject_interval=0.0)
SIZE = 48


@pytest.fixture(scope="module")
def network(generic_spec: DeviceSpec) -> Any:
    """A matmul and what follows it, as Relax lowers them for the device."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    info = relax.TensorType((SIZE, SIZE), "float32")
    x, w = relax.Var("x", info), relax.Var("w", info)
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            result = builder.emit_output(relax.op.tanh(product))
        builder.emit_func_output(result)
    with tvm.target.Target(generic_spec.target):
        return relax.get_pipeline("zero")(builder.get())


@pytest.fixture(scope="module")
def workload(network: Any, generic_spec: DeviceSpec) -> Workload:
    """The heaviest of the network's workloads."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.programs.workloads import workload_from_module

    tasks = ms.relax_integration.extract_tasks(network, tvm.target.Target(generic_spec.target))
    found = [
        workload_from_module(task.dispatched[0], name=str(task.task_name), operator="relax") for task in tasks
    ]
    return max(found, key=lambda one: one.flops)


@pytest.fixture(scope="module")
def measured(
    pool: WorkerPool, workload: Workload, generic_spec: DeviceSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Store, list[Record]]]:
    """A store with five real measurements of the workload, one that failed, and one without a module."""
    folder = tmp_path_factory.mktemp("export")
    question = {"op": "propose", "workload_id": workload.workload_id, "family": "cpu", "count": 5, "seed": 3}
    traces = pool.ask({**question, "exclude": []}, workload)["traces"]
    candidates = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in traces]
    jobs = [CandidateJob(candidate=one, workload=workload, protocol=QUICK) for one in candidates]
    records = [
        record_for(
            candidates[result.job],
            device_id=generic_spec.device_id,
            outcome=result.outcome,
            run_secs=result.run_secs,
            error=result.error,
            protocol=QUICK,
        )
        for result in pool.run(jobs)
    ]
    assert {record.outcome for record in records} == {Outcome.OK}
    imported = replace(make_workload(2), module_json='{"args_info":[],"dialect":"meta_schedule","index":0}')
    with Store.open(folder / "store") as store:
        store.put_device(generic_spec, make_descriptor())
        store.put_workloads([workload, imported])
        store.append(records)
        for number, of in ((4, workload), (1, imported)):
            about = {"device": generic_spec.device_id, "workload": of.workload_id, "trace": "[[],[]]"}
            store.append([make_record(number, **about)])
        yield store, records


@pytest.fixture(scope="module")
def database(measured: tuple[Store, list[Record]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    store, records = measured
    folder = tmp_path_factory.mktemp("exported") / "databases"
    result = export(store, folder, "meta_schedule")
    assert result.records == len(records)
    reasons = ("failed: a database holds latencies only", "the module of its workload is not known")
    assert result.skipped == dict.fromkeys(reasons, 1)
    return folder / "generic"


def test_tvm_loads_every_record_with_its_seconds_and_target(
    database: Path, measured: tuple[Store, list[Record]], workload: Workload, generic_spec: DeviceSpec
) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from agents.programs.design_space import plain_json

    loaded = ms.database.JSONDatabase(work_dir=str(database), allow_missing=False)
    found = [
        (json.dumps(plain_json(one.trace.as_json())), tuple(map(float, one.run_secs)))
        for one in loaded.get_all_tuning_records()
    ]
    assert sorted(found) == sorted((json.dumps(json.loads(one.trace)), one.run_secs) for one in measured[1])
    [first, *_] = loaded.get_all_tuning_records()
    assert str(first.target) == str(tvm.target.Target(generic_spec.target))
    assert [(str(info.dtype), tuple(info.shape)) for info in first.args_info] == list(
        zip(workload.arg_dtypes, workload.arg_shapes, strict=True)
    )


def test_relax_applies_the_best_schedule(
    database: Path, network: Any, measured: tuple[Store, list[Record]], workload: Workload
) -> None:
    import tvm
    import tvm_ffi
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Schedule, Trace

    loaded = ms.database.JSONDatabase(work_dir=str(database), allow_missing=False)
    with tvm.target.Target({"kind": "llvm", "num-cores": 1}), loaded:
        tuned = relax.transform.MetaScheduleApplyDatabase()(network)
    # TVM goes by the mean of the repeats.
    best = min(measured[1], key=lambda record: float(np.mean(record.run_secs)))
    schedule = Schedule(tvm.ir.load_json(workload.module_json))
    Trace.apply_json_to_schedule(json.loads(best.trace), schedule)
    wanted = schedule.mod["main"].without_attr("global_symbol").without_attr("tirx.is_scheduled")

    def has_schedule(module: Any) -> bool:
        functions = [one for one in module.functions.values() if isinstance(one, tvm.tirx.PrimFunc)]
        return any(tvm_ffi.structural_equal(one.body, wanted.body, True) for one in functions)

    assert has_schedule(tuned)
    assert not has_schedule(network)
