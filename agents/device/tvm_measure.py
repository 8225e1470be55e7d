"""TVM's own searches with our way to measure: a `Builder` and a `Runner` for `tune_tir` and `tune_relax`.

    with tvm_measure(spec) as ours:
        ms.tune_tir(module, target, work_dir, 64, builder=ours.builder, runner=ours.runner)

Candidates are built and timed by the worker processes of a device: confined, pinned, under the host's timing
lock, without a file, tar or link step for each. Building and timing is one step there, so the builder hands
the scheduled program on, and one that does not compile fails when it would run. Imports TVM when called.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.device.messages import Batch
from agents.device.worker import DeviceWorker
from agents.programs.tvm_import import load_tensor_intrinsics
from agents.programs.workloads import workload_from_module
from agents.records import Candidate, CandidateId, DeviceSpec, Outcome, Protocol, Record, Workload

#: The trace of a program that is scheduled already.
_NO_STEPS = "[[],[]]"
#: TVM compares candidates of one round, and measures each once.
_PROTOCOL = Protocol(check_share=0.0, visits=1, reject_interval=0.0)


@dataclass(frozen=True, slots=True)
class TvmMeasure:
    """Both halves of measuring, as TVM's searches take them."""

    #: `tvm.s_tir.meta_schedule.Builder`.
    builder: Any
    #: `tvm.s_tir.meta_schedule.Runner`.
    runner: Any


@contextmanager
def tvm_measure(spec: DeviceSpec) -> Iterator[TvmMeasure]:
    """Start the worker processes of a device for a search of TVM; end them behind the block.

    Programs are built for the target of the device, whatever TVM was told.

    Raises:
        DeviceRefusedError: This host cannot be, or reach, the device.
    """
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="tensor-fleet-tvm-") as folder:
        worker = DeviceWorker(spec, Path(folder) / "spool", usable_cores=sorted(cores))
        # Making it moved this process to the cores that do not time; the search is free to use all others.
        try:
            with closing(worker):
                programs = Path(folder) / "programs"
                programs.mkdir()
                load_tensor_intrinsics(spec.family)  # the search itself would take twenty seconds for it
                yield TvmMeasure(_builder(programs), _runner(worker))
        finally:
            os.sched_setaffinity(0, cores)


def measure_modules(worker: DeviceWorker, modules: Sequence[Any]) -> list[Record | str]:
    """Build and time scheduled `tvm.IRModule`s.

    Returns:
        The record of each, or why there is none.
    """
    candidates: list[Candidate | str] = []
    workloads: dict[str, Workload] = {}
    for module in modules:
        try:
            workload = workload_from_module(module, name="tvm", operator="tvm")
        except Exception as error:  # a program without fixed shapes, or one that TVM cannot save
            candidates.append(str(error))
            continue
        workloads[workload.workload_id] = workload
        candidates.append(Candidate(workload_id=workload.workload_id, trace=_NO_STEPS))
    distinct = {
        candidate.candidate_id: candidate for candidate in candidates if isinstance(candidate, Candidate)
    }
    records_by_id: dict[CandidateId, Record] = {}
    if distinct:
        batch = Batch(
            candidates=tuple(distinct.values()),
            workloads={
                candidate.workload_id: workloads[candidate.workload_id] for candidate in distinct.values()
            },
            protocol=_PROTOCOL,
            confirm_within=0.0,
        )
        records = worker.measure(batch)
        worker.acknowledge([record.record_id for record in records])
        records_by_id = {record.candidate_id: record for record in reversed(records)}
    return [
        candidate if isinstance(candidate, str) else records_by_id.get(candidate.candidate_id, "it was lost")
        for candidate in candidates
    ]


def _builder(folder: Path) -> Any:
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder

    @derived_object
    class FleetBuilder(PyBuilder):  # type: ignore[misc]  # tvm publishes no types
        """Keeps scheduled programs for `FleetRunner`, which has them compiled where they are timed."""

        def build(self, build_inputs: Sequence[Any]) -> list[Any]:
            results = []
            for build_input in build_inputs:
                # TVM removes a program's folder once it is measured.
                path = Path(tempfile.mkdtemp(dir=folder)) / "program.json"
                try:
                    path.write_text(tvm.ir.save_json(build_input.mod))
                except Exception as error:
                    results.append(BuilderResult(None, f"TVM cannot save the program: {error}"))
                else:
                    results.append(BuilderResult(str(path), None))
            return results

    return FleetBuilder()


def _runner(worker: DeviceWorker) -> Any:
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

    @derived_object
    class FleetRunnerFuture(PyRunnerFuture):  # type: ignore[misc]  # tvm publishes no types
        """A measurement that is over."""

        def __init__(self, measurement: Record | str) -> None:
            super().__init__()
            self._measurement = measurement

        def done(self) -> bool:
            return True

        def result(self) -> Any:
            measurement = self._measurement
            if isinstance(measurement, str):
                return RunnerResult(None, measurement)
            if measurement.outcome is not Outcome.OK:
                return RunnerResult(None, f"{measurement.outcome}: {measurement.error}")
            return RunnerResult([float(secs) for secs in measurement.run_secs], None)

    @derived_object
    class FleetRunner(PyRunner):  # type: ignore[misc]  # tvm publishes no types
        """Has the worker processes of a device build and time a round."""

        def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
            paths = [Path(str(runner_input.artifact_path)) for runner_input in runner_inputs]
            modules = [tvm.ir.load_json(path.read_text()) for path in paths]
            return [FleetRunnerFuture(measurement) for measurement in measure_modules(worker, modules)]

    return FleetRunner()
